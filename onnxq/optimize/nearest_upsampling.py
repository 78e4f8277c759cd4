"""Upsampling of codes by powers of two, in the form that onnxruntime has a fast kernel for.

onnxruntime keeps codes channels last behind an integer convolution, also through a Resize. There it looks every element
up by itself (1.31): 1.5 to 2.4 nanoseconds each, a fifth of the time of a text detector. For channels first it has a
kernel that doubles both sides, for a twentieth of that. A Reshape that makes every channel a sample takes no time, and
stops onnxruntime from moving the layout through. A factor of four is two doublings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from onnxq.ir import Graph, Model, Node, Patch
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.schemas import RESIZE_WITHOUT_ROI
from onnxq.optimize.qdq import between_conversions, one_scale

# With factor f, output i takes input floor(i / f) in all of these: https://onnx.ai/onnx/operators/onnx__Resize.html
REPEATING = {
    "asymmetric": ("floor",),
    "half_pixel": ("round_prefer_floor", "round_prefer_ceil"),
    "pytorch_half_pixel": ("round_prefer_floor", "round_prefer_ceil"),
}
APART, TWICE = np.array([-1, 1, 0, 0], np.int64), np.array([1, 1, 2, 2], np.float32)


def doublings(node: Node) -> int:
    """Return how often a Resize doubles both sides of a map by repeating its elements; 0 for everything else."""
    if node.op_type != "Resize" or node.domain or len(node.inputs) < 3 or node.attribute("axes") is not None:
        return 0
    where = node.attribute("coordinate_transformation_mode", "half_pixel")
    nearest = node.attribute("nearest_mode", "round_prefer_floor")
    if node.attribute("mode", "nearest") != "nearest" or nearest not in REPEATING.get(where, ()):
        return 0
    factors = _factors(node)
    if len(factors) != 4 or factors[:2] != [1, 1] or factors[2] != factors[3] or factors[2] < 2:
        return 0
    times = math.log2(factors[2])
    return int(times) if times.is_integer() else 0


def _factors(node: Node) -> list[float]:
    """Return by how much each side grows; nothing where that is not constant."""
    scales, sizes = node.constant(2), node.constant(3)
    if scales is not None and scales.size:
        return scales.numpy().reshape(-1).tolist()
    before = node.inputs[0].shape if node.inputs[0] is not None else None
    if sizes is None or before is None or node.attribute("keep_aspect_ratio_policy"):
        return []
    known = [side if isinstance(side, int) and side > 0 else math.nan for side in before]
    return [int(size) / side for size, side in zip(sizes.numpy(), known, strict=False)]


@register_pass(order=100, timed=True, operators=("Conv",), opset=RESIZE_WITHOUT_ROI)
def double_codes(model: Model) -> Iterator[Patch]:
    """Write upsampling of codes by powers of two as doublings of single channels.

    Args:
        model: A quantized model of operator set 13 or later. Its outputs stay the same to the bit.

    """
    for graph in model.graph.graphs():
        yield from (patch for node in graph.nodes if (patch := _patch(graph, node)) is not None)


def _patch(graph: Graph, node: Node) -> Patch | None:
    times = doublings(node)
    if not times:
        return None
    conversions = between_conversions(node)
    read, made = node.inputs[0], node.outputs[0]
    if conversions is None or read is None or made is None or not all(map(_is_plain, conversions)):
        return None
    pair, after = conversions
    codes, result = pair.inputs[0], after.outputs[0]
    channels = next((v.shape[1] for v in (read, made) if v.shape and isinstance(v.shape[1], int)), None)
    if codes is None or result is None or result.is_output or channels is None or after.graph is not graph:
        return None
    patch = Patch(graph, node, f"double the codes of {read.name}")
    taken = patch.op("Reshape", codes, patch.constant(APART, f"{node.label}_apart"), hint=f"{codes.name}_apart")
    twice = patch.constant(TWICE, f"{node.label}_twice")
    for left in range(times - 1, -1, -1):
        value = patch.op("DequantizeLinear", taken, *pair.inputs[1:], hint=f"{read.name}_apart")
        larger = patch.op(
            "Resize", value, None, twice, hint=f"{made.name}_apart",
            mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor",
        )  # fmt: skip
        scaling = pair.inputs[1:] if left else after.inputs[1:]
        taken = patch.op("QuantizeLinear", larger, *scaling, hint=f"{result.name}_apart")
    together = patch.constant(np.array([-1, channels, 0, 0], np.int64), f"{node.label}_together")
    patch.replace(result, patch.op("Reshape", taken, together, hint=result.name))
    return patch


def _is_plain(conversion: Node) -> bool:
    """Whether a conversion is one of the standard, with a constant scale for the whole tensor and no attributes."""
    return not conversion.domain and len(conversion.inputs) == 3 and not conversion.spans and one_scale(conversion)
