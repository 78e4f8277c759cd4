"""Integer products as x86 processors without VNNI compute them: neighbours are added in 16 bits, and saturate.

onnxruntime has kernels for unsigned times signed bytes: GEMM, GEMV and symmetric convolutions of AVX2 and of AVX-512
without VNNI. They go through VPMADDUBSW, which adds two products of neighbours along the inner dimension,

    clip(a[2i] · b[2i] + a[2i + 1] · b[2i + 1], -32768, 32767)

and sums these pairs in 32 bits. `a` are the codes themselves: zero points are subtracted by sums of rows and columns,
which are exact. An odd last product stands alone. Both families give the same, whatever the number of rows and columns;
other pairs of types are exact. Source: mlas of onnxruntime, QgemmU8X8KernelAvx2.S, QgemvU8S8KernelAvx2.S,
ConvSymKernelAvx2.S and those for AVX-512; held against onnxruntime 1.32 in tests/ops/test_quantized_saturating.py.

Only two weights of one sign can leave 16 bits, and only those whose magnitudes add up to more than 128. So the exact
sum is computed first. The loss by saturation is summed over the pairs that can saturate with the largest codes of the
input.

Tests: `tests/ops/test_quantized_saturating.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from onnxq.ops.quantized._types import INT8, INT32, UINT8, Array

Arithmetic: TypeAlias = Literal["exact", "saturating"]

LARGEST, SMALLEST = 32767, -32768
HARMLESS = 128
"""Codes up to this one cannot saturate: 128 · (-128 - 128) = -32768."""

SLAB = 1 << 19
"""Weights looked at at once: 512 KiB."""

CHUNK = 1 << 16
"""Pairs times rows worked on at once: three buffers of 128 KiB, one of 256."""

SUMS = 1 << 17
"""Columns times rows worked on at once: 512 KiB."""

SPARSE = 8
"""Single columns are corrected if at most one of so many columns has pairs, else all of them."""

KEPT = 1 << 21
"""Bytes of memory that a thread keeps at most: fresh memory from the system costs as much as a pass over it."""

_ARITHMETIC: ContextVar[Arithmetic] = ContextVar("integer_arithmetic", default="exact")
_LOSSES: ContextVar[list[bool] | None] = ContextVar("saturation_losses", default=None)


@contextmanager
def integer_arithmetic(kind: Arithmetic) -> Iterator[None]:
    """Compute integer products inside the `with` block as processors of this kind do; outside they are exact."""
    token = _ARITHMETIC.set(kind)
    try:
        yield
    finally:
        _ARITHMETIC.reset(token)


@contextmanager
def losses_noted() -> Iterator[list[bool]]:
    """Yield a list that stays empty as long as no product inside the `with` block loses anything by saturation."""
    noted: list[bool] = []
    token = _LOSSES.set(noted)
    try:
        yield noted
    finally:
        _LOSSES.reset(token)


def host_arithmetic() -> Arithmetic:
    """Return the arithmetic of onnxruntime on the processor at hand."""
    from onnxq.targets.host import host_saturates  # imports onnxruntime

    return "saturating" if host_saturates() else "exact"


def saturates(left: Array, right: Array) -> bool:
    """Whether the product of two matrices goes through 16 bits now: uint8 times int8, where processors saturate."""
    return left.dtype == UINT8 and right.dtype == INT8 and _ARITHMETIC.get() == "saturating"


def subtract_lost(codes: Array, weights: Array, total: Array) -> None:
    """Take off an exact product what saturation takes off it.

    Args:
        codes: uint8 [M, K].
        weights: int8 [K, N].
        total: int32 [M, N]; changed.

    """
    if codes.size:
        lost = Lost(weights, codes.max(axis=0))
        if lost:
            lost.subtract(codes.T, total.T)


class _Pairs(NamedTuple):
    """Pairs of weights that can saturate: the first of every column, then the second of every column, and so on.

    Attributes:
        first: Of the two rows of each pair, the upper one, [P].
        upper, lower: Magnitudes of the two weights, which have one sign; uint16 [P, 1].
        limit: The largest magnitude that does not saturate; uint16 [P, 1].
        sign: 1 or -1; int16 [P, 1].
        starts: Where the first pairs start, the second ones, …; and P.
        columns: Columns that have pairs, in order.
        place: Where each of them stands in every round in which it has a pair.

    """

    first: Array
    upper: Array
    lower: Array
    limit: Array
    sign: Array
    starts: Array
    columns: Array
    place: Array


class Lost:
    """The loss by saturation in the sums of a product; false if there is none.

    Args:
        weights: int8 [K, N]; rows 0 and 1 are neighbours, rows 2 and 3, …
        highest: uint8 [K]: the largest code that each row of weights meets.

    """

    def __init__(self, weights: Array, highest: Array) -> None:
        most = highest.astype(INT32)[: len(weights) // 2 * 2]
        risky = weights.size and most.max(initial=0) > HARMLESS
        self._pairs = _at_risk(weights, most) if risky else None

    def __bool__(self) -> bool:
        return self._pairs is not None

    def subtract(self, codes: Array, total: Array) -> None:
        """Take it off.

        Args:
            codes: uint8 [K, M].
            total: int32 [N, M]; changed.

        """
        pairs, length = self._pairs, codes.shape[1]
        if pairs is None or not length:
            return
        few = SPARSE * pairs.place.size < len(total)
        place = pairs.place
        if not few:  # behind the sums, there is a row of zeros
            place = np.full(len(total), place.size)
            place[pairs.columns] = pairs.place
        rows = min(length, max(SUMS // pairs.place.size, 32))
        buffers, noted = _Buffers(pairs, rows), _LOSSES.get()
        for start in range(0, length, rows):
            part = slice(start, start + rows)
            lost = _excess(pairs, codes[:, part].astype(np.uint16, order="C"), buffers)[place]
            if noted is not None and not noted and lost.any():
                noted.append(True)
            if few:
                total[pairs.columns, part] -= lost
            else:
                _subtract(total[:, part], lost)


def _subtract(target: Array, values: Array) -> None:
    """Take values off a matrix; NumPy is some times faster where rows of the result lie in one piece."""
    if target.strides[0] < target.strides[1]:
        target, values = target.T, values.T
    np.subtract(target, values, out=target)


def _at_risk(weights: Array, highest: Array) -> _Pairs | None:
    """Find the pairs that can saturate with the largest codes."""
    pair, column, sign = _candidates(weights, highest)
    rows = 2 * pair
    limit = np.minimum(sign, 0)
    np.subtract(LARGEST, limit, out=limit)
    upper, lower = weights[rows, column] * sign, weights[rows + 1, column] * sign
    kept = np.flatnonzero(upper * highest[rows] + lower * highest[rows + 1] > limit)
    if not kept.size:
        return None
    column = column[kept]
    # NumPy sorts 16 bits by radix
    by_column = np.argsort(column.astype(np.uint16 if weights.shape[1] <= 1 << 16 else np.uint32), kind="stable")
    starts, columns, place, order = _rounds(column[by_column])
    kept = kept[by_column[order]]
    upper, lower, limit = (values[kept].astype(np.uint16)[:, None] for values in (upper, lower, limit))
    return _Pairs(rows[kept], upper, lower, limit, sign[kept].astype(np.int16)[:, None], starts, columns, place)


def _candidates(weights: Array, highest: Array) -> tuple[Array, Array, Array]:
    """Find pairs that may saturate, and some that don't, by sums of halves, which fit a byte.

    Returns:
        Numbers of pairs, numbers of columns, and signs as int32.

    """
    width = weights.shape[1]
    most = np.maximum(highest[0::2], highest[1::2])[:, None]
    # weights whose magnitudes add up to m have halves, rounded down, of at least m / 2 - 1, or at most -m / 2
    above = np.minimum(LARGEST // np.maximum(most, 1) // 2, 127).astype(INT8)
    below = np.maximum(-((-SMALLEST // np.maximum(most, 1) + 2) // 2), -128).astype(INT8)
    step = max(1, SLAB // (2 * width))
    found, signs = [], []
    for start in range(0, len(most), step):
        half = np.right_shift(weights[2 * start : 2 * min(start + step, len(most))], 1)
        sums = np.add(half[0::2], half[1::2], out=half[0::2])
        near = sums >= above[start : start + step]
        near |= sums <= below[start : start + step]
        places = np.flatnonzero(near)
        signs.append(np.sign(sums.ravel()[places]))
        found.append(places + start * width)
    places = np.concatenate(found)
    pair = places // width
    return pair, places - pair * width, np.concatenate(signs).astype(INT32)


def _rounds(column: Array) -> tuple[Array, Array, Array, Array]:
    """Order pairs, sorted by column, so that those next to each other belong to different columns.

    Returns:
        `starts`, `columns` and `place` of `_Pairs`, and the order.

    """
    each = np.arange(column.size + 1)
    ends = np.concatenate((np.flatnonzero(column[1:] != column[:-1]), each[-2:-1]))
    counts = ends.copy()
    counts[1:] -= ends[:-1]
    counts[0] += 1
    by_count = np.argsort(-counts, kind="stable")
    place = np.empty_like(by_count)
    place[by_count] = each[: by_count.size]
    sizes = np.bincount(counts)[:0:-1].cumsum()[::-1]  # how many columns have a first pair, a second one, …
    starts = np.concatenate((each[:1], sizes.cumsum()))
    turn = each[:-1] - (ends + 1 - counts).repeat(counts)
    order = np.empty_like(turn)
    order[starts[turn] + place.repeat(counts)] = each[:-1]
    return starts, column[ends], place, order


_LOCAL = threading.local()


class _Buffers:
    """Memory for a chunk of pairs and for sums, which belongs to this thread and is used again by its next product."""

    def __init__(self, pairs: _Pairs, rows: int) -> None:
        self.pairs = min(max(1, CHUNK // rows), pairs.first.size)
        chunk, sums = self.pairs * rows, (pairs.place.size + 1) * rows
        size = 4 * (sums + chunk) + 2 * 3 * chunk
        kept: Array | None = getattr(_LOCAL, "buffer", None)
        memory = kept if kept is not None and kept.size >= size else np.empty(size, UINT8)
        if size <= KEPT:
            _LOCAL.buffer = memory
        self._sums = memory[: 4 * sums].view(INT32)
        self._wide = memory[4 * sums : 4 * (sums + chunk)].view(INT32)
        self._narrow = memory[4 * (sums + chunk) : size].view(np.uint16).reshape(3, chunk)

    def take(self, pairs: int, rows: int) -> tuple[Array, Array, Array, Array]:
        """Return three arrays uint16 [pairs, rows], and one of int32."""
        size, shape = pairs * rows, (pairs, rows)
        first, second, third = (line[:size].reshape(shape) for line in self._narrow)
        return first, second, third, self._wide[:size].reshape(shape)

    def zeros(self, columns: int, rows: int) -> Array:
        """Return zeros, int32 [columns, rows]."""
        sums = self._sums[: columns * rows].reshape(columns, rows)
        sums.fill(0)
        return sums


def _excess(pairs: _Pairs, codes: Array, buffers: _Buffers) -> Array:
    """Sum what the pairs have beyond their limits, with their signs, for codes uint16 [K, M].

    Returns:
        int32 [columns + 1, M], in the order of rounds, and zeros last.

    """
    rows = codes.shape[1]
    sums = buffers.zeros(pairs.place.size + 1, rows)
    for start in range(0, pairs.first.size, buffers.pairs):
        part = slice(start, min(start + buffers.pairs, pairs.first.size))
        total, other, limit, wide = buffers.take(part.stop - start, rows)
        np.take(codes, pairs.first[part], axis=0, out=total, mode="clip")
        np.multiply(total, pairs.upper[part], out=total)
        np.take(codes, pairs.first[part] + 1, axis=0, out=other, mode="clip")
        np.multiply(other, pairs.lower[part], out=other)
        np.add(total, other, out=total)  # at most 255 · 256
        np.copyto(limit, pairs.limit[part])  # NumPy is faster with two arrays of one shape
        np.maximum(total, limit, out=total)
        np.subtract(total, limit, out=total)
        signed = total.view(np.int16)
        np.multiply(signed, pairs.sign[part], out=signed)
        np.copyto(wide, signed)
        _add_rounds(pairs.starts, start, wide, sums)
    return sums


def _add_rounds(starts: Array, start: int, values: Array, sums: Array) -> None:
    """Add the values of pairs from `start` on to the sums of their columns, a round at a time."""
    end = start + len(values)
    turn = int(np.searchsorted(starts, start, side="right")) - 1
    at = start
    while at < end:
        stop = min(int(starts[turn + 1]), end)
        place = at - int(starts[turn])
        part = sums[place : place + stop - at]
        np.add(part, values[at - start : stop - start], out=part)
        at, turn = stop, turn + 1
