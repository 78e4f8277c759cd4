"""Operators that move elements without changing them: https://onnx.ai/onnx/operators (Reshape, Slice, Concat, ...).

Results are views of the input where NumPy can give one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onnxq.errors import ModelError
from onnxq.ir.shape_inference.slice_bounds import slice_bounds
from onnxq.ops.kernels.arrays import Array, integers, normalize_axes, normalize_axis
from onnxq.ops.kernels.registry import kernel


@kernel("Reshape", since=5)
def reshape(x: Array, shape: Array, *, allowzero: int = 0) -> Array:
    """Reshape X: -1 stands for the rest, 0 for the input's own dimension unless `allowzero`."""
    wanted = integers(shape)
    if not allowzero:
        wanted = [x.shape[i] if size == 0 else size for i, size in enumerate(wanted)]
    return x.reshape(wanted)


@kernel("Reshape", since=1)
def reshape_attribute(x: Array, *, shape: Sequence[int] = (), consumed_inputs: Sequence[int] = ()) -> Array:
    """Reshape of version 1, whose shape is an attribute."""
    return reshape(x, np.asarray(shape, np.int64))


@kernel("Transpose")
def transpose(x: Array, *, perm: Sequence[int] | None = None) -> Array:
    """Permute the axes; reverse them without `perm`."""
    return np.transpose(x, perm)


@kernel("Flatten")
def flatten(x: Array, *, axis: int = 1) -> Array:
    """Make a matrix whose columns begin at `axis`, from -rank to rank."""
    if not -x.ndim <= axis <= x.ndim:
        raise ModelError(f"axis {axis} is out of range for rank {x.ndim}", "Correct the attribute `axis`.")
    axis = axis + x.ndim if axis < 0 else axis
    rows = int(np.prod(x.shape[:axis], dtype=np.int64))
    columns = int(np.prod(x.shape[axis:], dtype=np.int64))
    return x.reshape(rows, columns)


@kernel("Squeeze", since=13)
def squeeze(x: Array, axes: Array | None = None) -> Array:
    """Drop axes of length 1: those given, or all."""
    return np.squeeze(x, axis=normalize_axes(axes, x.ndim))


@kernel("Squeeze", since=1)
def squeeze_attribute(x: Array, *, axes: Sequence[int] | None = None) -> Array:
    """Squeeze of versions 1 and 11, whose axes are an attribute."""
    return np.squeeze(x, axis=normalize_axes(axes, x.ndim))


@kernel("Unsqueeze", since=13)
def unsqueeze(x: Array, axes: Array) -> Array:
    """Insert axes of length 1, counted in the result."""
    return np.expand_dims(x, tuple(integers(axes)))


@kernel("Unsqueeze", since=1)
def unsqueeze_attribute(x: Array, *, axes: Sequence[int]) -> Array:
    """Unsqueeze of versions 1 and 11, whose axes are an attribute."""
    return np.expand_dims(x, tuple(axes))


@kernel("Concat", since=4)
def concat(*inputs: Array, axis: int) -> Array:
    """Join tensors along an axis."""
    return np.concatenate(inputs, axis=axis)


@kernel("Concat", since=1)
def concat_1(*inputs: Array, axis: int = 1) -> Array:
    """Concat of version 1, along axis 1 unless it says otherwise."""
    return np.concatenate(inputs, axis=axis)


def _cut(x: Array, sizes: Sequence[int], axis: int) -> tuple[Array, ...]:
    axis = normalize_axis(axis, x.ndim)
    if sum(sizes) != x.shape[axis]:
        raise ModelError(f"parts of {list(sizes)} do not add up to {x.shape[axis]}", "Correct `split`.")
    return tuple(np.split(x, np.cumsum(sizes)[:-1].tolist(), axis=axis))


def _equal_parts(x: Array, axis: int, count: int) -> list[int]:
    length = x.shape[normalize_axis(axis, x.ndim)]
    size = -(-length // count)
    return [min(size, max(length - size * i, 0)) for i in range(count)]


@kernel("Split", since=13)
def split(
    x: Array, sizes: Array | None = None, *, axis: int = 0, num_outputs: int | None = None, output_count: int = 1
) -> tuple[Array, ...]:
    """Cut a tensor along an axis, into parts of given sizes or into equal ones, the last of which may be smaller."""
    given = _equal_parts(x, axis, num_outputs or output_count) if sizes is None else integers(sizes)
    return _cut(x, given, axis)


@kernel("Split", since=1)
def split_attribute(
    x: Array,
    sizes: Array | None = None,
    *,
    axis: int = 0,
    split: Sequence[int] | None = None,
    output_count: int = 1,
) -> tuple[Array, ...]:
    """Split of versions 1 (sizes as input or attribute) to 11 (attribute only)."""
    given = integers(sizes) if sizes is not None else split
    return _cut(x, given or _equal_parts(x, axis, output_count), axis)


@kernel("Slice", since=10)
def slice_(x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None) -> Array:
    """Cut out part of a tensor; ends are exclusive, negative positions count from the end, steps may be negative."""
    first, last = integers(starts), integers(ends)
    along = range(len(first)) if axes is None else integers(axes)
    strides = [1] * len(first) if steps is None else integers(steps)
    index: list[slice] = [slice(None)] * x.ndim
    for start, end, axis, step in zip(first, last, along, strides, strict=True):
        axis = normalize_axis(axis, x.ndim)
        index[axis] = slice_bounds(start, end, step, x.shape[axis])
    return x[tuple(index)]


@kernel("Slice", since=1)
def slice_attribute(
    x: Array, *, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None = None
) -> Array:
    """Slice of version 1, whose bounds are attributes."""
    return slice_(x, np.asarray(starts), np.asarray(ends), None if axes is None else np.asarray(axes))


@kernel("Expand", since=8)
def expand(x: Array, shape: Array) -> Array:
    """Broadcast to a shape, both ways: a 1 in `shape` leaves the dimension as it is."""
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(integers(shape))))


@kernel("Tile", since=6)
def tile(x: Array, repeats: Array) -> Array:
    """Repeat along every axis."""
    return np.tile(x, integers(repeats))


@kernel("Tile", since=1)
def tile_1(x: Array, tiles: Array, axis: Array) -> Array:
    """Tile of version 1: so many times along one axis."""
    repeats = [1] * x.ndim
    repeats[normalize_axis(int(axis), x.ndim)] = int(tiles)
    return np.tile(x, repeats)


def _pad(x: Array, begin: Sequence[int], end: Sequence[int], mode: str, value: Any) -> Array:
    # Negative padding crops, before anything is added.
    x = x[tuple(slice(max(-b, 0), size - max(-e, 0)) for b, e, size in zip(begin, end, x.shape, strict=True))]
    widths = [(max(b, 0), max(e, 0)) for b, e in zip(begin, end, strict=True)]
    if mode == "constant":
        result = np.full([b + size + e for (b, e), size in zip(widths, x.shape, strict=True)], value, x.dtype)
        result[tuple(slice(b, b + size) for (b, _), size in zip(widths, x.shape, strict=True))] = x
        return result
    if mode not in ("edge", "reflect", "wrap"):
        raise ModelError(f"padding mode '{mode}' does not exist", "Use constant, edge, reflect or wrap.")
    numpy_pad: Any = np.pad
    return np.asarray(numpy_pad(x, widths, mode=mode))


@kernel("Pad", since=11)
def pad(
    x: Array, pads: Array, value: Array | None = None, axes: Array | None = None, *, mode: str = "constant"
) -> Array:
    """Add to (or with negative numbers crop from) both ends of axes."""
    amounts = integers(pads)
    begin, end = [0] * x.ndim, [0] * x.ndim
    along = normalize_axes(axes, x.ndim) if axes is not None else tuple(range(x.ndim))
    assert along is not None
    if len(amounts) != 2 * len(along):
        raise ModelError(f"pads {amounts} do not fit {len(along)} axes", "Give a begin and an end for each axis.")
    for i, axis in enumerate(along):
        begin[axis], end[axis] = amounts[i], amounts[len(along) + i]
    fill = x.dtype.type(0) if value is None or not np.size(value) else np.asarray(value).reshape(-1)[0]
    return _pad(x, begin, end, mode, fill)


@kernel("Pad", since=2)
def pad_attribute(x: Array, *, pads: Sequence[int], mode: str = "constant", value: float = 0.0) -> Array:
    """Pad of version 2, whose amounts and value are attributes."""
    return _pad(x, pads[: x.ndim], pads[x.ndim :], mode, value)


@kernel("Pad", since=1)
def pad_1(x: Array, *, paddings: Sequence[int], mode: str = "constant", value: float = 0.0) -> Array:
    """Pad of version 1, where the amounts have another name."""
    return _pad(x, paddings[: x.ndim], paddings[x.ndim :], mode, value)


@kernel("DepthToSpace")
def depth_to_space(x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    """Move blocks of channels of X [N, C, H, W] into space: [N, C / b², H b, W b]."""
    n, c, h, w = x.shape
    depth = c // blocksize**2
    if mode == "DCR":
        blocks = x.reshape(n, blocksize, blocksize, depth, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        blocks = x.reshape(n, depth, blocksize, blocksize, h, w).transpose(0, 1, 4, 2, 5, 3)
    return blocks.reshape(n, depth, h * blocksize, w * blocksize)


@kernel("SpaceToDepth")
def space_to_depth(x: Array, *, blocksize: int) -> Array:
    """Move blocks of space of X [N, C, H, W] into channels: [N, C b², H / b, W / b]."""
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // blocksize, blocksize, w // blocksize, blocksize).transpose(0, 3, 5, 1, 2, 4)
    return blocks.reshape(n, c * blocksize**2, h // blocksize, w // blocksize)


@kernel("Identity")
def identity(x: Any) -> Any:
    """Return the input itself."""
    return x


@kernel("ReverseSequence", since=10)
def reverse_sequence(x: Array, lengths: Array, *, batch_axis: int = 1, time_axis: int = 0) -> Array:
    """Reverse the first `lengths[b]` steps along the time axis for each b of the batch axis."""
    steps = np.arange(x.shape[time_axis])[:, None]
    count = np.asarray(lengths)[None, :]
    order = np.where(steps < count, count - 1 - steps, steps)
    shape = [1] * x.ndim
    shape[time_axis], shape[batch_axis] = order.shape
    order = order if time_axis < batch_axis else order.T
    return np.take_along_axis(x, order.reshape(shape), axis=time_axis)
