"""What a product of a map and a gate takes: a plan is made by it."""

from __future__ import annotations

import onnx
from helpers import build, floats, node, typed

from onnxq.quant.region import node_times
from onnxq.targets import load_costs

COSTS = load_costs()
MAP = 64 * 28 * 28


def gated(*before: onnx.NodeProto, behind: str = "Conv", swapped: bool = False) -> onnx.ModelProto:
    """A map made of a Conv, squeezed to a gate that excites it, and a Conv."""
    read = before[-1].output[0] if before else "c"
    nodes = [
        node("Conv", "x w", "c"),
        *before,
        node("GlobalAveragePool", read, "p"),
        node("Conv", "p v", "e"),
        node("Sigmoid", "e", "g"),
        node("Mul", f"g {read}" if swapped else f"{read} g", "m", name="gate"),
        node("Conv", "m w", "y") if behind == "Conv" else node("Relu", "m", "y"),
    ]
    weights = {"w": floats(64, 64, 1, 1), "v": floats(64, 64, 1, 1, seed=1)}
    return build(nodes, {"x": [1, 64, 28, 28]}, ["y"], weights)


def times(proto: onnx.ModelProto, name: str = "gate") -> tuple[float, float]:
    return node_times(next(each for each in typed(proto).graph.nodes if each.name == name), COSTS)


def test_a_silu_is_one_kernel() -> None:
    proto = gated(node("Sigmoid", "c", "s", name="sigmoid"), node("Mul", "s c", "h", name="silu"))
    assert times(proto, "sigmoid") == (0, 0)
    assert times(proto, "silu") == COSTS.elementwise("SiLU", MAP)
    assert times(proto, "silu")[0] < COSTS.elementwise("Sigmoid", MAP)[0] + COSTS.elementwise("Mul", MAP)[0]
