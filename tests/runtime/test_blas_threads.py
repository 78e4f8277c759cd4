"""NumPy's BLAS has one thread where results must not depend on the number of processors."""

from __future__ import annotations

import pytest

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
