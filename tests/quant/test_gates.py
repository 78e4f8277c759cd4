"""What a product of a map and a gate takes: a plan is made by it."""

from __future__ import annotations

import onnx
import pytest
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


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    "before",
    [
        [],
        [node("HardSwish", "c", "h")],
        [node("Sigmoid", "c", "s"), node("Mul", "c s", "h")],
        [node("Tanh", "c", "t"), node("Add", "t c", "h")],
    ],
    ids=["alone", "HardSwish", "SiLU", "sum"],
)
def test_a_float_gate_between_convolutions_undoes_blocks_and_makes_them_anew(before, swapped) -> None:
    in_float, in_integers = COSTS.elementwise("Mul", MAP)
    assert times(gated(*before, swapped=swapped)) == pytest.approx((in_float + 2 * COSTS.reorder(MAP), in_integers))


def test_it_does_not_where_no_convolution_stands() -> None:
    in_float, in_integers = COSTS.elementwise("Mul", MAP)
    assert times(gated(behind="Relu")) == pytest.approx((in_float + COSTS.reorder(MAP), in_integers))
    moved = gated(node("Softsign", "c", "h"), behind="Relu")
    assert times(moved) == pytest.approx((in_float, in_integers))


def test_a_product_of_two_maps_stays_in_blocks() -> None:
    nodes = [node("Conv", "x w", "c"), node("Conv", "x v", "d"), node("Mul", "c d", "m", name="gate")]
    weights = {"w": floats(64, 64, 1, 1), "v": floats(64, 64, 1, 1, seed=1)}
    proto = build([*nodes, node("Conv", "m w", "y")], {"x": [1, 64, 28, 28]}, ["y"], weights)
    assert times(proto) == COSTS.elementwise("Mul", MAP)


def test_a_silu_is_one_kernel() -> None:
    proto = gated(node("Sigmoid", "c", "s", name="sigmoid"), node("Mul", "s c", "h", name="silu"))
    assert times(proto, "sigmoid") == (0, 0)
    assert times(proto, "silu") == COSTS.elementwise("SiLU", MAP)
    assert times(proto, "silu")[0] < COSTS.elementwise("Sigmoid", MAP)[0] + COSTS.elementwise("Mul", MAP)[0]
