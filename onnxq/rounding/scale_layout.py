"""The layout of a weight's scales (tensor, channel, block), and their least-squares fit in closed form.

Tests: `tests/rounding/test_jobs.py`.
"""

from __future__ import annotations

import numpy as np

from onnxq.calibration.qparams import TINY
from onnxq.rounding.coordinate_descent import Bounds, nearest
from onnxq.rounding.saturation_limits import PairLimits

CANDIDATES = 40
DEPTH, DEPTH_BELOW_8_BITS = 0.5, 0.75  # how much smaller than the covering scale candidates get
TIE = 1e-9  # relative: no choice hangs on the last bits of a sum
PIECE = 1 << 16  # elements at a time, so that temporaries stay in the cache


class ScaleLayout:
    """Scales of rows `[channels, n]`: one a channel, one for all, or one for each block of a row.

    Scales are float64 `[channels, blocks]`, or `[1, 1]` for all; `shaped` gives them as they are exported.

    Args:
        shape: Of the rows.
        per_tensor: One scale for all.
        block_size: Consecutive elements that share a scale; None for whole rows.

    Raises:
        ValueError: Blocks are asked for together with one scale for all, or are smaller than one element.

    """

    def __init__(self, shape: tuple[int, ...], per_tensor: bool = False, block_size: int | None = None) -> None:
        if block_size is not None and (per_tensor or block_size < 1):
            raise ValueError(f"blocks of {block_size} elements do not go with one scale for all")
        self.channels, self.n = shape
        self.per_tensor = per_tensor
        self.block_size = block_size
        self.block = min(block_size or self.n, self.n) or 1
        self.blocks = -(-self.n // self.block) or 1

    @classmethod
    def of(cls, shape: tuple[int, ...], scales: np.ndarray) -> ScaleLayout:
        """Recognise the layout of exported scales; blocks must divide the row evenly, but for the last."""
        if scales.ndim == 2:
            return cls(shape, block_size=-(-shape[1] // scales.shape[1]))
        return cls(shape, per_tensor=scales.shape[0] != shape[0])

    def shaped(self, scales: np.ndarray) -> np.ndarray:
        """Return float32 scales as they are exported: `[channels]`, `[1]`, or `[channels, blocks]`."""
        return scales.astype(np.float32) if self.block_size else scales[:, 0].astype(np.float32)

    def floor(self, minimum: np.ndarray | None) -> np.ndarray:
        """Return least scales, broadcasting against the scales."""
        if minimum is None:
            return np.zeros((1, 1))
        floor = np.asarray(minimum, np.float64).reshape(-1, 1)
        # float32 must not round a scale to below its minimum
        floor = np.nextafter(floor.astype(np.float32), np.float32(np.inf)).astype(np.float64) * (floor > 0)
        return floor.max(keepdims=True) if self.per_tensor else floor

    def expand(self, scales: np.ndarray) -> np.ndarray:
        """Return the scale of each element, `[channels, n]`."""
        scales = scales.reshape(-1, self.blocks)
        wide = np.repeat(scales, self.block, axis=1)[:, : self.n] if self.blocks > 1 else scales
        return np.broadcast_to(wide, (self.channels, self.n))

    def peak(self, elements: np.ndarray) -> np.ndarray:
        """Return the greatest element under each scale, 0 where there is none."""
        return self._reduce(np.maximum, elements)

    def total(self, elements: np.ndarray) -> np.ndarray:
        """Sum the elements under each scale."""
        return self._reduce(np.add, elements)

    def _reduce(self, operation: np.ufunc, elements: np.ndarray) -> np.ndarray:
        if not elements.size:
            return np.zeros((1 if self.per_tensor else self.channels, self.blocks))
        if self.per_tensor:
            return np.asarray(operation.reduce(elements, axis=None)).reshape(1, 1)
        return np.asarray(operation.reduceat(elements, np.arange(0, self.n, self.block), axis=1))

    def least_predicted(
        self,
        rows: np.ndarray,
        weights: np.ndarray,
        covering: np.ndarray,
        limit: int,
        reach: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the scales of least error to be expected after error feedback.

        An element under scale s has an error of `s² / 12` on average. A clipped one adds the square of its distance
        from the range. Each counts by its column's weight.

        Args:
            rows: `[channels, n]`.
            weights: Cost of a squared error in each column, `[groups, n]`: `Feedback.weights`.
            covering: Scales that clip nothing.
            limit: Greatest code.
            reach: The scale below which each element is clipped, where that is not its size over `limit` alone.

        """
        factors = _factors(limit)
        magnitude = np.abs(rows) / self.expand(covering * limit) if reach is None else reach / self.expand(covering)
        channel, column = np.nonzero(magnitude > factors[-1])
        magnitude = magnitude[channel, column]
        weight = weights[channel // max(self.channels // len(weights), 1), column]
        if reach is not None:  # what a scale leaves of a code that its neighbour limits
            weight = weight * np.square(rows[channel, column] / (reach[channel, column] * limit))
        # The first candidate that clips the element; it is clipped by all that follow
        first = CANDIDATES - np.searchsorted(factors[::-1], magnitude)
        place = (0 if self.per_tensor else channel * self.blocks + column // self.block) * CANDIDATES + first
        size = covering.size * CANDIDATES
        clipped = [
            np.bincount(place, share, size + 1)[:size].reshape(*covering.shape, CANDIDATES).cumsum(axis=-1)
            for share in (weight, weight * magnitude, weight * magnitude**2)
        ]
        wide = np.repeat(weights, self.channels // len(weights), axis=0)
        costs = self.total(wide)[..., None] * factors**2 / (12 * limit**2)
        costs = costs + clipped[2] - 2 * factors * clipped[1] + factors**2 * clipped[0]
        chosen = (costs <= costs.min(axis=-1, keepdims=True) * (1 + TIE)).argmax(axis=-1)
        return storable(covering * factors[chosen])

    def least_error(
        self, rows: np.ndarray, covering: np.ndarray, limit: int, floor: np.ndarray, pairs: PairLimits | None = None
    ) -> np.ndarray:
        """Return the scales of least squared error when elements are rounded to nearest, the larger one at a tie."""
        candidates = storable(np.maximum(covering * _factors(limit)[:, None, None], floor))
        costs = np.zeros(candidates.shape)
        height = max(PIECE // max(self.n, 1), 1)
        for start in range(0, self.channels, height):
            part = rows[start : start + height]
            own = slice(None) if self.per_tensor else slice(start, start + height)
            layout = ScaleLayout(part.shape, self.per_tensor, self.block_size)
            within = None if pairs is None else pairs.taken(np.arange(start, start + len(part)), self.channels)
            for index, scales in enumerate(candidates[:, own]):
                steps = layout.expand(scales)
                costs[index, own] += layout.total(
                    np.square(nearest(part, steps, code_bounds(part, steps, limit, within)) * steps - part)
                )
        chosen = (costs <= costs.min(axis=0) * (1 + TIE)).argmax(axis=0)
        return np.asarray(np.take_along_axis(candidates, chosen[None], axis=0)[0])


def code_bounds(rows: np.ndarray, steps: np.ndarray, limit: int, pairs: PairLimits | None) -> Bounds:
    """Return the least and the greatest code: of all elements, or of each where neighbours limit one another."""
    return (-limit, limit) if pairs is None else pairs.bounds(rows, steps)


def _factors(limit: int) -> np.ndarray:
    """Return the candidates relative to the covering scale, the largest first; denser near it."""
    depth = DEPTH if limit >= 127 else DEPTH_BELOW_8_BITS
    return np.asarray(1 - depth * np.linspace(0, 1, CANDIDATES) ** 2)


def storable(scales: np.ndarray) -> np.ndarray:
    """Round scales to what a file holds: normal positive float32, 1 for 0; as float64."""
    return np.where(scales > 0, np.maximum(scales, TINY), 1.0).astype(np.float32).astype(np.float64)
