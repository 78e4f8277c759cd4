"""Memory that a process takes while it loads a model."""

from __future__ import annotations

import sys

import pytest
from helpers import build, floats, node

from onnxq.ir import parse
from onnxq.runtime.load_memory import STATUS, load_memory


@pytest.mark.skipif(not STATUS.exists(), reason="the system does not say")
def test_a_large_weight_is_in_it_and_a_model_that_does_not_load_has_none(monkeypatch):
    found = []
    for rows in (64, 1 << 20):  # 4 KB, and 64 MB
        proto = build([node("MatMul", "x w", "y")], {"x": [1, rows]}, ["y"], {"w": floats(rows, 16)})
        found.append(load_memory(proto.SerializeToString()))
        assert rows == 64 or load_memory(parse(proto.SerializeToString())) > 0
    assert found[1] - found[0] > 50e6
    assert load_memory(b"none") is None
    monkeypatch.setattr(sys, "executable", "")
    assert load_memory(b"none") is None
