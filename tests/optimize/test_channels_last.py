"""Codes put channels last once: where a sum would keep channels first, and never a code that changes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest
from helpers import ALL, applied, changed_alike, count_ops, floats, session, typed
from integer_conv_support import Convs

from onnxq.optimize.channels_last import keep_channels_last

KEPT = {"pads": [1] * 4}


def residual(*sides: int, op_type: str = "Add", **attributes: Any) -> Convs:
    """Two residual blocks behind codes that are made of floats."""
    net, axes = Convs(1, 16, *sides), len(sides)
    read = net.quantize("x")
    for name in "ab":
        channels = 16 if op_type != "Concat" or name == "a" else 32
        made = net.conv(read, name, channels, channels, *[3] * axes, pads=[1] * 2 * axes)
        net.nodes.append(onnx.helper.make_node(op_type, [read, made], [f"{name}_sum"], **attributes))
        read = net.quantize(f"{name}_sum")
    return net


def kept(proto: onnx.ModelProto, folder: Path) -> tuple[int, Counter[str], Counter[str]]:
    """Keep channels last; how often, and what onnxruntime makes of it before and behind."""
    shape = [d.dim_value or 5 for d in proto.graph.input[0].type.tensor_type.shape.dim]
    made, count = changed_alike(proto, keep_channels_last, {"x": floats(*shape, seed=3)}, [ALL])
    seen = []
    for each in (proto, made):
        session(each.SerializeToString(), ALL, keep=str(folder / "o.onnx"))
        seen.append(count_ops(onnx.load(folder / "o.onnx")))
    return count, seen[0], seen[1]


@pytest.mark.parametrize("opened", [(), (0,), (0, 2)])
@pytest.mark.parametrize("sides", [(9,), (6, 7)])
@pytest.mark.parametrize(("op_type", "attributes"), [("Add", {}), ("Mul", {}), ("Concat", {"axis": 1})])
def test_every_sum_stays_channels_last(
    opened: tuple[int, ...], sides: tuple[int, ...], op_type: str, attributes: dict[str, Any], tmp_path: Path
) -> None:
    proto = residual(*sides, op_type=op_type, **attributes).model("b_sum_d")
    for axis in opened:
        proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"n{axis}"
    count, before, after = kept(proto, tmp_path)
    assert count == 1
    assert before["Transpose"] == 4  # around both Conv
    assert after["Transpose"] == 2
    assert after[f"QLinear{op_type}"] == 2
    assert after["QLinearConv"] == 2


def test_codes_that_a_conv_makes_lie_so_already() -> None:
    net = Convs(1, 16, 6, 6)
    first = net.conv(net.quantize("x"), "first", 16, 16, 1, 1)
    made = net.conv(first, "a", 16, 16, 3, 3, **KEPT)
    net.nodes.append(onnx.helper.make_node("Add", [first, made], ["s"]))
    assert applied(keep_channels_last, typed(net.model(net.quantize("s")))) == 0


def test_codes_that_only_convolutions_read_are_moved_once_anyway() -> None:
    net = Convs(1, 16, 6, 6)
    x = net.quantize("x")
    assert applied(keep_channels_last, typed(net.model(*(net.conv(x, name, 16, 16, 3, 3) for name in "ab")))) == 0


def test_a_sum_with_floats_does_not_count() -> None:
    net = Convs(1, 16, 6, 6)
    x = net.quantize("x")
    made = net.conv(x, "a", 16, 16, 3, 3, **KEPT)
    net.nodes.append(onnx.helper.make_node("Relu", ["x"], ["r"]))
    net.nodes.append(onnx.helper.make_node("Add", [x, "r"], ["s"]))
    assert applied(keep_channels_last, typed(net.model(made, "s"))) == 0
