"""Sums of `x xᵀ` over rows, and the error of a layer's output that follows from them.

Let the weight of a layer `x Wᵀ` change by `D`. The squared error of the output, summed over all rows, is `tr(D H Dᵀ)`
with `H = XᵀX` (https://arxiv.org/abs/2208.11580, section 3). With H, no choice of scales or codes needs another run. H
is full, or of blocks of neighbouring columns on the diagonal, down to blocks of one.

Tests: `tests/rounding/test_saturation_limits.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike

from onnxq.calibration.im2col import Unfolding
from onnxq.ir.storage.scratch_file import Spool
from onnxq.runtime.blas_threads import single_threaded_blas

CHUNK_ELEMENTS = 1 << 18  # of rows that wait to be multiplied: 1 MB, or an eighth of H where that is more (float64)
CHUNK_ROWS = 1024


class ColumnBlocks(ABC):
    """Second moments of columns that are cut into blocks, in whatever form they are held.

    Attributes:
        mean: float64 `[groups, n]`.
        rows: How many rows were seen.

    """

    mean: np.ndarray
    rows: int

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """How many blocks there are, and columns of each."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Type of their elements."""

    @abstractmethod
    def diagonal(self) -> np.ndarray:
        """Return the second moment of each column, `[blocks, b]`."""

    @abstractmethod
    def product(self, cut: np.ndarray) -> np.ndarray:
        """Return the product of each block `[blocks, channels, b]` with H."""

    @property
    def n(self) -> int:
        """Elements that one output channel reads."""
        return int(self.mean.shape[1])

    def errors(self, difference: np.ndarray) -> np.ndarray:
        """Mean squared error of each output channel.

        Args:
            difference: What is added to the weight, `[channels, n]`, channels in the order of the groups.

        Returns:
            float64 `[channels]`: the diagonal of `D H Dᵀ`.

        """
        blocks = self.split(difference)
        per_block = self._errors(blocks)
        return np.asarray(per_block.reshape(len(self.mean), -1, blocks.shape[1]).sum(axis=1).reshape(-1))

    def _errors(self, cut: np.ndarray) -> np.ndarray:
        return np.asarray(np.einsum("pmb,pmb->pm", self.product(cut), cut))

    def split(self, rows: np.ndarray) -> np.ndarray:
        """Cut `[channels, n]` as H is cut: `[groups * blocks, channels of a group, b]`, of the type of H."""
        (count, size), groups = self.shape, len(self.mean)
        blocks = count // groups
        cut = np.zeros((groups, len(rows) // groups, blocks * size), self.dtype)
        cut[:, :, : self.n] = rows.reshape(groups, -1, self.n)
        cut = cut.reshape(groups, -1, blocks, size).transpose(0, 2, 1, 3)
        return np.ascontiguousarray(cut).reshape(groups * blocks, -1, size)

    def join(self, blocks: np.ndarray) -> np.ndarray:
        """Undo `split`."""
        groups, size = len(self.mean), self.shape[1]
        cut = blocks.reshape(groups, -1, blocks.shape[1], size).transpose(0, 2, 1, 3)
        return np.ascontiguousarray(cut.reshape(groups * blocks.shape[1], -1)[:, : self.n])


@dataclass(frozen=True)
class Gram(ColumnBlocks):
    """Mean of `x xᵀ` and of `x` over rows.

    Attributes:
        matrix: float64 or float32 `[groups * blocks, b, b]`, symmetric; the columns of a group are cut into blocks of
            `b`, the last one filled up with zeros.
        mean: float64 `[groups, n]`.
        rows: How many rows were seen.

    """

    matrix: np.ndarray
    mean: np.ndarray
    rows: int

    @property
    def shape(self) -> tuple[int, int]:
        """How many blocks there are, and columns of each."""
        return self.matrix.shape[0], self.matrix.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of their elements."""
        return self.matrix.dtype

    def diagonal(self) -> np.ndarray:
        """Return the second moment of each column, `[blocks, b]`."""
        return np.asarray(np.einsum("pbb->pb", self.matrix))

    def product(self, cut: np.ndarray) -> np.ndarray:
        """Return the product of each block `[blocks, channels, b]` with H."""
        return np.asarray(np.matmul(cut, self.matrix))


class Half:
    """Sums over the rows of one half. Rows wait until a fixed number is there, so that batching changes no bit."""

    def __init__(self, unfolding: Unfolding, block: int, dtype: DTypeLike = np.float64) -> None:
        groups, self.size = unfolding.groups, block
        self.groups = groups
        self.blocks = -(-unfolding.n // block)
        self.gram = np.zeros((groups * self.blocks, block, block), dtype)
        self.total = np.zeros(unfolding.columns)
        self.rows = 0
        most = block // 4 if self.gram.dtype == np.float64 else block // 2
        self.chunk = min(max(CHUNK_ELEMENTS // unfolding.columns, most, 16), CHUNK_ROWS)
        self.waiting = np.zeros((unfolding.columns, 0), np.float32)  # by column, as windows of pictures come
        self.filled = 0

    def add(self, rows: np.ndarray) -> None:
        """Take in float32 rows `[rows, columns]`."""
        self.rows += len(rows)
        while len(rows):
            if not self.waiting.size:
                # Sums in float32 are those of matrices, whose rows lie together: no element is copied on its own
                order: Literal["C", "F"] = "C" if self.gram.dtype == np.float64 else "F"
                self.waiting = np.empty((rows.shape[1], self.chunk), np.float32, order)
            part = rows[: self.chunk - self.filled]
            self.waiting[:, self.filled : self.filled + len(part)] = part.T
            self.filled += len(part)
            rows = rows[len(part) :]
            if self.filled == self.chunk:
                self.flush()

    def flush(self) -> None:
        """Multiply the rows that wait."""
        if self.filled:
            gram, total = self.sums()
            self.gram, self.total = gram, total
            self.filled = 0

    def finish(self) -> None:
        """Multiply the rows that wait once all are there, and release their room."""
        self.flush()
        self.waiting = self.waiting[:, :0].copy()

    def put_away(self, spool: Spool) -> None:
        """Move the larger sum out of memory."""
        self.finish()
        self.gram = spool.keep(self.gram)

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        """Return both sums with the rows that wait."""
        if not self.filled:
            return self.gram, self.total
        waiting = self.waiting[:, : self.filled].astype(self.gram.dtype, copy=False)
        total = self.total + waiting.sum(axis=1, dtype=np.float64)
        cut = waiting.reshape(self.groups, -1, self.filled)
        if self.blocks * self.size != cut.shape[1]:
            cut = np.pad(cut, ((0, 0), (0, self.blocks * self.size - cut.shape[1]), (0, 0)))
        if self.size == 1:
            return self.gram + np.square(cut).sum(axis=2).reshape(self.gram.shape), total
        cut = cut.reshape(-1, self.size, self.filled)
        with single_threaded_blas():
            gram = np.matmul(cut, cut.transpose(0, 2, 1))
        gram += self.gram
        return gram, total
