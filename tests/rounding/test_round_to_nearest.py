"""Large weights in blocks get the bits that the whole gets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from onnxq.ir.storage.scratch_file import Spool
from onnxq.rounding import round_to_nearest
from onnxq.rounding.round_to_nearest import nearest_codes, nearest_rows
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


@given(
    arrays(np.float32, st.tuples(st.integers(0, 5), st.integers(0, 5)), elements=st.floats(-100, 100, width=32)),
    st.sampled_from([7, 63, 127, 2047]),
)
def test_rows_come_back_within_half_a_step(rows, limit):
    codes, scales = nearest_rows(rows, limit)
    assert (codes.shape, codes.dtype) == (rows.shape, np.int16 if limit > 127 else np.int8)
    assert (scales.shape, scales.dtype) == ((len(rows),), np.float32)
    assert (scales >= np.finfo(np.float32).tiny).all()
    assert (np.abs(codes) <= limit).all()
    assert (np.abs(codes * scales[:, None] - rows) <= (0.5 + 1e-5 * limit) * scales[:, None]).all()


def test_rows_by_hand():
    codes, scales = nearest_rows(np.float32([[1, -2, 0.5], [0, 0, 0], [-254, 127, 3]]), 127)
    assert scales.tolist() == [np.float32(2 / 127), 1, 2]
    assert codes.tolist() == [[64, -127, 32], [0, 0, 0], [-127, 64, 2]]  # 63.5 and 1.5 to even
    assert nearest_rows(np.float32([[1e-45, 0]]), 127)[1] == np.finfo(np.float32).tiny
