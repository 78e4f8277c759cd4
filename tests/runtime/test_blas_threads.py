"""NumPy's BLAS has one thread where results must not depend on the number of processors."""

from __future__ import annotations

import pytest

from onnxq.evaluator import arithmetic
from onnxq.runtime.blas_threads import _openblas, single_threaded_blas


def test_the_blas_has_one_thread_inside_and_as_many_as_before_outside() -> None:
    functions = _openblas()
    if functions is None:
        pytest.skip("NumPy has another BLAS")
    count, put = functions
    before = count()
    try:
        put(2)
        with single_threaded_blas():
            assert count() == 1
            with single_threaded_blas():
                assert count() == 1
            assert count() == 1
        assert count() == 2
        with pytest.raises(KeyError), single_threaded_blas():
            raise KeyError
        assert count() == 2
    finally:
        put(before)


def test_the_last_of_several_threads_restores_the_number() -> None:
    functions = _openblas()
    if functions is None:
        pytest.skip("NumPy has another BLAS")
    count, put = functions
    before = count()
    first, second = arithmetic(), single_threaded_blas()
    try:
        put(2)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)  # the evaluator is done in one thread, and another goes on
        assert count() == 1
        second.__exit__(None, None, None)
        assert count() == 2
    finally:
        put(before)
