"""Statistics of blocks of samples, added in one order however the samples were split into shards.

Sums of floats depend on their order. So the order is fixed. Samples are measured in blocks. The blocks of a group are
added from first to last, then the groups from first to last. The bounds of blocks and groups depend on the number of
samples alone. A block that cannot be added yet, since one before it is missing, is kept.

Tests: `tests/distributed/test_shard_sums.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from onnxq.calibration.second_moments import InputMoments
from onnxq.calibration.statistic import Statistic
from onnxq.calibration.stats import StatisticFactory, Stats

GROUP = 16  # blocks of a group
LEAST, MOST = GROUP, GROUP * GROUP  # blocks, as far as there are samples


@dataclass(frozen=True)
class Blocks:
    """How samples are cut into blocks.

    Attributes:
        samples: How many there are.

    """

    samples: int

    @property
    def count(self) -> int:
        """How many blocks there are: at most 16 up to 256 samples, then one for 16 samples, at most 256."""
        return min(max(min(self.samples, LEAST), -(-self.samples // GROUP)), MOST)

    def first(self, block: int) -> int:
        """Return the number of a block's first sample."""
        return block * self.samples // self.count

    def of(self, sample: int) -> int:
        """Return the block of a sample."""
        return bisect_right(range(self.count), sample, key=self.first) - 1

    def of_shard(self, shard: int, shards: int) -> range:
        """Return the blocks of a shard, counted from 0."""
        return range(shard * self.count // shards, (shard + 1) * self.count // shards)


BlockRange = tuple[int, int]  # the first block, and the one behind the last


class BlockSums:
    """Sums of blocks as far as they can be added in order.

    Args:
        blocks: How samples are cut.

    Attributes:
        pieces: By its span of blocks, a sum: of blocks of one group from its first, of whole groups from the first
            one, or of a single block.

    """

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self.pieces: dict[BlockRange, Stats] = {}

    def add(self, span: BlockRange, stats: Stats) -> None:
        """Take in a sum and add what can be added; `stats` may be changed.

        Raises:
            ValueError: One of the blocks is there already.

        """
        if any(span[0] < stop and start < span[1] for start, stop in self.pieces):
            raise ValueError(f"block {span[0]} is there twice")
        self.pieces[span] = stats
        while (found := self._addable()) is not None:
            left, right = found
            self.pieces[left[0], right[1]] = fold(self.pieces.pop(left), self.pieces.pop(right))

    def take_in(self, other: BlockSums) -> None:
        """Take in all sums of another, which may be changed.

        Raises:
            ValueError: One of the blocks is there already.

        """
        for span, stats in sorted(other.pieces.items()):
            self.add(span, stats)

    def _addable(self) -> tuple[BlockRange, BlockRange] | None:
        """Find two neighbours of which the next addition consists."""
        spans = sorted(self.pieces)
        for left, right in pairwise(spans):
            if left[1] == right[0] and (self._in_group(left, right) or self._groups(left, right)):
                return left, right
        return None

    def _in_group(self, left: BlockRange, right: BlockRange) -> bool:
        return not left[0] % GROUP and left[1] - left[0] < GROUP and right[1] - right[0] == 1

    def _groups(self, left: BlockRange, right: BlockRange) -> bool:
        """Whether the left ones are all groups from the first, and the right one is the whole group behind them."""
        whole = right[1] - right[0] == GROUP or (right[1] == self.blocks.count and not right[0] % GROUP)
        return left[0] == 0 and not left[1] % GROUP and whole

    @property
    def whole(self) -> Stats | None:
        """The sum of all blocks; None while one is missing."""
        return self.pieces.get((0, self.blocks.count))


def fold(total: Stats, more: Stats) -> Stats:
    """Return the sum of two statistics, which are emptied: no two sums of all tensors are in memory at a time."""
    for name in list(more.tensors):
        part = more.tensors.pop(name)
        total.tensors[name] = total.tensors[name].merge(part) if name in total else part
    total.samples += more.samples
    return total


def kinds_after(kinds: StatisticFactory, before: int) -> StatisticFactory:
    """Make the statistics of samples that so many stand before: second moments take them to halves in turn."""

    def made(name: str) -> Sequence[Statistic]:
        parts = kinds(name)
        for part in parts:
            for layer in part.layers.values() if isinstance(part, InputMoments) else ():
                layer.before = before
        return parts

    return made


class BlockMeter:
    """Hands a calibration new statistics at the start of each block; see `calibrate`.

    Args:
        blocks: How samples are cut.
        span: The blocks to measure.
        kinds: Makes the statistics of a tensor.

    """

    def __init__(self, blocks: Blocks, span: range, kinds: StatisticFactory) -> None:
        self.sums = BlockSums(blocks)
        self._kinds = kinds
        self._block = span.start

    def start(self) -> Stats:
        """Return empty statistics for the block at hand."""
        return Stats(kinds_after(self._kinds, self.sums.blocks.first(self._block)))

    def hand_over(self, stats: Stats) -> Stats:
        """Take the statistics of a block that is complete, and give those of the next; else the same."""
        blocks = self.sums.blocks
        if stats.samples < blocks.first(self._block + 1) - blocks.first(self._block):
            return stats
        self.sums.add((self._block, self._block + 1), stats)
        self._block += 1
        return self.start()
