"""Second moments of layer inputs, H = XᵀX over rows, from which the error of rounding follows.

H is kept in two halves, of even and of odd samples, so that a choice made on one can be judged on the other. It is full
up to a number of columns, beyond that of blocks of neighbouring input channels, and at last the diagonal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Self

import numpy as np
from numpy.typing import DTypeLike

from onnxq.calibration.gram import Gram, Half
from onnxq.calibration.im2col import Unfolding
from onnxq.calibration.statistic import Statistic
from onnxq.calibration.thinning import EVERYTHING, Thinning

ROWS_PER_ITEM = 1024
# Windows of an item for each column of H, however many groups there are, and their elements beyond. A depthwise Conv of
# 960 channels has nine columns and 8640 elements in a row: 1024 rows take longer than the model runs
WINDOWS_PER_COLUMN, LEAST_WINDOWS, WINDOW_ELEMENTS = 8, 128, 1 << 18
PADDINGS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
RANK = 3  # most spatial axes of a Conv


class LayerMoments:
    """H and the mean of one way to read a tensor, in two halves.

    The first rows of the first sample go to one half, its last rows to the other. Later samples go to the halves in
    turn. An item of a batch counts as a sample.

    Args:
        unfolding: How the layer reads the tensor.
        block: Columns of a block of H: all of a group for the full matrix, 1 for the diagonal.
        dtype: Of products and sums: float64, with which every processor gives the same, or float32.
        thinning: How many rows of an item are measured.
        extremes: Whether to measure `high` and `share`, which only limits for processors that saturate ask for.

    Attributes:
        before: How many samples stand in the data before the first one here.
        assumed: Whether H is not measured, so that nothing can be judged by it.
        high: Greatest value of each column, float32; -inf while unknown.
        share: Greatest share of each column in the largest magnitude of a row, float32; -inf while unknown.

    """

    assumed = False

    def __init__(
        self,
        unfolding: Unfolding,
        block: int,
        dtype: DTypeLike = np.float64,
        thinning: Thinning = EVERYTHING,
        *,
        extremes: bool = True,
    ) -> None:
        self.unfolding, self.block, self._extremes = unfolding, block, extremes
        self._most = thinning.rows(unfolding.n, rows_per_item(unfolding))
        self.items = self.before = 0
        self.high = np.full(unfolding.columns, -np.inf, np.float32)
        self.share = self.high.copy()
        self.halves = (Half(unfolding, block, dtype), Half(unfolding, block, dtype))

    def add(self, values: np.ndarray) -> None:
        """Take in a batch."""
        for rows in self.unfolding.rows(values, self._most):
            if rows.size and self._extremes:
                flat = rows.reshape(-1, rows.shape[-1])
                zero = np.float32(0)  # added, it makes 0.0 of -0.0, whatever the order they came in
                np.maximum(self.high, flat.max(axis=0) + zero, out=self.high)
                np.maximum(self.share, _shares(flat).max(axis=0) + zero, out=self.share)
            for half, part in halves_of(rows, self.before + self.items):
                self.halves[half].add(part)
            self.items += len(rows)

    @property
    def form(self) -> tuple[int, int, int]:
        """Columns of a block, columns, and groups: what has to be the same of moments that are merged."""
        return self.block, self.unfolding.columns, self.unfolding.groups

    def merge(self, other: LayerMoments) -> LayerMoments:
        """Return the moments of both; they must be of the same columns, groups and block."""
        if self.form != other.form:
            raise ValueError("second moments of different shapes cannot be merged")
        made = LayerMoments(self.unfolding, self.block)
        made.items = self.items + other.items
        made.high = np.maximum(self.high, other.high)
        made.share = np.maximum(self.share, other.share)
        for half, one, two in zip(made.halves, self.halves, other.halves, strict=True):
            (gram, total), (more, further) = one.sums(), two.sums()
            half.gram, half.total, half.rows = gram + more, total + further, one.rows + two.rows
        return made

    def fitted(self) -> Gram:
        """The half to make choices on; both where all samples of a shard are in the other."""
        return self._gram(self.halves[:1] if self.halves[0].rows or not self.before else self.halves)

    def held_out(self) -> Gram:
        """The half to judge them on; both where all samples of a shard are in the other."""
        return self._gram(self.halves[1:] if self.halves[1].rows or not self.before else self.halves)

    def total(self) -> Gram:
        """Both halves."""
        return self._gram(self.halves)

    def _gram(self, halves: Iterable[Half]) -> Gram:
        sums = [half.sums() for half in halves]
        rows = sum(half.rows for half in halves)
        gram = sum((gram for gram, _ in sums[1:]), sums[0][0]) / max(rows, 1)
        mean = sum((total for _, total in sums[1:]), sums[0][1]) / max(rows, 1)
        return Gram(gram, mean.reshape(self.unfolding.groups, -1), rows)


def rows_per_item(unfolding: Unfolding) -> int:
    """Return how many rows of an item are measured at most: of the windows of many groups, as many as H has use for."""
    if not unfolding.kernel:
        return ROWS_PER_ITEM
    wanted = max(WINDOWS_PER_COLUMN * unfolding.n, WINDOW_ELEMENTS // unfolding.columns, LEAST_WINDOWS)
    return min(wanted, ROWS_PER_ITEM)


def halves_of(items: np.ndarray, before: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield which half the rows of some items go to, 0 or 1, and those rows; see `LayerMoments`.

    Args:
        items: `[items, rows of an item, columns]`.
        before: How many items came before.

    """
    if not before and len(items):
        middle = (items.shape[1] + 1) // 2
        yield 0, items[0, :middle]
        yield 1, items[0, middle:]
        before, items = 1, items[1:]
    for offset in range(2):
        taken = items[offset::2]
        yield (before + offset) % 2, taken.reshape(-1, taken.shape[-1])


class InputMoments(Statistic):
    """The moments of one tensor for each way in which layers read it.

    Args:
        layers: Empty moments; of each way one.

    """

    key = "input_moments"

    def __init__(self, layers: Iterable[LayerMoments] = ()) -> None:
        self.layers = {layer.unfolding: layer for layer in layers}

    def add(self, values: np.ndarray) -> None:
        """Take in a batch."""
        for layer in self.layers.values():
            layer.add(values)

    def merge(self, other: Self) -> Self:
        """Return the moments of both; the sum is that of one pass, while a sample may be in the other half."""
        if self.layers.keys() != other.layers.keys():
            raise ValueError("second moments of different layers cannot be merged")
        return type(self)(layer.merge(other.layers[key]) for key, layer in self.layers.items())

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the state: a row of integers for each layer, and all sums in a row."""
        layers = list(self.layers.values())
        sums = [half.sums() for layer in layers for half in layer.halves]
        empty = np.zeros(0)
        return {
            "layers": np.array([_encode(layer) for layer in layers], np.int64).reshape(len(layers), -1),
            "grams": np.concatenate([empty, *(gram.reshape(-1) for gram, _ in sums)]),
            "totals": np.concatenate([empty, *(total for _, total in sums)]),
            "highs": np.concatenate([empty.astype(np.float32), *(layer.high for layer in layers)]),
            "shares": np.concatenate([empty.astype(np.float32), *(layer.share for layer in layers)]),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Take the state."""
        grams, totals, highs, shares = (arrays[key] for key in ("grams", "totals", "highs", "shares"))
        layers = []
        for row in arrays["layers"]:
            layer = _decode([int(number) for number in row])
            layer.high, highs = highs[: layer.high.size].copy(), highs[layer.high.size :]
            layer.share, shares = shares[: layer.share.size].copy(), shares[layer.share.size :]
            for half in layer.halves:
                half.gram, grams = grams[: half.gram.size].reshape(half.gram.shape).copy(), grams[half.gram.size :]
                half.total, totals = totals[: half.total.size].copy(), totals[half.total.size :]
            layers.append(layer)
        return cls(layers)


def _shares(rows: np.ndarray) -> np.ndarray:
    """Return each element of `[rows, columns]` by the largest magnitude of its row; a row of zeros stays as it is."""
    most = np.abs(rows).max(axis=1)  # one pass over short rows takes half the time of two
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(rows / np.where(most > 0, most, np.float32(1))[:, None])


def _encode(layer: LayerMoments) -> list[int]:
    u = layer.unfolding
    rank = len(u.kernel)
    spatial = [
        [*axes, *[0] * (RANK - rank)] for axes in (u.kernel, u.strides, u.dilations, u.pads[:rank], u.pads[rank:])
    ]
    counts = [layer.items, *(half.rows for half in layer.halves)]
    return [
        u.columns,
        u.groups,
        u.axis,
        PADDINGS.index(u.auto_pad),
        layer.block,
        *counts,
        rank,
        *(size for axes in spatial for size in axes),
    ]


def _decode(row: Sequence[int]) -> LayerMoments:
    columns, groups, axis, padding, block, items, *rows = row[:8]
    rank = row[8]
    kernel, strides, dilations, begin, end = (tuple(row[9 + RANK * i :][:rank]) for i in range(5))
    layer = LayerMoments(
        Unfolding(columns, groups, axis, kernel, strides, dilations, begin + end, PADDINGS[padding]), block
    )
    layer.items = items
    for half, count in zip(layer.halves, rows, strict=True):
        half.rows = count
    return layer
