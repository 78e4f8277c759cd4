"""Sizes behind pools with `ceil_mode`, which ONNX shape inference counts wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from helpers import NONE, build, floats, graph, node, run
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from onnxq.ir import infer_types, parse
from onnxq.pipeline.quantize import quantize

DROPPED: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}


@st.composite
def pools(draw):
    """A pool, and the size of what it reads."""
    kernel = [draw(st.integers(1, 3)) for _ in range(2)]
    made = {"kernel_shape": kernel, "strides": [draw(st.integers(1, 4)) for _ in range(2)]}
    kind = draw(st.sampled_from(["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    if kind == "NOTSET":
        made["pads"] = [draw(st.integers(0, k - 1)) for k in kernel * 2]
    else:
        made["auto_pad"] = kind  # onnxruntime fails on SAME where a window is smaller than its stride
        made["strides"] = [min(pair) for pair in zip(made["strides"], kernel, strict=True)]
    op_type, opset = draw(st.sampled_from([("MaxPool", 11), ("AveragePool", 16), ("LpPool", 18), ("MaxPool", 22)]))
    sizes = [draw(st.integers(1, 6)) for _ in range(2)]
    if not kind.startswith("SAME"):
        sizes = [max(pair) for pair in zip(sizes, kernel, strict=True)]
    return op_type, opset, sizes, {**made, "ceil_mode": draw(st.integers(0, 1))}


@settings(max_examples=100, deadline=None)
@given(pools())
def test_sizes_are_those_that_onnxruntime_gives(case):
    op_type, opset, sizes, attributes = case
    nodes = [node(op_type, "x", "h", **attributes), node("Neg", "h", "k"), node("Abs", "k", "y")]
    proto = build(nodes, {"x": ["n", 2, *sizes]}, opset=opset)
    model = parse(proto.SerializeToString())
    infer_types(model)
    (given,) = run(proto.SerializeToString(), {"x": floats(3, 2, *sizes)}, NONE)
    assert model.graph.values["h"].shape == ("n", *given.shape[1:])
    assert model.graph.values["k"].shape == ("n", *given.shape[1:])


def test_one_pool_behind_another_and_what_is_open():
    nodes = [
        node("MaxPool", "x", "h i", **DROPPED),
        node("MaxPool", "h", "k", **DROPPED),
        node("Shape", "k", "s"),
        node("Reshape", "i s", "y"),
    ]
    model = parse(build(nodes, {"x": [1, 2, 5, "w"]}, {"y": TensorProto.INT64}).SerializeToString())
    infer_types(model)
    shapes = {name: value.shape for name, value in model.graph.values.items()}
    assert shapes["h"][:3] == shapes["i"][:3] == (1, 2, 3)
    assert shapes["k"][:3] == (1, 2, 2)
    assert not isinstance(shapes["k"][3], int)


def test_what_the_file_states_about_an_output_does_not_count():
    nodes = [node("MaxPool", "x", "y", **DROPPED), node("Neg", "y", "k"), node("Abs", "k", "z")]
    proto = build(nodes, {"x": [1, 2, 5, 5]}, ["y", "z"])
    proto.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 4
    model = parse(proto.SerializeToString())
    infer_types(model)
    assert model.graph.values["y"].shape == model.graph.values["k"].shape == (1, 2, 3, 3)


def test_pools_in_bodies():
    body = graph([node("MaxPool", "x", "h", **DROPPED), node("Neg", "h", "k")], {}, ["k"], {})
    other = graph([node("MaxPool", "x", "h2", **DROPPED), node("Abs", "h2", "k2")], {}, ["k2"], {})
    nodes = [node("If", "c", "j", then_branch=body, else_branch=other), node("Neg", "j", "y")]
    model = parse(build(nodes, {"c": (TensorProto.BOOL, []), "x": [1, 2, 5, 5]}).SerializeToString())
    infer_types(model)
    found = {value.name: value.shape for n in model.graph.walk() for value in n.outputs if value is not None}
    assert {name: found[name] for name in ("h", "k", "h2", "k2", "j")} == dict.fromkeys(
        ("h", "k", "h2", "k2", "j"), (1, 2, 3, 3)
    )


@pytest.mark.parametrize("recipe", ["auto", "weight-int8"])
def test_no_wrong_sizes_are_written(recipe, tmp_path):
    """`h.view(n, c, a * b)` behind such a pool runs in onnxruntime, whose own inference is wrong about the output."""
    sizes = [node("Gather", f"s place{i}", f"size{i}") for i in range(4)]
    lifted = [node("Unsqueeze", f"{name} axis", f"{name}_1") for name in ("size0", "size1", "area")]
    nodes = [
        node("Conv", "x w", "c", pads=[1, 1, 1, 1]),
        node("MaxPool", "c", "h", **DROPPED),
        node("Shape", "h", "s"),
        *sizes,
        node("Mul", "size2 size3", "area"),
        *lifted,
        node("Concat", "size0_1 size1_1 area_1", "target", axis=0),
        node("Reshape", "h target", "r"),
        node("Transpose", "r", "t", perm=[0, 2, 1]),
        node("MatMul", "t v", "y"),
    ]
    places = {f"place{i}": np.array(i, np.int64) for i in range(4)}
    weights = {"w": floats(16, 3, 3, 3), "v": floats(16, 64), "axis": np.array([0], np.int64), **places}
    onnx.save(build(nodes, {"x": ["n", 3, 5, 5]}, ["y"], weights), tmp_path / "m.onnx")
    samples = [{"x": floats(2, 3, 5, 5, seed=seed)} for seed in range(4)]
    report = quantize(tmp_path / "m.onnx", recipe, output=tmp_path / "q.onnx", samples=samples, fast=True)
    assert report.comparison.outputs[0].sqnr > 30
