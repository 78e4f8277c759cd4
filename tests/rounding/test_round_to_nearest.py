"""Large weights in blocks get the bits that the whole gets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxq.ir.storage.scratch_file import Spool
from onnxq.rounding import round_to_nearest
from onnxq.rounding.round_to_nearest import nearest_codes
from onnxq.rounding.weights import WeightRows, WeightSpec, _nearest


@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    seed=st.integers(0, 99),
    block=st.integers(1, 40),
    with_floor=st.booleans(),
    bits=st.sampled_from([7, 8]),
    data=st.data(),
)
def test_blocks_give_the_bits_of_the_whole(tmp_path_factory, shape, seed, block, with_floor, bits, data):
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))
    rng = np.random.default_rng(seed)
    weight = (rng.standard_normal(shape) * 10.0 ** rng.integers(-40, 30)).astype(np.float32)
    weight[rng.random(shape) < 0.3] = 0
    rows = WeightRows(weight, axes)
    floor = (rng.random(rows.scale_shape) + 0.001).astype(np.float32) if with_floor else None
    expected = rows.restore(
        *_nearest(rows.array(), None if floor is None else rows.floor(floor), WeightSpec(axes, bits))
    )
    before, round_to_nearest.BLOCK = round_to_nearest.BLOCK, block
    try:
        with Spool(tmp_path_factory.getbasetemp()) as spool:
            found = nearest_codes(weight, axes, floor, spool, 2 ** (bits - 1) - 1)
    finally:
        round_to_nearest.BLOCK = before
    assert found is not None
    for one, other in zip(expected, found, strict=True):
        assert (one.dtype, one.shape, one.tolist()) == (other.dtype, other.shape, other.tolist())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_has_no_codes(tmp_path, bad):
    weight = np.ones((4, 5), np.float32)
    weight[2, 3] = bad
    with Spool(tmp_path) as spool:
        assert nearest_codes(weight, (0,), None, spool) is None
        assert nearest_codes(weight, (1,), None, spool) is None
