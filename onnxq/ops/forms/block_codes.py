"""A weight whose elements share a scale and a zero point by blocks, and how MatMulNBits reads it.

Tests: `tests/ops/test_stored_weights.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class BlockCodes:
    """Unsigned codes with scales and zero points: an element is `scale * (code - zero)`.

    Attributes:
        codes: uint8, of the weight's shape.
        scales: float32, of the weight's shape but along the one axis of the blocks, where it has as many as there are.
        zeros: uint8, of the shape of the scales.

    """

    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray

    @classmethod
    def symmetric(cls, codes: np.ndarray, scales: np.ndarray, bits: int) -> BlockCodes:
        """Return signed codes of so many bits as unsigned ones, with zero points in the middle."""
        middle = 1 << (bits - 1)
        unsigned = (codes.astype(np.int16) + middle).astype(np.uint8)
        return cls(unsigned, scales, np.full(scales.shape, middle, np.uint8))

    @classmethod
    def joined(cls, parts: Sequence[BlockCodes], axis: int) -> BlockCodes:
        """Return the codes of several parts of a weight, one behind the other along an axis."""
        if len(parts) == 1:
            return parts[0]
        arrays = zip(*((part.codes, part.scales, part.zeros) for part in parts), strict=True)
        return cls(*(np.concatenate(each, axis=axis) for each in arrays))

    def kept(self, keep: Callable[[np.ndarray], np.ndarray]) -> BlockCodes:
        """Return the same with arrays that something has put out of memory."""
        return BlockCodes(keep(self.codes), keep(self.scales), keep(self.zeros))

    def transposed(self) -> BlockCodes:
        """Return the same of the transposed matrix."""
        return BlockCodes(self.codes.T, self.scales.T, self.zeros.T)

    def negated(self, bits: int) -> BlockCodes:
        """Return the same of the negative weight."""
        top = np.uint8(2**bits - 1)
        return BlockCodes(top - self.codes, self.scales, top - self.zeros)

    def dequantized(self, axis: int, block_size: int) -> np.ndarray:
        """Return the float32 weight that the codes stand for.

        Args:
            axis: The axis of the blocks.
            block_size: Elements of a block; the last one may have fewer.

        """
        size = self.codes.shape[axis]
        place = np.arange(size) // block_size
        scales, zeros = (np.take(array, place, axis=axis) for array in (self.scales, self.zeros))
        return scales * (self.codes.astype(np.float32) - zeros.astype(np.float32))


def pack_bits(values: np.ndarray, bits: int) -> np.ndarray:
    """Pack unsigned values of few bits along the last axis, the first in the low bits, filled up with zeros.

    Args:
        values: uint8 `[..., n]`.
        bits: 2, 4 or 8.

    Returns:
        uint8 `[..., ceil(n * bits / 8)]`.

    """
    if bits == 8:
        return values
    count = 8 // bits
    missing = -values.shape[-1] % count
    full = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)]) if missing else values
    packed = full[..., 0::count].copy()
    for place in range(1, count):
        packed |= full[..., place::count] << np.uint8(place * bits)
    return packed
