"""Resize and Upsample, one axis after the other: https://onnx.ai/onnx/operators/onnx__Resize.html."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from onnxq.errors import ModelError

from .arrays import Array, NotCovered, integers, normalize_axes
from .registry import kernel

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


def coordinates(sampling: Sampling, length: int, output: int, scale: float, roi: tuple[float, float]) -> Array:
    """Where each of `output` elements lies on the original axis of `length`; float64 [output].

    Formulas of the operator's page, where the resized length is length * scale even if that is no integer.
    """
    x = np.arange(output, dtype=np.float64)
    resized = length * scale
    kind = sampling.coordinate_transformation_mode
    if kind == "half_pixel":
        return (x + 0.5) / scale - 0.5
    if kind == "half_pixel_symmetric":
        offset = length / 2 * (1 - output / resized)
        return offset + (x + 0.5) / scale - 0.5
    if kind == "pytorch_half_pixel":
        return (x + 0.5) / scale - 0.5 if output > 1 else np.zeros(1)
    if kind == "align_corners":
        return x * (length - 1) / (resized - 1) if output > 1 else np.zeros(1)
    if kind == "asymmetric":
        return x / scale
    if kind == "tf_half_pixel_for_nn":
        return (x + 0.5) / scale
    if kind == "tf_crop_and_resize":
        start, end = roi
        if output > 1:
            return start * (length - 1) + x * (end - start) * (length - 1) / (resized - 1)
        return np.full(1, 0.5 * (start + end) * (length - 1))
    raise ModelError(f"coordinate transformation '{kind}' does not exist", "Use one that ONNX defines.")


def taps(sampling: Sampling, x: Array, length: int) -> tuple[Array, Array]:
    """Give the positions that each coordinate reads and their weights, both [count, output]; positions not clamped."""
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


def _resize_axis(x: Array, axis: int, output: int, scale: float, roi: tuple[float, float], sampling: Sampling) -> Array:
    length = x.shape[axis]
    where = coordinates(sampling, length, output, scale, roi)
    positions, weights = taps(sampling, where, length)
    positions = np.clip(positions, 0, length - 1)
    shape = [1] * x.ndim
    shape[axis] = output
    if len(positions) == 1:
        result: Array = np.take(x, positions[0], axis=axis)
    else:
        kind = x.dtype if x.dtype in (np.float32, np.float64) else np.dtype(np.float32)
        result = np.zeros((*x.shape[:axis], output, *x.shape[axis + 1 :]), kind)
        for position, weight in zip(positions, weights, strict=True):
            result += np.take(x, position, axis=axis) * weight.astype(kind).reshape(shape)
    if sampling.coordinate_transformation_mode == "tf_crop_and_resize":
        outside = ((where < 0) | (where > length - 1)).reshape(shape)
        result = np.where(outside, result.dtype.type(sampling.extrapolation_value), result)
    return result


def _resize(
    x: Array,
    axes: Sequence[int],
    outputs: Sequence[int],
    scales: Sequence[float],
    regions: Sequence[tuple[float, float]],
    sampling: Sampling,
) -> Array:
    result = x
    for axis, output, scale, roi in zip(axes, outputs, scales, regions, strict=True):
        crops = sampling.coordinate_transformation_mode == "tf_crop_and_resize"
        if output != x.shape[axis] or scale != 1 or crops:
            result = _resize_axis(result, axis, output, scale, roi, sampling)
    if result.dtype == x.dtype:
        return result
    if x.dtype.kind in "iu":
        bounds = np.iinfo(x.dtype)
        return np.clip(result, bounds.min, bounds.max).astype(x.dtype)
    return result.astype(x.dtype)


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
        outputs = integers(sizes)
        factors = [o / n for o, n in zip(outputs, lengths, strict=True)]
        if keep_aspect_ratio_policy != "stretch":
            factor = min(factors) if keep_aspect_ratio_policy == "not_larger" else max(factors)
            factors = [factor] * len(factors)
            outputs = [math.floor(factor * n + 0.5) for n in lengths]
    elif scales is not None and np.size(scales):
        factors = [float(s) for s in scales]
        outputs = [math.floor(f * n) for f, n in zip(factors, lengths, strict=True)]
    else:
        raise ModelError("Resize has neither scales nor sizes", "Give one of them.")
    regions = [(0.0, 1.0)] * len(along)
    if roi is not None and np.size(roi):
        bounds = [float(v) for v in roi]
        regions = list(zip(bounds[: len(along)], bounds[len(along) :], strict=True))
    sampling = Sampling(
        mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a, exclude_outside, extrapolation_value
    )
    return _resize(x, along, outputs, factors, regions, sampling)


@kernel("Resize", since=10)
@kernel("Upsample", since=9)
def resize_10(x: Array, scales: Array, *, mode: str = "nearest") -> Array:
    """Resize of version 10 and Upsample of version 9: coordinates are x / scale, nearest takes the floor."""
    factors = [float(s) for s in scales]
    outputs = [math.floor(f * n) for f, n in zip(factors, x.shape, strict=True)]
    sampling = Sampling(mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    return _resize(x, range(x.ndim), outputs, factors, [(0.0, 1.0)] * x.ndim, sampling)


@kernel("Upsample", since=7)
def upsample_7(x: Array, *, scales: Sequence[float], mode: str = "nearest") -> Array:
    """Upsample of version 7, whose scales are an attribute."""
    return resize_10(x, np.asarray(scales, np.float32), mode=mode)


@kernel("Upsample", since=1)
def upsample_1(x: Array, *, height_scale: float, width_scale: float, mode: str = "nearest") -> Array:
    """Upsample of version 1, for X [N, C, H, W]."""
    return resize_10(x, np.asarray([1, 1, height_scale, width_scale], np.float32), mode=mode)
