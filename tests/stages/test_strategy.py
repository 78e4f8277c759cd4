"""A model's way through the pipeline is chosen once, from its operators and its size."""

from __future__ import annotations

import pytest
from helpers import build, floats, node
from onnx import helper

from onnxq.ir import read_model
from onnxq.ir.storage import residency
from onnxq.stages.prepare import prepare
from onnxq.stages.strategy import Strategy, choose_strategy

WEIGHTS = {"w": floats(4, 4)}


def product(domain=""):
    """A product and an operator behind it, which is of another domain where one is given."""
    made = build([node("MatMul", "x w", "h"), node("Relu", "h", "y")], {"x": [2, 4]}, ["y"], WEIGHTS)
    if domain:
        made.graph.node[1].domain = domain
        made.opset_import.append(helper.make_opsetid(domain, 1))
    return made


@pytest.mark.parametrize(
    ("domain", "limit", "wanted"),
    [
        ("", 64, Strategy.IN_MEMORY),
        ("", 63, Strategy.STREAMED),
        ("com.example", 64, Strategy.NOT_RUN),
        ("com.example", 63, Strategy.NOT_RUN),
    ],
)
def test_operators_and_bytes_of_weights_decide(domain, limit, wanted, monkeypatch):
    monkeypatch.setattr(residency, "LARGE", limit)
    assert choose_strategy(read_model(product(domain))) is wanted


def test_a_prepared_model_keeps_its_way_whatever_is_folded_afterwards(monkeypatch):
    monkeypatch.setattr(residency, "LARGE", 63)
    prepared = prepare(product(), with_data=True)
    monkeypatch.setattr(residency, "LARGE", 64)
    assert prepared.strategy is Strategy.STREAMED


def test_only_a_model_in_memory_has_variants_and_only_a_known_one_runs():
    assert [way for way in Strategy if way.tries_variants] == [Strategy.IN_MEMORY]
    assert [way for way in Strategy if not way.runs] == [Strategy.NOT_RUN]
