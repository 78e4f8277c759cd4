"""Three products in front of attention as one: where, and to the bit."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import ALL, applied, floats, node, run
from onnx import TensorProto, helper, numpy_helper

from onnxq.ir import parse
from onnxq.ir.model import Model
from onnxq.optimize.attention.join_projections import join_projections

MICROSOFT, WIDTH, BLOCK = "com.microsoft", 64, 32
COLUMNS = {"q": 64, "k": 32, "v": 32}


def product(name: str, reads: str = "x", *, zero_points: bool = True, **other: int) -> onnx.NodeProto:
    given = [reads, f"{name}_codes", f"{name}_scales", *([f"{name}_zeros"] if zero_points else [])]
    told = {"K": WIDTH, "N": COLUMNS[name], "bits": 4, "block_size": BLOCK, "accuracy_level": 4, **other}
    return helper.make_node("MatMulNBits", given, [name], f"n_{name}", domain=MICROSOFT, **told)


def model(products: list[onnx.NodeProto], *others: onnx.NodeProto, flat: bool = False) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {"lengths": np.full(2, 6, np.int32), "total": np.array([7], np.int32)}
    for name, columns in COLUMNS.items():
        blocks = WIDTH // BLOCK
        weights[f"{name}_codes"] = rng.integers(0, 256, (columns, blocks, BLOCK // 2), dtype=np.uint8)
        weights[f"{name}_scales"] = abs(floats(columns, blocks, seed=columns, scale=0.02)) + np.float32(0.01)
        weights[f"{name}_zeros"] = rng.integers(0, 256, (columns, 1), dtype=np.uint8)
        if flat:
            weights |= {f"{name}_{kind}": weights[f"{name}_{kind}"].reshape(-1) for kind in ("scales", "zeros")}
    attention = helper.make_node(
        "GroupQueryAttention",
        ["q", "k", "v", "", "", "lengths", "total"],
        ["y"],
        "n_y",
        domain=MICROSOFT,
        num_heads=4,
        kv_num_heads=2,
    )
    nodes = [*products, *others, attention]
    read = {name for step in nodes for name in step.input}
    outputs = ["y", *(step.output[0] for step in others)]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 7, WIDTH])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 7, None]) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items() if name in read],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def loaded(proto: onnx.ModelProto) -> Model:
    return parse(proto.SerializeToString())


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("zero_points", [True, False])
@pytest.mark.parametrize("level", [0, 4])
def test_they_are_one_product_to_the_bit(zero_points: bool, level: int, flat: bool) -> None:
    products = [product(name, zero_points=zero_points, accuracy_level=level) for name in "qkv"]
    proto = model(products, flat=flat)
    made = loaded(proto)
    assert applied(join_projections, made) == 1
    kinds = [step.op_type for step in made.graph.nodes]
    assert kinds == ["MatMulNBits", "GroupQueryAttention"]
    assert made.graph.nodes[0].attribute("N") == 128
    x = floats(2, 7, WIDTH, scale=2)
    np.testing.assert_array_equal(
        run(proto.SerializeToString(), {"x": x})[0], run(made.serialize(), {"x": x})[0], strict=True
    )


def test_scales_that_are_cast_stay_in_float16() -> None:
    proto = model([product(name) for name in "qkv"])
    for tensor in proto.graph.initializer:
        if tensor.name == "q_scales":
            half = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(half, "q_half"))
    proto.graph.node.insert(0, node("Cast", "q_half", "q_scales", to=TensorProto.FLOAT))
    made = loaded(proto)
    assert applied(join_projections, made) == 1
    assert [step.op_type for step in made.graph.nodes] == ["Cast", "Concat", "MatMulNBits", "GroupQueryAttention"]
    x = floats(2, 7, WIDTH)
    expected, found = (run(data, {"x": x}, ALL)[0] for data in (proto.SerializeToString(), made.serialize()))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("rotated", [True, False])
def test_attention_of_onnx_reads_parts_of_one_product_to_the_bit(rotated: bool) -> None:
    proto = model([product(name) for name in "qkv"])
    attention = proto.graph.node[-1]
    told = {"q_num_heads": 4, "kv_num_heads": 2}
    names = ["qr", "kr", "v"] if rotated else ["q", "k", "v"]
    attention.CopyFrom(helper.make_node("Attention", names, ["y"], "n_y", **told))
    if rotated:
        angles = np.random.default_rng(1).normal(size=(2, 7, 8))
        for name, table in (("cos", np.cos(angles)), ("sin", np.sin(angles))):
            proto.graph.initializer.append(numpy_helper.from_array(table.astype(np.float32), name))
        for name, heads in (("q", 4), ("k", 2)):
            turned = node("RotaryEmbedding", f"{name} cos sin", f"{name}r", num_heads=heads)
            proto.graph.node.insert(len(proto.graph.node) - 1, turned)
    proto.graph.node.insert(3, node("Shape", "q", "sizes"))  # others may read a part as well
    proto.graph.output.append(helper.make_tensor_value_info("sizes", TensorProto.INT64, [3]))
    proto.opset_import[0].version = 23
    made = loaded(proto)
    assert applied(join_projections, made) == 1
    kinds = [step.op_type for step in made.graph.nodes]
    assert kinds == ["MatMulNBits", "Split", "Shape", *(["RotaryEmbedding"] * 2 if rotated else []), "Attention"]
    x = floats(2, 7, WIDTH)
    expected, found = (run(data, {"x": x}, ALL)[0] for data in (proto.SerializeToString(), made.serialize()))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "proto",
    [
        model([product("q"), product("k", block_size=64), product("v")]),
        model([product("q"), product("k", accuracy_level=0), product("v")]),
        model([product("q"), product("k", zero_points=False), product("v")]),
        model([product("q"), product("k"), product("v")], node("Sigmoid", "k", "also")),
        model([node("Sigmoid", "x", "x2"), product("q", "x2"), product("k"), product("v")]),
    ],
)
def test_others_stay(proto: onnx.ModelProto) -> None:
    assert applied(join_projections, loaded(proto)) == 0
