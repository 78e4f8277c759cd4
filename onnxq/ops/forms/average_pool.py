"""AveragePool between quantized neighbours, in onnxruntime: a Conv over single channels whose weights are one code.

QLinearAveragePool goes element by element: a ninth of an Inception's operators took a quarter of its time. A pool that
divides every window by the same number, with padding counted or absent, is a depthwise QLinearConv. Its kernel is fast,
and it rounds the same sums once, as the other does.
"""

from __future__ import annotations

import math

import numpy as np

from onnxq.ir import Node
from onnxq.ir.shape_inference.padding import auto_pad_of, pads_of
from onnxq.ops.forms.family import NodeView, QuantizedForm, Rewriter, register_plan, register_rewrite
from onnxq.ops.forms.integer_domain import plan_elementwise, rewrite_passive
from onnxq.targets.target import load_target

RANKS = (3, 4)  # of what QLinearConv has a depthwise kernel for


def averaging_window(node: Node) -> tuple[int, tuple[int, ...]] | None:
    """Return channels and window of an AveragePool that is a Conv of equal weights; None where it is none."""
    read = node.inputs[0] if node.op_type == "AveragePool" and not node.domain and node.inputs else None
    channels = read.shape[1] if read is not None and read.shape is not None and len(read.shape) in RANKS else None
    padded = any(pads_of(node, 2)) and not node.attribute("count_include_pad", 0)
    dilated = any(step != 1 for step in node.attribute("dilations", ()))
    if not isinstance(channels, int) or channels < 1 or padded or dilated or node.attribute("ceil_mode", 0):
        return None
    if auto_pad_of(node).startswith("SAME"):
        return None
    return channels, tuple(int(size) for size in node.attribute("kernel_shape"))


@register_plan("AveragePool", when="static-int8")
def plan_average_pool(site: NodeView) -> QuantizedForm:
    """Accept an average over windows, as whatever onnxruntime computes it."""
    return plan_elementwise(site)


@register_rewrite("AveragePool", when="static-int8")
def rewrite_average_pool(site: NodeView, patch: Rewriter) -> None:
    """Write the Conv where it is one for onnxruntime, and Q/DQ pairs around the operator elsewhere."""
    as_conv = load_target(site.scheme.target).means_as_convs and site.scheme.activations == "uint8"
    found = averaging_window(site.node) if as_conv else None
    if found is None:
        rewrite_passive(site, patch)
        return
    channels, window = found
    size = math.prod(window)
    codes, scale = np.ones((channels, 1, *window), np.int8), np.array(1 / size, np.float32)
    weight = patch.linear_weight(codes, scale, 0, f"{site.output.name}_mean")
    pads, strides = pads_of(site.node, len(window)), site.node.attribute("strides", [1] * len(window))
    read = patch.dequantized(site.value(0))
    places = {"kernel_shape": list(window), "strides": list(strides), "pads": pads}
    made = patch.op("Conv", read, weight, hint=site.output.name, group=channels, **places)
    patch.replace(site.output, made)
