"""Which kernels onnxruntime makes of quantized nodes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from onnxq.errors import ModelError
from onnxq.ir import parse
from onnxq.ir.storage import residency
from onnxq.optimize.merge_scales import join_scales
from onnxq.planning.recipe import load_recipe
from onnxq.verification.ort_graph import FusedNode, Fusion, read_fusion
from tests.helpers import applied, build, floats, node, quantize_in_memory

SCALE = {"s": np.array(0.1, np.float32), "z": np.array(128, np.uint8)}
PAIR = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "d")]
WEIGHT = {
    "w": np.random.default_rng(0).integers(-127, 128, (16, 8)).astype(np.int8),
    "k": np.random.default_rng(1).integers(-127, 128, (4, 3, 3, 3)).astype(np.int8),
    "t": np.array(0.01, np.float32),
    "n": np.array(0, np.int8),
}


def fusion(nodes: list[onnx.NodeProto], shape: list, weights: dict[str, np.ndarray], opset: int = 17) -> Fusion:
    used = {name for one in nodes for name in one.input}
    known = {name: array for name, array in (SCALE | WEIGHT | weights).items() if name in used}
    made = build(nodes, {"x": shape}, weights=known, opset=opset)
    return read_fusion(bytes(made.SerializeToString()))


def test_static_products() -> None:
    proto = build([node("MatMul", "x w", "y", name="m")], {"x": ["n", 16]}, weights={"w": floats(16, 8)})
    found = read_fusion(quantize_in_memory(proto, "static-int8", [{"x": floats(4, 16)}]).data)
    assert found.groups == (
        FusedNode("m", "MatMul", "MatMulIntegerToFloat", "computes in integers as MatMulIntegerToFloat"),
    )
    assert found.kernels == {"QuantizeLinear": 1, "MatMulIntegerToFloat": 1}
    assert (found.unfused, found.skipped) == ((), None)


def test_the_number_that_products_share_is_no_weight() -> None:
    nodes = [node("MatMul", "x w", "a", name="m"), node("MatMul", "x v", "b", name="n"), node("Add", "a b", "y")]
    proto = build(nodes, {"x": ["n", 16]}, weights={"w": floats(16, 8), "v": floats(16, 8, seed=1)})
    recipe = load_recipe("static-int8").setting(form="integer")
    made = parse(quantize_in_memory(proto, recipe, [{"x": floats(4, 16)}]).data)
    assert applied(join_scales, made) == 2
    found = read_fusion(made.serialize())
    assert found.kernels == {"MatMulIntegerToFloat": 2, "QuantizeLinear": 1, "DequantizeLinear": 1}
    assert [group.kernel for group in found.groups] == ["MatMulIntegerToFloat"] * 2


def test_dynamic_products() -> None:
    nodes = [node("MatMul", "x w", "h", name="m"), node("Add", "h b", "y")]
    proto = build(nodes, {"x": ["n", 16]}, weights={"w": floats(16, 8), "b": floats(8)})
    (group,) = read_fusion(quantize_in_memory(proto, "dynamic-int8").data).groups
    assert (group.operator, group.kernel) == ("MatMulInteger", "DynamicQuantizeMatMul")


def test_chain_of_convolutions() -> None:
    nodes = [
        node("Conv", "x w", "a", name="first"),
        node("Relu", "a", "r", name="relu"),
        node("MaxPool", "r", "p", name="pool", kernel_shape=[2, 2]),
        node("Conv", "p v", "y", name="second"),
    ]
    weights = {"w": floats(32, 32, 3, 3), "v": floats(32, 32, 3, 3, seed=1)}
    proto = build(nodes, {"x": [1, 32, 12, 12]}, weights=weights)
    found = read_fusion(quantize_in_memory(proto, "static-int8", [{"x": floats(1, 32, 12, 12)}]).data)
    assert {group.node: group.kernel for group in found.groups if group.operator == "Conv"} == {
        "first": "QLinearConv",
        "second": "QLinearConv",
    }
    assert {group.node: group.sentence for group in found.groups}["pool"] == "works on codes as they are"
    assert found.kernels["QLinearConv"] == 2
    assert found.unfused == ()


def test_a_convolution_whose_output_is_float_is_paid_for_nothing() -> None:
    nodes = [*PAIR, node("DequantizeLinear", "k t n", "f"), node("Conv", "d f", "y", name="conv")]
    found = fusion(nodes, [1, 3, 8, 8], {})
    (group,) = found.unfused
    assert (group.node, group.kernel) == ("conv", None)
    assert group.sentence == "computes in float, and its input and weight are dequantized on every run"
    assert found.kernels["Conv in float"] == 1


def test_a_stored_weight_is_dequantized_on_every_run() -> None:
    nodes = [node("DequantizeLinear", "k t n", "f"), node("Conv", "x f", "y", name="stored")]
    (group,) = fusion(nodes, [1, 3, 8, 8], {}).unfused
    assert group.sentence == "computes in float, and its weight is dequantized on every run"


def test_an_operator_without_integer_kernel_between_pairs() -> None:
    nodes = [
        *PAIR,
        node("Erf", "d", "e", name="erf"),
        node("QuantizeLinear", "e s z", "g"),
        node("DequantizeLinear", "g s z", "y"),
    ]
    (group,) = fusion(nodes, ["n", 16], {}).groups
    assert group == FusedNode("erf", "Erf", None, "computes in float, and its input is dequantized on every run")


def test_a_float_operator_behind_the_border_is_no_quantized_one() -> None:
    nodes = [*PAIR, node("Erf", "d", "e"), node("Add", "e x", "y")]
    assert fusion(nodes, ["n", 16], {}).groups == ()
    nodes = [*PAIR, node("MatMul", "d f", "y")]
    assert fusion(nodes, ["n", 16], {"f": floats(16, 8)}).groups == ()


def test_what_is_merged_has_no_kernel_of_its_own() -> None:
    nodes = [
        *PAIR,
        node("Relu", "d", "r", name="relu"),
        node("QuantizeLinear", "r s z", "g"),
        node("DequantizeLinear", "g s z", "h"),
        node("Erf", "h", "y"),
    ]
    zero = {"z": np.array(0, np.uint8)}
    (group,) = fusion(nodes, ["n", 16], zero).groups
    assert group == FusedNode("relu", "Relu", "merged", "is merged into a neighbour")


def test_blocks_of_4_bits() -> None:
    from onnx import helper

    codes = helper.make_tensor("c", TensorProto.INT4, [32, 8], np.arange(256) % 15 - 7)
    nodes = [
        helper.make_node("DequantizeLinear", ["c", "v"], ["f"], axis=0, block_size=16),
        node("MatMul", "x f", "y", name="blocked"),
    ]
    made = build(nodes[1:], {"x": ["n", 32]}, weights={"f": floats(32, 8)}, opset=21)
    del made.graph.initializer[:]
    made.graph.initializer.extend([codes, onnx.numpy_helper.from_array(floats(2, 8) ** 2 + 1, "v")])
    made.graph.node.insert(0, nodes[0])
    (group,) = read_fusion(bytes(made.SerializeToString())).groups
    assert (group.node, group.kernel) == ("blocked", "MatMulNBits")


def test_nodes_inside_bodies() -> None:
    from onnx import helper

    inner = [node("DequantizeLinear", "w t n", "f"), node("MatMul", "x f", "i", name="inside")]
    held = [onnx.numpy_helper.from_array(WEIGHT[name], name) for name in "wtn"]
    then = helper.make_graph(inner, "then", [], [helper.make_tensor_value_info("i", 1, None)], held)
    other = helper.make_graph(
        [node("MatMul", "x v", "o", name="float")], "else", [], [helper.make_tensor_value_info("o", 1, None)]
    )
    nodes = [
        node("ReduceMax", "x", "m", keepdims=0),
        node("Cast", "m", "c", to=TensorProto.BOOL),
        helper.make_node("If", ["c"], ["y"], name="if", then_branch=then, else_branch=other),
    ]
    made = build(nodes, {"x": ["n", 16]}, weights={"v": floats(16, 8)})
    assert [group.node for group in read_fusion(bytes(made.SerializeToString())).groups] == ["inside"]


def test_a_float_model_has_no_quantized_nodes() -> None:
    made = build([node("MatMul", "x w", "y")], {"x": ["n", 16]}, weights={"w": floats(16, 8)})
    found = read_fusion(bytes(made.SerializeToString()))
    assert (found.groups, found.kernels) == ((), {"MatMul in float": 1})


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    made = build([node("MatMul", "x w", "y")], {"x": ["n", 16]}, weights={"w": floats(16, 8)})
    onnx.save(made, tmp_path / "m.onnx")
    read_fusion(tmp_path / "m.onnx")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["m.onnx", "temporary"]


def test_a_model_that_is_too_large_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residency, "LARGE", 0)
    made = build([node("MatMul", "x w", "y")], {"x": ["n", 16]}, weights={"w": floats(16, 8)})
    found = read_fusion(bytes(made.SerializeToString()))
    assert (found.groups, found.kernels) == ((), {})
    assert found.skipped == "the model is too large for onnxruntime to write it optimised"


def test_a_model_that_onnxruntime_refuses() -> None:
    made = build([node("Relu", "x", "y")], {"x": ["n", 16]})
    made.graph.node[0].op_type = "Unheard"
    with pytest.raises(ModelError, match="onnxruntime cannot load the model"):
        read_fusion(bytes(made.SerializeToString()))
