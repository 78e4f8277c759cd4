"""A Conv over single places in front of a Transpose as a product: which, the same numbers, and only in 8 bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import NONE, build, count_ops, floats, node, run, sqnr, typed

from onnxq.ir import commit, infer_types, load
from onnxq.lowering.pointwise_conv import as_product, pointwise
from onnxq.pipeline.quantize import quantize
from onnxq.planning.planner import make_plan
from onnxq.planning.recipe import load_recipe
from onnxq.stages.prepare import prepare
from onnxq.stages.substitution import substitute_layers

LAST = {"perm": [0, 2, 3, 1]}
SAYS = "rewrote 1 Conv before a Transpose as MatMul, whose int8 kernel writes floats"


def head(behind: list[onnx.NodeProto] | None = None, output: str = "y", **attributes: Any) -> onnx.ModelProto:
    """A Conv with its Relu, the head of a detector, and its Transpose."""
    weights = {"w": floats(64, 64, 3, 3, scale=0.05), "h": floats(12, 64, 1, 1, scale=0.1), "b": floats(12)}
    steps = [
        node("Conv", "x w", "c", pads=[1] * 4),
        node("Relu", "c", "r"),
        node("Conv", "r h b", "u", **attributes),
        *(behind or [node("Transpose", "u", "t", **LAST), node("Tanh", "t", "y")]),
    ]
    return build(steps, {"x": [1, 64, 24, 24]}, [output], weights, 13)


def kinds(path: Path, *args: Any, **options: Any) -> list[str]:
    return [step.op_type for step in substitute_layers(prepare(load(path), *args, **options)).model.graph.nodes]


@pytest.mark.parametrize(("rank", "bias"), [(3, True), (4, False), (5, True)])
def test_both_compute_the_same(rank: int, bias: bool) -> None:
    places = [5, 7, 3][: rank - 2]
    weights = {"h": floats(6, 4, *[1] * (rank - 2))} | ({"b": floats(6)} if bias else {})
    last = [0, *range(2, rank), 1]
    steps = [node("Conv", "x h b" if bias else "x h", "u"), node("Transpose", "u", "y", perm=last)]
    proto = build(steps, {"x": [2, 4, *places]}, ["y"], weights, 13)
    model = typed(proto)
    found = list(pointwise(make_plan(model, load_recipe("auto"), with_data=True)))
    assert [step.op_type for step in found] == ["Conv"]
    commit([as_product(step) for step in found])
    infer_types(model)
    made = onnx.ModelProto.FromString(model.serialize())
    onnx.checker.check_model(made, full_check=True)
    assert count_ops(made) == {"Transpose": 1, "MatMul": 1} | ({"Add": 1} if bias else {})
    assert "n_u" in {step.name for step in made.graph.node}
    x = {"x": floats(2, 4, *places, seed=1)}
    before, after = run(proto.SerializeToString(), x, NONE)[0], run(model.serialize(), x, NONE)[0]
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "proto",
    [
        head([node("Transpose", "u", "t", perm=[0, 3, 2, 1]), node("Tanh", "t", "y")]),
        head([node("Transpose", "u", "t", **LAST), node("Add", "u u", "v"), node("Tanh", "t", "y")]),  # two readers
        head([node("Transpose", "u", "t", **LAST)], output="u"),
        head(strides=[2, 2]),
        head(pads=[1] * 4),
        head([node("Relu", "u", "t"), node("Transpose", "t", "y", **LAST)]),
    ],
)
def test_others_are_not_listed(proto: onnx.ModelProto) -> None:
    assert not list(pointwise(make_plan(typed(proto), load_recipe("auto"), with_data=True)))


def test_it_writes_floats_where_it_works_in_8_bit(tmp_path: Path) -> None:
    onnx.save(head(), tmp_path / "m.onnx")
    prepared = substitute_layers(prepare(load(tmp_path / "m.onnx"), with_data=True))
    assert [step.op_type for step in prepared.model.graph.nodes] == [
        "Conv",
        "Relu",
        "Transpose",
        "MatMul",
        "Add",
        "Tanh",
    ]
    assert {d.node.op_type for d in prepared.plan.decisions if d.scheme == "static-int8"} >= {"Conv", "MatMul"}
    assert SAYS in prepared.notes
    assert prepared.original is not None


@pytest.mark.parametrize("options", [{"with_data": False}, {"with_data": True, "exclude": ["n_u"]}])
def test_it_stays_where_it_would_not_work_in_8_bit(options: dict[str, Any], tmp_path: Path) -> None:
    onnx.save(head(), tmp_path / "m.onnx")
    assert kinds(tmp_path / "m.onnx", **options) == ["Conv", "Relu", "Conv", "Transpose", "Tanh"]


def test_other_recipes_leave_it(tmp_path: Path) -> None:
    onnx.save(head(), tmp_path / "m.onnx")
    assert "MatMul" not in kinds(tmp_path / "m.onnx", "static-int8", with_data=True)


def test_the_result_is_as_the_model(tmp_path: Path) -> None:
    onnx.save(head(), tmp_path / "m.onnx")
    samples = [{"x": floats(1, 64, 24, 24, seed=seed)} for seed in range(4)]
    quantize(tmp_path / "m.onnx", "auto", output=tmp_path / "q.onnx", samples=samples)
    assert count_ops(onnx.load(tmp_path / "q.onnx"))["MatMulInteger"] == 1
    feeds = {"x": floats(1, 64, 24, 24, seed=9)}
    before, after = (run((tmp_path / name).read_bytes(), feeds)[0] for name in ("m.onnx", "q.onnx"))
    assert sqnr(before, after) > 30
