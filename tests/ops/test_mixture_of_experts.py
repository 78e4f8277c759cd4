"""MoE of onnxruntime becomes QMoE, which computes with the weights that its codes stand for."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import floats, recipe_of, run
from onnx import TensorProto, helper, numpy_helper

from onnxq import quantize
from onnxq.ir import infer_types, parse
from onnxq.planning.planner import make_plan
from onnxq.planning.recipe import in_blocks

EXPERTS, WIDTH, INNER, BLOCK = 4, 64, 96, 32


def mixture(
    *, gated: bool = True, biased: bool = False, third: bool = False, inner: int = INNER, **routing: int
) -> onnx.ModelProto:
    """A router and experts of two matrices, with SwiGLU in one of them or SiLU."""
    rows = 2 * inner if gated else inner
    weights = {"router": floats(WIDTH, EXPERTS), "flat": np.array([-1, EXPERTS])}
    weights |= {
        "w1": floats(EXPERTS, rows, WIDTH, scale=0.2, seed=1),
        "w2": floats(EXPERTS, WIDTH, inner, scale=0.2, seed=2),
    }
    inputs = ["x", "p", "w1", "", "w2", ""]
    if biased:
        weights |= {"b1": floats(EXPERTS, rows, seed=3), "b2": floats(EXPERTS, WIDTH, seed=4)}
        inputs = ["x", "p", "w1", "b1", "w2", "b2"]
    if third:
        weights["w3"] = floats(EXPERTS, inner, WIDTH, seed=5)
        inputs.append("w3")
    routing = {"normalize_routing_weights": 1, **routing}
    how = {"activation_type": "swiglu", "swiglu_fusion": 1} if gated else {"activation_type": "silu"}
    nodes = [
        helper.make_node("MatMul", ["x", "router"], ["scores"]),
        helper.make_node("Reshape", ["scores", "flat"], ["p"]),
        helper.make_node("MoE", inputs, ["y"], name="moe", domain="com.microsoft", k=2, **routing, **how),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "length", WIDTH]) for name in "xy"]
    made = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], made)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def unpacked(array: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Unpack codes along the last axis."""
    if bits == 8:
        return array
    return np.stack([array & 15, array >> 4], axis=-1).reshape(*array.shape[:-1], -1)[..., :count]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("gated", "biased"), [(True, False), (False, True)])
def test_qmoe_computes_with_the_weights_that_its_codes_stand_for(tmp_path, bits, gated, biased):
    proto = mixture(gated=gated, biased=biased)
    onnx.save(proto, tmp_path / "m.onnx")
    report = quantize(tmp_path / "m.onnx", in_blocks(bits, BLOCK), output=tmp_path / "q.onnx")
    assert report.comparison.worst_sqnr > (30 if bits == 8 else 10)
    made = onnx.load(tmp_path / "q.onnx")
    node = next(node for node in made.graph.node if node.op_type == "QMoE")
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in made.graph.initializer}
    coarse = mixture(gated=gated, biased=biased)
    for name, first, zero in (("w1", 2, 11), ("w2", 5, 12)):
        tensor = next(tensor for tensor in coarse.graph.initializer if tensor.name == name)
        n = numpy_helper.to_array(tensor).shape[-1]
        scales = arrays[node.input[first + 1]].astype(np.float32)
        zeros = unpacked(arrays[node.input[zero]], bits, n // BLOCK)
        codes = unpacked(arrays[node.input[first]], bits, n)
        weight = np.repeat(scales, BLOCK, 2) * (codes.astype(np.float32) - np.repeat(zeros, BLOCK, 2))
        tensor.CopyFrom(numpy_helper.from_array(weight, name))
    x = {"x": floats(2, 5, WIDTH, seed=9)}
    (theirs,), (ours,) = run(coarse.SerializeToString(), x), run(made.SerializeToString(), x)
    # it rounds what experts read to 8 bits
    assert np.abs(ours - theirs).max() < 0.02 * np.abs(theirs).max()


IN_BLOCKS = {"form": "matmulnbits", "block_size": BLOCK}


@pytest.mark.parametrize("recipe", [in_blocks(2, BLOCK), recipe_of("weight-int2", **IN_BLOCKS)])
def test_experts_have_four_bits_where_two_are_asked_for(tmp_path, recipe):
    onnx.save(mixture(), tmp_path / "m.onnx")
    quantize(tmp_path / "m.onnx", recipe, output=tmp_path / "q.onnx")
    made = onnx.load(tmp_path / "q.onnx").graph
    node = next(node for node in made.node if node.op_type == "QMoE")
    assert {one.name: one.i for one in node.attribute}["expert_weight_bits"] == 4
    packed = next(tensor for tensor in made.initializer if tensor.name == node.input[2])
    assert list(packed.dims) == [EXPERTS, 2 * INNER, WIDTH // 2]


def test_experts_of_16_bits_are_stored_in_codes_as_well(tmp_path):
    proto = mixture()
    for tensor in proto.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32:
            tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float16), tensor.name))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    proto.graph.node[-1].output[0] = "made"
    proto.graph.node.append(helper.make_node("QuickGelu", ["made"], ["y"], domain="com.microsoft"))
    # The builder states the type of what experts give
    proto.graph.value_info.append(helper.make_tensor_value_info("made", TensorProto.FLOAT16, ["b", "l", WIDTH]))
    onnx.save(proto, tmp_path / "m.onnx")
    report = quantize(tmp_path / "m.onnx", in_blocks(4, BLOCK), output=tmp_path / "q.onnx")
    assert report.comparison.worst_sqnr > 10
    made = onnx.load(tmp_path / "q.onnx").graph
    assert "QMoE" in {node.op_type for node in made.node}
    assert made.output[0].type.tensor_type.elem_type == TensorProto.FLOAT16


def reason(proto: onnx.ModelProto, scheme: str, **settings: object) -> str | None:
    """Why the plan leaves the experts in float; None if it does not."""
    model = parse(proto.SerializeToString())
    infer_types(model)
    plan = make_plan(model, recipe_of(scheme, **settings), with_data=False)
    found = next(decision for decision in plan.decisions if decision.node.op_type == "MoE")
    return None if found.form is not None else found.reason


def test_what_qmoe_does_not_compute_stays_float_and_the_plan_says_why():
    blocks = {"form": "matmulnbits", "block_size": BLOCK}
    assert reason(mixture(), "weight-int4", **blocks) is None
    assert "third matrix" in (reason(mixture(gated=False, third=True), "weight-int4", **blocks) or "")
    assert "no multiple of the block size" in (reason(mixture(inner=80), "weight-int4", **blocks) or "")
    assert "sum to 1" in (reason(mixture(normalize_routing_weights=0), "weight-int4", **blocks) or "")
    assert "sum to 1" in (reason(mixture(use_sparse_mixer=1), "weight-int4", **blocks) or "")
    assert "in blocks" in (reason(mixture(), "weight-int8") or "")
