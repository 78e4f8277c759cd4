"""Normalisation: https://onnx.ai/onnx/operators/onnx__BatchNormalization.html, onnx__LayerNormalization.html, ..."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from onnxq.ops.kernels.arrays import (
    Array,
    NotCovered,
    at_least_float32,
    in_float32,
    normalize_axes,
    normalize_axis,
    per_channel,
)
from onnxq.ops.kernels.registry import kernel


def _apply_statistics(x: Array, parameters: Iterable[Array], epsilon: float) -> Array:
    """(x - mean) / sqrt(var + epsilon) * scale + shift, as one product and one sum; parameters broadcast to x."""
    wide, scale, shift, mean, var = map(at_least_float32, (x, *parameters))
    factor = scale / np.sqrt(var + var.dtype.type(epsilon))
    result: Array = wide * factor.astype(wide.dtype, copy=False)
    result += (shift - mean * factor).astype(wide.dtype, copy=False)
    return result.astype(x.dtype, copy=False)


def _train(
    x: Array, scale: Array, shift: Array, mean: Array, var: Array, epsilon: float, momentum: float
) -> tuple[Array, Array, Array, Array, Array]:
    """Normalise with the batch's own statistics; give Y, the running mean and variance, and the batch's."""
    axes = (0, *range(2, x.ndim))
    batch_mean = x.mean(axis=axes)
    batch_var = x.var(axis=axes)
    shaped = [per_channel(p, x.ndim) for p in (scale, shift, batch_mean, batch_var)]
    y = _apply_statistics(x, shaped, epsilon)
    keep = mean.dtype.type(momentum)
    running_mean = mean * keep + batch_mean.astype(mean.dtype) * (1 - keep)
    running_var = var * keep + batch_var.astype(var.dtype) * (1 - keep)
    return y, running_mean, running_var, batch_mean, batch_var


@kernel("BatchNormalization", since=14)
def batch_normalization(
    x: Array,
    scale: Array,
    b: Array,
    mean: Array,
    var: Array,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Array | tuple[Array, ...]:
    """Normalise X [N, C, ...] per channel with given statistics, or with the batch's when `training_mode` is set."""
    if training_mode:
        return _train(x, scale, b, mean, var, epsilon, momentum)[:3]
    return _apply_statistics(x, (per_channel(p, x.ndim) for p in (scale, b, mean, var)), epsilon)


@kernel("BatchNormalization", since=1)
def batch_normalization_7(
    x: Array,
    scale: Array,
    b: Array,
    mean: Array,
    var: Array,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
    is_test: int = 1,
    consumed_inputs: Sequence[int] = (),
    output_count: int = 1,
) -> Array | tuple[Array, ...]:
    """BatchNormalization of operator sets 1 to 13, where several outputs mean training.

    With `spatial = 0` there is one mean, variance, scale and shift for each element of [C, D1, ...].

    Raises:
        NotCovered: Training with `spatial = 0`.

    """
    if output_count > 1:
        if not spatial:
            raise NotCovered(
                "training with a mean for each element is not supported", "Export the model for inference."
            )
        return _train(x, scale, b, mean, var, epsilon, momentum)
    if spatial:
        return _apply_statistics(x, (per_channel(p, x.ndim) for p in (scale, b, mean, var)), epsilon)
    return _apply_statistics(x, (p.reshape(1, *x.shape[1:]) for p in (scale, b, mean, var)), epsilon)


def _standardize(x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array, Array]:
    """(x - mean) / sqrt(variance + epsilon) over axes; give it with the mean and 1 / sqrt(variance + epsilon)."""
    count = x.dtype.type(math.prod(x.shape[axis] for axis in axes))
    mean = np.add.reduce(x, axis=axes, keepdims=True) / count
    centred = x - mean
    if axes == (x.ndim - 1,):
        var = np.einsum("...i,...i->...", centred, centred)[..., None] / count  # no temporary of the squares
    else:
        var = np.add.reduce(centred * centred, axis=axes, keepdims=True) / count
    inverse = x.dtype.type(1) / np.sqrt(var + x.dtype.type(epsilon))
    centred *= inverse
    return centred, mean, inverse


@kernel("LayerNormalization", since=17)
def layer_normalization(
    x: Array,
    scale: Array,
    b: Array | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    output_count: int = 1,
) -> Array | tuple[Array, Array, Array]:
    """Normalise over the axes from `axis` on, in float32 at least; scale and shift broadcast to those axes."""
    axes = tuple(range(normalize_axis(axis, x.ndim), x.ndim))
    wide = at_least_float32(x)
    y, mean, inverse = _standardize(wide, axes, epsilon)
    if wide is not x:
        y = y.astype(x.dtype)
    y *= scale
    if b is not None:
        y += b
    return (y, mean, inverse) if output_count > 1 else y


@kernel("RMSNormalization", since=23)
def rms_normalization(x: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Array:
    """X / sqrt(mean(x²) + epsilon) * scale over the axes from `axis` on, in float32 at least."""
    axes = tuple(range(normalize_axis(axis, x.ndim), x.ndim))
    wide = at_least_float32(x)
    mean_square = np.mean(wide * wide, axis=axes, keepdims=True)
    result: Array = ((wide / np.sqrt(mean_square + wide.dtype.type(epsilon))).astype(x.dtype) * scale).astype(x.dtype)
    return result


@kernel("InstanceNormalization")
@in_float32
def instance_normalization(
    x: Array, scale: Array, b: Array, *, epsilon: float = 1e-5, consumed_inputs: Sequence[int] = ()
) -> Array:
    """Normalise every channel of every sample of X [N, C, ...] over its spatial axes."""
    y, _, _ = _standardize(x, tuple(range(2, x.ndim)), epsilon)
    y *= per_channel(scale, x.ndim)
    y += per_channel(b, x.ndim)
    return y


def _grouped(x: Array, groups: int, epsilon: float) -> Array:
    wide = at_least_float32(x)
    y, _, _ = _standardize(wide.reshape(x.shape[0], groups, -1), (2,), epsilon)
    return y.reshape(x.shape).astype(x.dtype, copy=False)


@kernel("GroupNormalization", since=21)
def group_normalization(
    x: Array, scale: Array, bias: Array, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> Array:
    """Normalise groups of channels of X [N, C, ...]; scale and shift have one entry a channel."""
    y = _grouped(x, num_groups, epsilon)
    y *= per_channel(scale, x.ndim)
    y += per_channel(bias, x.ndim)
    return y


@kernel("GroupNormalization", since=18)
def group_normalization_18(x: Array, scale: Array, bias: Array, *, num_groups: int, epsilon: float = 1e-5) -> Array:
    """GroupNormalization of version 18, whose scale and shift have one entry a group."""
    repeat = x.shape[1] // num_groups
    return group_normalization(
        x, np.repeat(scale, repeat), np.repeat(bias, repeat), num_groups=num_groups, epsilon=epsilon
    )


@kernel("LpNormalization")
@in_float32
def lp_normalization(x: Array, *, axis: int = -1, p: int = 2) -> Array:
    """X divided by its p-norm along an axis; 0 where the norm is 0."""
    norm = np.sum(np.abs(x), axis, keepdims=True) if p == 1 else np.sqrt(np.sum(x * x, axis, keepdims=True))
    result: Array = np.where(norm == 0, x.dtype.type(0), x / np.where(norm == 0, x.dtype.type(1), norm))
    return result


@kernel("MeanVarianceNormalization", since=9)
@in_float32
def mean_variance_normalization(x: Array, *, axes: Sequence[int] = (0, 2, 3)) -> Array:
    """(x - mean) / (standard deviation + 1e-9) over axes."""
    found = normalize_axes(axes, x.ndim)
    centred = x - np.mean(x, axis=found, keepdims=True)
    return np.asarray(centred / (np.sqrt(np.mean(centred * centred, axis=found, keepdims=True)) + x.dtype.type(1e-9)))


@kernel("LRN")
@in_float32
def lrn(x: Array, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Array:
    """X / (bias + alpha / size * sum of squares over `size` neighbouring channels) ** beta, for X [N, C, ...]."""
    before = (size - 1) // 2
    squares = np.zeros((x.shape[0], x.shape[1] + size - 1, *x.shape[2:]), x.dtype)
    np.multiply(x, x, out=squares[:, before : before + x.shape[1]])
    total = squares[:, : x.shape[1]].copy()
    for shift in range(1, size):
        total += squares[:, shift : shift + x.shape[1]]
    total *= x.dtype.type(alpha / size)
    total += x.dtype.type(bias)
    if beta == 0.75:  # two roots instead of a logarithm and an exponential
        root = np.sqrt(total)
        return np.asarray(x / (root * np.sqrt(root)))
    return np.asarray(x / np.power(total, x.dtype.type(beta)))


@kernel("Dropout", since=12)
def dropout(
    x: Array, ratio: Array | None = None, training_mode: Array | None = None, *, seed: int = 0
) -> tuple[Array, Array]:
    """Return X and a mask that keeps everything, as in inference.

    Raises:
        NotCovered: In training mode with a ratio above 0, which is random.

    """
    rate = 0.5 if ratio is None else float(ratio)
    if training_mode is not None and bool(training_mode) and rate > 0:
        raise NotCovered("Dropout in training mode is random")
    return x, np.ones(x.shape, np.bool_)


@kernel("Dropout", since=10)
def dropout_10(x: Array, *, ratio: float = 0.5) -> tuple[Array, Array]:
    """Dropout of versions 10 and 11, for inference only; the mask is all false, as in onnxruntime."""
    return x, np.zeros(x.shape, np.bool_)


@kernel("Dropout", since=1)
def dropout_1(
    x: Array, *, ratio: float = 0.5, is_test: int = 1, consumed_inputs: Sequence[int] = ()
) -> tuple[Array, Array]:
    """Dropout of versions 1 to 7, for inference; the mask has the type of X and is zero, as in onnxruntime."""
    return x, np.zeros(x.shape, x.dtype)
