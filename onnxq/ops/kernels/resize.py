"""Resize and Upsample, one axis after the other: https://onnx.ai/onnx/operators/onnx__Resize.html."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from onnxq.errors import ModelError
from onnxq.ops.kernels.arrays import Array, NotCovered, integers, normalize_axes
from onnxq.ops.kernels.registry import kernel

ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda v: np.ceil(v - 0.5),
    "round_prefer_ceil": lambda v: np.floor(v + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@dataclass(frozen=True)
class Sampling:
    """How Resize reads between the elements: its attributes of the same names."""

    mode: str = "nearest"
    coordinate_transformation_mode: str = "half_pixel"
    nearest_mode: str = "round_prefer_floor"
    cubic_coeff_a: float = -0.75
    exclude_outside: int = 0
    extrapolation_value: float = 0.0


@dataclass(frozen=True)
class ResizedAxis:
    """How one axis is resized.

    Attributes:
        axis: Which one.
        output: New length.
        scale: Ratio of the new length to the old one, as given or from the lengths; float32.
        resized: New length before rounding, which is what the formulas use.
        roi: Part of the axis that `tf_crop_and_resize` reads, from 0 to 1.

    """

    axis: int
    output: int
    scale: np.float32
    resized: np.float32
    roi: tuple[float, float] = (0.0, 1.0)


def coordinates(sampling: Sampling, length: int, target: ResizedAxis) -> Array:
    """The place of each element of the result on the original axis of `length`; float32 [output].

    Formulas of the operator's page, in float32 like onnxruntime: `nearest` decides ties by the last bit.
    """
    x = np.arange(target.output, dtype=np.float32)
    half, scale, resized = np.float32(0.5), target.scale, target.resized
    kind = sampling.coordinate_transformation_mode
    if kind == "half_pixel" or (kind == "pytorch_half_pixel" and target.output > 1):
        return (x + half) / scale - half
    if kind == "half_pixel_symmetric":
        offset = np.float32(length / 2) * (1 - np.float32(target.output) / resized)
        return offset + (x + half) / scale - half
    if kind == "align_corners" and target.output > 1:
        return x * np.float32(length - 1) / (resized - 1)
    if kind in ("pytorch_half_pixel", "align_corners"):
        return np.zeros(target.output, np.float32)
    if kind == "asymmetric":
        return x / scale
    if kind == "tf_half_pixel_for_nn":
        return (x + half) / scale
    if kind == "tf_crop_and_resize":
        start, end = (np.float32(v) for v in target.roi)
        if target.output > 1:
            return start * (length - 1) + x * (end - start) * np.float32(length - 1) / (resized - 1)
        return np.full(target.output, half * (start + end) * (length - 1), np.float32)
    raise ModelError(f"coordinate transformation '{kind}' does not exist", "Use one that ONNX defines.")


def taps(sampling: Sampling, x: Array, length: int) -> tuple[Array, Array]:
    """Return the positions that each coordinate reads, not clamped, and their weights: both [count, output]."""
    if sampling.mode == "nearest":
        if sampling.nearest_mode not in ROUNDINGS:
            raise ModelError(f"nearest mode '{sampling.nearest_mode}' does not exist", "Use one that ONNX defines.")
        return ROUNDINGS[sampling.nearest_mode](x).astype(np.int64)[None], np.ones((1, x.size))
    base = np.floor(x)
    t = x - base
    if sampling.mode in ("linear", "bilinear"):
        positions, weights = np.stack([base, base + 1]), np.stack([1 - t, t])
    elif sampling.mode == "cubic":
        a = sampling.cubic_coeff_a
        positions = np.stack([base - 1, base, base + 1, base + 2])
        weights = np.stack(  # Keys' cubic convolution, as the operator's page gives it
            [
                ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a,
                ((a + 2) * t - (a + 3)) * t * t + 1,
                ((a + 2) * (1 - t) - (a + 3)) * (1 - t) * (1 - t) + 1,
                ((a * (2 - t) - 5 * a) * (2 - t) + 8 * a) * (2 - t) - 4 * a,
            ]
        )
    else:
        raise ModelError(f"mode '{sampling.mode}' does not exist", "Use nearest, linear or cubic.")
    if sampling.exclude_outside:
        weights = np.where((positions < 0) | (positions >= length), 0, weights)
        weights = weights / weights.sum(axis=0)
    return positions.astype(np.int64), weights


def _resize_axis(x: Array, target: ResizedAxis, sampling: Sampling) -> Array:
    axis, length = target.axis, x.shape[target.axis]
    where = coordinates(sampling, length, target)
    positions, weights = taps(sampling, where, length)
    positions = np.clip(positions, 0, length - 1)
    shape = [1] * x.ndim
    shape[axis] = target.output
    if len(positions) == 1:
        result: Array = np.take(x, positions[0], axis=axis)
    else:
        kind = x.dtype if x.dtype in (np.float32, np.float64) else np.dtype(np.float32)
        result = np.zeros((*x.shape[:axis], target.output, *x.shape[axis + 1 :]), kind)
        for position, weight in zip(positions, weights, strict=True):
            result += np.take(x, position, axis=axis) * weight.astype(kind).reshape(shape)
    if sampling.coordinate_transformation_mode == "tf_crop_and_resize":
        outside = ((where < 0) | (where > length - 1)).reshape(shape)
        result = np.where(outside, result.dtype.type(sampling.extrapolation_value), result)
    return result


def _resize(x: Array, targets: Sequence[ResizedAxis], sampling: Sampling) -> Array:
    result = x
    crops = sampling.coordinate_transformation_mode == "tf_crop_and_resize"
    for target in targets:
        if target.output != x.shape[target.axis] or target.scale != 1 or crops:
            result = _resize_axis(result, target, sampling)
    if result.dtype == x.dtype:
        return result
    if x.dtype.kind in "iu":
        bounds = np.iinfo(x.dtype)
        return np.asarray(np.clip(result, bounds.min, bounds.max).astype(x.dtype))
    return np.asarray(result.astype(x.dtype))


def _by_scales(scales: Sequence[float] | Array, lengths: Sequence[int], axes: Sequence[int]) -> list[ResizedAxis]:
    targets = []
    for axis, length, given in zip(axes, lengths, scales, strict=True):
        scale = np.float32(given)
        resized = scale * np.float32(length)
        targets.append(ResizedAxis(axis, math.floor(resized), scale, resized))
    return targets


def _by_sizes(sizes: Sequence[int], lengths: Sequence[int], axes: Sequence[int], policy: str) -> list[ResizedAxis]:
    scales = [np.float32(size) / np.float32(length) for size, length in zip(sizes, lengths, strict=True)]
    outputs = list(sizes)
    if policy != "stretch":
        scales = [min(scales) if policy == "not_larger" else max(scales)] * len(scales)
        outputs = [math.floor(float(s) * length + 0.5) for s, length in zip(scales, lengths, strict=True)]
    return [ResizedAxis(a, o, s, np.float32(o)) for a, o, s in zip(axes, outputs, scales, strict=True)]


@kernel("Resize", since=11)
def resize(
    x: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Array:
    """Resample a tensor to other lengths, by scales or by sizes; nearest, linear and cubic, all coordinate modes.

    Raises:
        NotCovered: With `antialias`.
        ModelError: Neither scales nor sizes are given, or they do not fit the axes.

    """
    if antialias:
        raise NotCovered("Resize with antialias is left to onnx.reference")
    along = normalize_axes(axes, x.ndim) if axes else tuple(range(x.ndim))
    assert along is not None
    lengths = [x.shape[axis] for axis in along]
    if sizes is not None and np.size(sizes):
        targets = _by_sizes(integers(sizes), lengths, along, keep_aspect_ratio_policy)
    elif scales is not None and np.size(scales):
        targets = _by_scales(scales, lengths, along)
    else:
        raise ModelError("Resize has neither scales nor sizes", "Give one of them.")
    if roi is not None and np.size(roi) and coordinate_transformation_mode == "tf_crop_and_resize":
        bounds = [float(v) for v in roi]
        regions = zip(bounds[: len(along)], bounds[len(along) :], strict=True)
        targets = [replace(target, roi=region) for target, region in zip(targets, regions, strict=True)]
    sampling = Sampling(
        mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a, exclude_outside, extrapolation_value
    )
    return _resize(x, targets, sampling)


@kernel("Resize", since=10)
@kernel("Upsample", since=9)
def resize_10(x: Array, scales: Array, *, mode: str = "nearest") -> Array:
    """Resize of version 10 and Upsample of version 9: coordinates are x / scale, nearest takes the floor."""
    sampling = Sampling(mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    return _resize(x, _by_scales(scales, x.shape, range(x.ndim)), sampling)


@kernel("Upsample", since=7)
def upsample_7(x: Array, *, scales: Sequence[float], mode: str = "nearest") -> Array:
    """Upsample of version 7, whose scales are an attribute."""
    return resize_10(x, np.asarray(scales, np.float32), mode=mode)


@kernel("Upsample", since=1)
def upsample_1(x: Array, *, height_scale: float, width_scale: float, mode: str = "nearest") -> Array:
    """Upsample of version 1, for X [N, C, H, W]."""
    return resize_10(x, np.asarray([1, 1, height_scale, width_scale], np.float32), mode=mode)
