"""Engines that are not there are named; the others are tested where they run, in `test_runs.py` and `test_dask.py`."""

from __future__ import annotations

import builtins
from typing import Any

import pytest

from onnxq.distributed.engines import check_name, started
from onnxq.errors import EngineError, RecipeError


@pytest.mark.parametrize("name", ["dask://10.0.0.7:8786", "package.module:function"])
def test_names_of_engines(name: str) -> None:
    check_name(name)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    before = builtins.__import__

    def without(name: str, *arguments: Any, **more: Any) -> Any:
        if name in ("dask", "distributed"):
            raise ImportError(name)
        return before(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(RecipeError) as caught, started("dask://127.0.0.1:9"):
        pass
    assert caught.value.hint == "Install it: pip install 'onnxq[dask]'"


def test_a_scheduler_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dask")
    monkeypatch.setattr("onnxq.distributed.engines.CONNECTING", 1.0)
    with pytest.raises(EngineError, match=r"no scheduler answers at dask://127.0.0.1:9"), started("dask://127.0.0.1:9"):
        pass
