"""However blocks are split into shards and in whatever order these are merged, every bit is that of one run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.calibration.blocks import GROUP, MOST, BlockMeter, Blocks, BlockSums
from onnxq.calibration.channel_stats import ChannelStats
from onnxq.calibration.im2col import Unfolding
from onnxq.calibration.second_moments import InputMoments, LayerMoments
from onnxq.calibration.stats import Stats, basic_kinds
from onnxq.calibration.stats_file import pack_stats
from onnxq.calibration.weighted_histogram import WeightedHistogram


def kinds(name):
    layers = [LayerMoments(Unfolding(5), 5 if name == "x" else 2)]
    return *basic_kinds(name), WeightedHistogram([1, 2, 3, 4, 5]), ChannelStats(-1), InputMoments(layers)


def sample(number: int) -> np.ndarray:
    """Give values whose magnitudes differ widely, so that the order of additions shows."""
    random = np.random.default_rng(number)
    rows = int(random.integers(1, 9))
    return (random.standard_normal((1, rows, 5)) * 10.0 ** random.integers(-4, 5)).astype(np.float32)


def measured(blocks: Blocks, span: range) -> BlockSums:
    meter = BlockMeter(blocks, span, kinds)
    stats = meter.start()
    for number in range(blocks.first(span.start), blocks.first(span.stop)):
        stats.add("x", sample(number))
        if number % 3 == 0:  # as a value in a branch that not every sample takes
            stats.add("branch", sample(number))
        stats.samples += 1
        stats = meter.hand_over(stats)
    assert not stats.samples
    return meter.sums


def state(stats: Stats | None) -> list[tuple[str, bytes]]:
    assert stats is not None
    return [(key, array.tobytes()) for key, array in sorted(pack_stats(stats).items())] + [("n", bytes(stats.samples))]


@settings(max_examples=10, deadline=None)
@given(st.sampled_from([1, 2, 15, 16, 17, 40, 257, 300]), st.data())
def test_shards_add_up_to_one_run(samples, data):
    blocks = Blocks(samples)
    whole = measured(blocks, range(blocks.count)).whole
    cuts = data.draw(st.sets(st.integers(1, blocks.count), max_size=9)) | {0, blocks.count}
    spans = [range(start, stop) for start, stop in zip(sorted(cuts), sorted(cuts)[1:], strict=False)]
    sums = BlockSums(blocks)
    for span in data.draw(st.permutations(spans)):
        pieces = list(measured(blocks, span).pieces.items())
        for piece, stats in data.draw(st.permutations(pieces)):
            sums.add(piece, stats)
    assert list(sums.pieces) == [(0, blocks.count)]
    assert state(sums.whole) == state(whole)
    assert whole is not None
    assert whole.samples == samples


def test_the_order_of_additions_would_show():
    parts = [measured(Blocks(20), range(block, block + 1)).pieces[block, block + 1] for block in range(16)]
    forth, back = parts[0], parts[-1]
    for part in parts[1:]:
        forth = forth.merge(part)
    for part in parts[-2::-1]:
        back = back.merge(part)
    assert state(forth) != state(back)


@given(st.integers(1, 100_000))
def test_blocks_cover_all_samples_once(samples):
    blocks = Blocks(samples)
    firsts = [blocks.first(block) for block in range(blocks.count + 1)]
    assert (firsts[0], firsts[-1]) == (0, samples)
    assert firsts == sorted(set(firsts))
    assert min(samples, GROUP) <= blocks.count <= MOST
    assert blocks.of(samples - 1) == blocks.count - 1


@given(st.integers(1, 3000), st.integers(1, 256))
def test_shards_share_all_blocks(samples, shards):
    blocks = Blocks(samples)
    spans = [blocks.of_shard(shard, shards) for shard in range(shards)]
    assert [block for span in spans for block in span] == list(range(blocks.count))
    assert shards > blocks.count or all(spans)


def test_a_block_that_is_there_twice_is_refused():
    sums = measured(Blocks(20), range(3, 5))
    with pytest.raises(ValueError, match="block 4 is there twice"):
        sums.add((4, 5), Stats())


def test_samples_go_to_the_halves_by_their_place_in_the_data():
    blocks = Blocks(40)
    whole = measured(blocks, range(blocks.count)).whole
    assert whole is not None
    layer = whole["x"][InputMoments].layers[Unfolding(5)]
    plain = LayerMoments(Unfolding(5), 5)
    for number in range(40):
        plain.add(sample(number))
    assert [half.rows for half in layer.halves] == [half.rows for half in plain.halves]
    np.testing.assert_allclose(layer.fitted().matrix, plain.fitted().matrix, rtol=1e-12)
