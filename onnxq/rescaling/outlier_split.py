"""Add outliers of a few channels in float: the part beyond the range of all other channels.

A value x is read in 8 bit as if it were clipped to a range [low, high] that no other channel leaves, and

    y = clip(x) W + (x - clip(x)) W

where the second term is zero but for those channels: a product of a few columns with a few rows of the weight. In the
quantized model the codes do the clipping. So the Clip goes (`optimize/redundant_clip.py`), and only the term is added.
Without static codes the other channels are not clipped, and what computes in float after all is y = x W again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxq.ir import Node, Patch, Value
from onnxq.planning.outlier_channels import OutlierClip, Range, sum_with_outliers

CLIP_INPUTS_OPSET = 11  # from here on the bounds of Clip are inputs


def clip(patch: Patch, value: Value, bounds: Range, opset: int, hint: str) -> Value:
    """Clip a value to a range."""
    if opset < CLIP_INPUTS_OPSET:
        return patch.op("Clip", value, hint=hint, min=float(bounds.low), max=float(bounds.high))
    limits = [
        patch.constant(np.asarray(bound, np.float32), f"{hint}_{name}")
        for name, bound in zip(("low", "high"), bounds, strict=True)
    ]
    return patch.op("Clip", value, *limits, hint=hint)


def excess(patch: Patch, value: Value, channels: Sequence[int], bounds: Range, opset: int) -> Value:
    """Return what channels have beyond a range.

    Args:
        patch: Describes the change.
        value: `[…, K]`.
        channels: Those that may leave the range.
        bounds: The range.
        opset: Of the model.

    Returns:
        `[…, channels]`.

    """
    places = patch.constant(np.array(channels, np.int64), f"{value.name}_outlier_channels")
    some = patch.op("Gather", value, places, hint=f"{value.name}_outliers", axis=-1)
    return patch.op("Sub", some, clip(patch, some, bounds, opset, f"{some.name}_clipped"), hint=f"{value.name}_beyond")


def add_outlier_product(patch: Patch, node: Node, outliers: Value, rows: np.ndarray) -> None:
    """Add to what a MatMul or Gemm gives, behind its bias, the product of outliers with their rows of the weight.

    Args:
        patch: Describes the change.
        node: The MatMul or Gemm.
        outliers: `[…, channels]`.
        rows: float32 `[channels, N]`.

    """
    result = node.outputs[0]
    assert result is not None
    use = result.only_use
    after = use.node if use is not None and use.node.graph is node.graph else None
    if node.op_type == "MatMul" and after is not None and after.op_type == "Add" and not after.domain:
        others = [source for source in after.inputs if source is not result]
        if len(others) == 1 and others[0] is not None and others[0].constant is not None and after.outputs[0]:
            patch.rename(result, f"{result.name}_without_outliers")
            result = after.outputs[0]  # onnxruntime computes the bias with the product, if it follows at once
    alpha = np.float32(node.attribute("alpha", 1.0) if node.op_type == "Gemm" else 1.0)
    weight = patch.constant(np.ascontiguousarray(rows * alpha), f"{node.label}_outlier_rows")
    term = patch.op("MatMul", outliers, weight, hint=f"{result.name}_of_outliers")
    patch.replace(result, patch.op("Add", result, term, hint=f"{result.name}_with_outliers"))


def restore_unclipped(read: Value, clipped: OutlierClip, whole: Sequence[Node], parted: Sequence[Node]) -> Patch:
    """Remove a Clip in front of layers without static codes: only static codes do it at no cost.

    Args:
        read: What `clip` gave.
        clipped: How it was clipped.
        whole: Layers that compute in float: they read the whole value, and nothing is added to their outputs.
        parted: Other layers in 8 bit, with outliers split off: only the channels of the outliers are clipped.

    """
    maker = read.producer
    source = maker.inputs[0] if maker is not None else None
    assert source is not None
    patch = Patch(read.graph, maker, f"remove the clip of '{source.name}'")
    for node in whole:
        found = sum_with_outliers(node)
        if found is not None:
            alone, complete = found.inputs[0], found.outputs[0]
            assert alone is not None
            assert complete is not None
            patch.rewire(node, 0, source)
            patch.replace(complete, alone)
            patch.remove(found)
    if parted:
        some = _clip_channels(patch, source, clipped)
        for node in parted:
            patch.rewire(node, 0, some)
    return patch


def _clip_channels(patch: Patch, value: Value, clipped: OutlierClip) -> Value:
    ends = np.full((2, clipped.width), [[-np.inf], [np.inf]], np.float32)
    ends[:, list(clipped.channels)] = np.array(clipped.bounds)[:, None]
    low, high = (patch.constant(end, f"{value.name}_{name}") for end, name in zip(ends, ("low", "high"), strict=True))
    some = patch.op("Max", value, low, hint=f"{value.name}_raised")
    some = patch.op("Min", some, high, hint=f"{value.name}_limited")
    some.dtype, some.shape = value.dtype, value.shape
    return some
