"""Both scales of integer products as one: the same bits, fewer nodes, and still one kernel in onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
from helpers import Quantized, build, changed_alike, count_ops, floats, node
from onnx import TensorProto

from onnxq.optimize.merge_scales import join_scales
from onnxq.planning.decision import Plan
from onnxq.planning.recipe import load_recipe

SCALES = {"one": np.int32(1), "s": np.float32(0.02), "z": np.uint8(120)}


def product(name: str, columns: int, *, kept: str = "") -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    """One integer product of `q` and a bias behind it."""
    random = np.random.default_rng(columns)
    nodes = [
        node("MatMulInteger", f"q w{name} z", f"i{name}"),
        node("Cast", f"i{name}", f"c{name}", to=TensorProto.FLOAT),
        node("Mul", f"r s{name}", kept or f"t{name}"),
        node("Mul", f"c{name} {kept or f't{name}'}", f"m{name}"),
        node("Add", f"m{name} b{name}", f"y{name}"),
    ]
    weights = {
        f"w{name}": random.integers(-127, 128, (32, columns), np.int8),
        f"s{name}": (random.random(columns) * 0.01 + 0.001).astype(np.float32),
        f"b{name}": floats(columns, seed=columns),
    }
    return nodes, weights


def model(*columns: int, **kept: str) -> onnx.ModelProto:
    nodes = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "one s", "r")]
    weights, outputs = dict(SCALES), [*kept.values()]
    for index, count in enumerate(columns):
        made, stored = product(str(index), count, **(kept if not index else {}))
        nodes, weights, outputs = nodes + made, weights | stored, [*outputs, f"y{index}"]
    return build(nodes, {"x": (TensorProto.FLOAT, ["n", 32])}, outputs, weights)


def joined(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    return changed_alike(proto, join_scales, {"x": floats(7, 32, seed=3)})


def optimized(proto: onnx.ModelProto):
    return Quantized(b"", proto.SerializeToString(), Plan(load_recipe("auto"))).optimized()


def test_products_share_one_number_that_is_not_folded() -> None:
    proto = model(16, 24, 40)
    made, count = joined(proto)
    assert count == 3
    assert count_ops(made)["DequantizeLinear"] == 1
    before, after = optimized(proto), optimized(made)
    assert before["MatMulIntegerToFloat"] == after["MatMulIntegerToFloat"] == 3
    assert before["DequantizeLinear"] == 3  # if onnxruntime no longer makes one for each, this can go
    assert after["DequantizeLinear"] == 1
    assert sum(after.values()) < sum(before.values())


def test_a_single_product_stays_as_it_is() -> None:
    made, count = joined(model(16))
    assert count == 0
    assert made.graph.node[1].output[0] == "r"


def test_scales_that_somebody_else_reads_stay() -> None:
    made, count = joined(model(16, 24, 40, kept="scales"))
    assert count == 2
    assert count_ops(made)["DequantizeLinear"] == 2


def test_a_product_below_normal_numbers_stays() -> None:
    proto = model(16, 24, 40)
    small = next(tensor for tensor in proto.graph.initializer if tensor.name == "s0")
    small.CopyFrom(onnx.numpy_helper.from_array(np.full(16, 1e-37, np.float32), "s0"))
    made, count = joined(proto)
    assert count == 2
    assert [item.input[0] for item in made.graph.node if item.output[0] == "t0"] == ["r"]
