"""Granularity: which scale belongs to which element, checked once and then walked in cache-sized chunks.

Per tensor, per axis and blocked quantization are one case. The tensor is seen as (outer, axis, inner). The parameters
are seen as (1 or outer, ceil(axis / block), 1 or inner). Source: "quantization granularity" in QuantizeLinear 21.

Tests: `tests/ops/test_quantized_properties.py`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from onnxq.errors import ModelError
from onnxq.ops.quantized._types import Array, DType

CHUNK = 1 << 17
"""Elements worked on at once: 512 KiB of float32, so that every pass but the first reads the second-level cache."""


_ALL = slice(0, 1)


class Chunk(NamedTuple):
    """A run of memory, at most `CHUNK` elements, that is a box of the (outer, axis, inner) view."""

    flat: slice
    outer: slice
    axis: slice
    inner: slice


class Layout(NamedTuple):
    """How a tensor and its parameters lie together.

    Args:
        shape: The tensor as (outer, axis, inner).
        params: The parameters as (1 or outer, blocks, 1 or inner); (1, 1, 1) for per-tensor.
        block: Elements along the axis that share a parameter.

    """

    shape: tuple[int, int, int]
    params: tuple[int, int, int]
    block: int = 1

    @property
    def per_tensor(self) -> bool:
        """One scale for every element."""
        return self.params == (1, 1, 1)

    def chunks(self) -> list[Chunk]:
        """Cut the tensor into runs of memory, in order."""
        if not self.per_tensor:
            return list(self._boxes())
        size = math.prod(self.shape)
        runs = (slice(start, min(start + CHUNK, size)) for start in range(0, size, CHUNK))
        return [Chunk(run, _ALL, _ALL, run) for run in runs]

    def _boxes(self) -> Iterator[Chunk]:
        outer, axis, inner = self.shape
        if 0 in self.shape:
            return
        if axis * inner <= CHUNK:
            rows = CHUNK // (axis * inner)
            for o in range(0, outer, rows):
                yield self._box(o, min(o + rows, outer), 0, axis, 0, inner)
            return
        rows = max(1, CHUNK // inner)
        for o in range(outer):
            for d in range(0, axis, rows):
                for i in range(0, inner, CHUNK):
                    yield self._box(o, o + 1, d, min(d + rows, axis), i, min(i + CHUNK, inner))

    def _box(self, o: int, o_end: int, d: int, d_end: int, i: int, i_end: int) -> Chunk:
        start = (o * self.shape[1] + d) * self.shape[2] + i
        size = (o_end - o) * (d_end - d) * (i_end - i)
        return Chunk(slice(start, start + size), slice(o, o_end), slice(d, d_end), slice(i, i_end))

    def select(self, values: Array, chunk: Chunk) -> Array:
        """Return the parameters of a chunk, broadcastable to its box.

        Args:
            values: Parameters in the shape `params`.
            chunk: A box of the tensor.

        """
        outer = chunk.outer if self.params[0] > 1 else slice(None)
        inner = chunk.inner if self.params[2] > 1 else slice(None)
        if self.block == 1:
            axis: slice | Array = chunk.axis if self.params[1] > 1 else slice(None)
            return values[outer, axis, inner]
        return values[outer][:, np.arange(chunk.axis.start, chunk.axis.stop) // self.block, inner]

    def key(self, chunk: Chunk) -> tuple[object, ...]:
        """Say which parameters a chunk needs: chunks of equal key need equal ones."""
        rows = chunk.outer.stop - chunk.outer.start
        outer = chunk.outer.start if self.params[0] > 1 else None
        return rows, outer, chunk.axis.start, chunk.axis.stop, chunk.inner.start, chunk.inner.stop


_LOCAL = threading.local()


def scratch(size: int) -> Array:
    """Return a float32 buffer of at most `CHUNK` elements that belongs to this thread, and is reused by its next call.

    A fresh buffer of this size is fresh memory from the system each time, which costs as much as a pass over it.
    """
    buffer: Array | None = getattr(_LOCAL, "buffer", None)
    if buffer is None:
        buffer = _LOCAL.buffer = np.empty(CHUNK, np.float32)
    return buffer[:size]


def resolve_axis(operator: str, axis: int, rank: int) -> int:
    """Return a possibly negative axis as an index from the front.

    Raises:
        ModelError: The axis is outside [-rank, rank - 1].

    """
    if not -rank <= axis < rank:
        raise ModelError(f"{operator}: axis {axis} is outside [{-rank}, {rank - 1}] for a tensor of rank {rank}")
    return axis % rank


def resolve(operator: str, x: Array, scale: Array, zero_point: Array | None, axis: int, block_size: int) -> Layout:
    """Find the granularity from the shapes, and refuse shapes that would only fit by broadcasting.

    A scale of shape [1] counts as a scalar: real models have it and every engine takes it.

    Args:
        operator: Name for messages.
        x: The tensor; only its shape is read.
        scale: Scalar, 1-D along `axis`, or of the tensor's rank when `block_size` is given.
        zero_point: Of the scale's shape, or None.
        axis: Quantization axis; not read for per-tensor parameters.
        block_size: Elements per block along the axis, 0 when not blocked.

    Raises:
        ModelError: Shapes, axis and block size do not fit together.

    """
    single = scale.ndim <= 1 and scale.size == 1
    if (
        zero_point is not None
        and zero_point.shape != scale.shape
        and not (single and zero_point.ndim <= 1 and zero_point.size == 1)
    ):
        raise ModelError(
            f"{operator}: the zero point has shape {list(zero_point.shape)} and the scale {list(scale.shape)}; "
            "they must be the same"
        )
    if block_size:
        return _blocked(operator, x.shape, scale.shape, axis, block_size)
    if single:
        return Layout((1, 1, x.size), (1, 1, 1))
    if scale.ndim != 1:
        raise ModelError(
            f"{operator}: a scale of shape {list(scale.shape)} needs block_size; without it, it is a scalar or 1-D",
            hint="Set the attribute block_size, or give one scale per channel.",
        )
    axis = resolve_axis(operator, axis, x.ndim)
    if scale.shape[0] != x.shape[axis]:
        raise ModelError(
            f"{operator}: {scale.shape[0]} scales do not fit axis {axis} of the shape {list(x.shape)}, "
            f"which has {x.shape[axis]}"
        )
    return Layout(_folded(x.shape, axis), (1, scale.shape[0], 1))


def _blocked(operator: str, shape: tuple[int, ...], scale: tuple[int, ...], axis: int, block: int) -> Layout:
    if block < 0:
        raise ModelError(f"{operator}: block_size {block} is negative")
    if len(scale) != len(shape) or not shape:
        raise ModelError(
            f"{operator}: with block_size, scale and tensor have the same rank; "
            f"here they are {list(scale)} and {list(shape)}"
        )
    axis = resolve_axis(operator, axis, len(shape))
    expected = (*shape[:axis], -(-shape[axis] // block), *shape[axis + 1 :])
    if scale != expected:
        raise ModelError(
            f"{operator}: blocks of {block} along axis {axis} of {list(shape)} need a scale of shape "
            f"{list(expected)}, not {list(scale)}"
        )
    return Layout(_folded(shape, axis), _folded(expected, axis), block)


def _folded(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


class Expander:
    """Repeats parameters over the elements of a chunk, in a buffer of its own (one per thread).

    NumPy's loops over two contiguous arrays are vectorised; those over an array and a scalar are not (`fmax` is four
    times faster). Neighbouring chunks mostly need the same parameters, so the copy is kept until the key changes.
    """

    def __init__(self, layout: Layout, *values: tuple[Array, DType]) -> None:
        self._layout = layout
        self._values = [v.reshape(layout.params) for v, _ in values]
        size = min(CHUNK, math.prod(layout.shape))
        self._buffers = [np.empty(size, dtype) for _, dtype in values]
        self._key: tuple[object, ...] = ()

    def __call__(self, chunk: Chunk) -> list[Array]:
        """Return each parameter as a flat array with one value per element of the chunk."""
        shape = tuple(part.stop - part.start for part in (chunk.outer, chunk.axis, chunk.inner))
        size = math.prod(shape)
        key = self._layout.key(chunk)
        if key != self._key:
            self._key = key
            for value, buffer in zip(self._values, self._buffers, strict=True):
                np.copyto(buffer[:size].reshape(shape), self._layout.select(value, chunk))
        return [buffer[:size] for buffer in self._buffers]
