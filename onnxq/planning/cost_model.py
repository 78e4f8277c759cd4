"""Predicted time of a node in float and in 8 bit, from the kernel times of a target.

Tests: `tests/planning/test_partition.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from onnxq.ir import Node, Value
from onnxq.ops.forms.average_pool import averaging_window
from onnxq.ops.forms.integer_domain import CLAMPS, TWO_INPUTS
from onnxq.ops.forms.silu import gated_by, silu_slot
from onnxq.optimize.fold_columns import NODES, columns_of
from onnxq.optimize.nearest_upsampling import doublings
from onnxq.targets import UNKNOWN_SIDE, Costs
from onnxq.targets.assumed_shapes import assumed_shape, count
from onnxq.targets.timings import Kernel

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
# A weight in front of an activation, by what one behind it takes: both are uint8, and the activation is packed in each
# run. 1.6 to 2.1 with VNNI and 1.0 to 1.6 by AVX2, thirteen products, Zen 4, onnxruntime 1.32
IN_FRONT = 1.6
SCALED = 0.3  # nanoseconds an element of its sums: a Cast and two Mul
SCALING = 3  # nodes for that


def kernel_of(node: Node, shapes: Mapping[str, tuple[int, ...]]) -> Kernel | None:
    """Name the kernel that computes a Conv, MatMul or Gemm with a constant weight on the right; None for others."""
    if node.op_type not in ("Conv", "MatMul", "Gemm") or node.domain or len(node.inputs) < 2 or not node.outputs:
        return None
    first, weight, output = node.inputs[0], node.inputs[1], node.outputs[0]
    if first is None or weight is None or weight.tensor is None or output is None:
        return None
    read, made = assumed_shape(first, shapes), assumed_shape(output, shapes)
    if read is None or made is None or (node.op_type != "Conv" and len(weight.tensor.shape) != 2):
        return None
    attributes = {name: node.attribute(name) for name in sorted(node.spans)}
    plain = {name: value.decode() if isinstance(value, bytes) else value for name, value in attributes.items()}
    text = json.dumps({k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()}, sort_keys=True)
    return Kernel(node.op_type, read, weight.tensor.shape, made, text)


def interpolated(kernel: Kernel, costs: Costs) -> tuple[float, float]:
    """Return the times of a kernel in float and in 8 bit by the table, in nanoseconds."""
    elements = max(math.prod(kernel.input), 1)
    if kernel.operator != "Conv":
        columns = max(kernel.output[-1] if kernel.output else 1, 1)
        inner = max(math.prod(kernel.weight) // columns, 1)
        return costs.matmul(max(elements // inner, 1), inner, columns)
    filters, per_group, *window = kernel.weight
    group = int(json.loads(kernel.attributes).get("group", 1))
    pixels = max(math.prod(kernel.output) // max(filters, 1), 1)
    return costs.conv(per_group * group, filters, math.prod(window), pixels, group, axes=len(window))


def node_times(node: Node, costs: Costs) -> tuple[float, float]:
    """Return the time of a node in float and in 8 bit in nanoseconds, conversions around it left out.

    Operators that onnxruntime computes with a Conv count as a part of it: a Clip after it, which costs codes nothing.
    """
    if _conv_of(node) is not None:
        return 0.0, 0.0
    in_float, in_integers = _kernel_times(node, costs)
    made = node.outputs[0]
    clamps = [use.node.op_type for use in made.uses if _conv_of(use.node) is node] if made is not None else []
    if made is not None and clamps:  # one, as it is the only reader of its input
        in_float += costs.clamp(clamps[0], count(made, costs.shapes))
    return in_float, in_integers


def _conv_of(clamp: Node) -> Node | None:
    """Return the Conv that nothing but this Relu or Clip reads; None for other nodes."""
    made = clamp.inputs[0] if clamp.op_type in CLAMPS and not clamp.domain and clamp.inputs else None
    conv = made.producer if made is not None and len(made.uses) == 1 and not made.is_output else None
    return conv if conv is not None and conv.op_type == "Conv" and not conv.domain else None


def _kernel_times(node: Node, costs: Costs) -> tuple[float, float]:
    output, weight = node.outputs[0], node.input(1)
    if node.op_type in GATES and weight is not None and weight.tensor is not None and len(weight.tensor.shape) == 3:
        return _recurrent_times(node, weight.tensor.shape, costs)
    assert output is not None
    first = node.inputs[0] if node.inputs else None  # RandomNormal and its like read nothing
    elements = count(first, costs.shapes) if first is not None else 1
    measured = costs.measured(kernel_of(node, costs.shapes)) if costs.timings is not None else None
    if measured is not None:
        return measured
    if node.op_type in ("MatMul", "Gemm") and weight is not None and weight.tensor is not None:
        columns = max(int(output.shape[-1]) if output.shape and isinstance(output.shape[-1], int) else 1, 1)
        inner = max(weight.tensor.size // columns, 1)
        return costs.matmul(max(elements // inner, 1), inner, columns)
    if node.op_type in ("MatMul", "Gemm") and first is not None and first.tensor is not None:
        return _times_of_weight_in_front(node, output, costs)
    if gated_by(node) is not None:  # the Mul after it computes both
        return 0.0, 0.0
    if node.op_type == "Resize":
        kind = "Resize" if doublings(node) else "Resize_other"
        return costs.elementwise(kind, count(output, costs.shapes))
    if (averaged := averaging_window(node)) is not None:
        channels, taps = averaged[0], math.prod(averaged[1])
        as_conv = costs.conv(channels, channels, taps, max(count(output, costs.shapes) // channels, 1), channels)[1]
        return costs.elementwise(node.op_type, elements)[0], as_conv
    if node.op_type == "Conv" and weight is not None and weight.tensor is not None:
        return _conv_times(node, weight.tensor.shape, output, costs)
    made = count(output, costs.shapes) if node.op_type in TWO_INPUTS else 1  # a gate may come first, and is small
    return costs.elementwise("SiLU" if silu_slot(node) is not None else node.op_type, max(elements, made))


def _times_of_weight_in_front(node: Node, output: Value, costs: Costs) -> tuple[float, float]:
    in_float, in_integers = (stacked_product(node, costs, slot) for slot in (0, 1))
    scaling = SCALED * costs.scale * count(output, costs.shapes) + SCALING * costs.borders["node"]
    return in_float, IN_FRONT * in_integers + scaling


def stacked_product(node: Node, costs: Costs, slot: int = 0) -> float:
    """Return the time of a product for each of a stack of activations.

    Args:
        node: A MatMul or Gemm without a weight behind the activation.
        costs: Kernel times.
        slot: 0 in float; 1 in 8 bit, for a weight behind it.

    """
    first, output = node.inputs[0], node.outputs[0]
    assert first is not None
    assert output is not None
    shape = costs.shapes.get(first.name, first.shape) or ()
    inner = shape[-1] if shape and isinstance(shape[-1], int) else 64
    made = costs.shapes.get(output.name, output.shape) or ()
    sizes = [size if isinstance(size, int) else 1 for size in made]
    rows, columns = sizes[-2:] if len(sizes) > 1 else (1, max(count(output, costs.shapes), 1))
    stack = max(count(output, costs.shapes) // max(rows * columns, 1), 1)
    least = costs.matmul(1, 64, 64)[slot]
    return float(least + stack * max(costs.matmul(rows, inner, columns)[slot] - least, 0.0))


def _conv_times(node: Node, weight: tuple[int, ...], output: Value, costs: Costs) -> tuple[float, float]:
    filters, per_group, *window = weight
    group = int(node.attribute("group", 1))
    pixels = max(count(output, costs.shapes) // max(filters, 1), 1)
    in_float, in_integers = costs.conv(per_group * group, filters, math.prod(window), pixels, group, axes=len(window))
    blocks = columns_of(node, weight, costs)
    if blocks is not None:
        in_integers = in_integers * blocks.share + NODES * costs.borders["node"]
    return in_float, in_integers


def _recurrent_times(node: Node, weight: tuple[int, ...], costs: Costs) -> tuple[float, float]:
    """Return both times of a layer whose weight is `[directions, gates * hidden, inputs]`."""
    directions, rows, inputs = weight
    gates, first = GATES[node.op_type], node.inputs[0]
    shape = costs.shapes.get(first.name, first.shape) if first is not None else None
    axes = (1, 0) if node.attribute("layout", 0) else (0, 1)
    steps, batch = ((shape[axis] if shape and len(shape) == 3 else None) for axis in axes)
    return costs.recurrent(
        steps if isinstance(steps, int) else UNKNOWN_SIDE,
        batch if isinstance(batch, int) else 1,
        inputs,
        max(rows // gates, 1),
        gates * directions,
    )
