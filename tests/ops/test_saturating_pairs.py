"""Pairs of weights whose products leave 16 bits, against the instruction's arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onnxq.ops.forms.saturating_pairs import MOST, SAFE_BITS, has_saturating_pair, inner_rows, saturating_pairs

CODES = st.integers(-128, 127)


def saturates(first: int, second: int) -> bool:
    """Whether VPMADDUBSW gives another number than the sum of the products for any two unsigned bytes."""
    extremes = [a * first + b * second for a in (0, 255) for b in (0, 255)]
    return max(extremes) > 32767 or min(extremes) < -32768


@given(CODES, CODES)
def test_a_pair_counts_if_the_instruction_can_saturate(first: int, second: int) -> None:
    assert saturating_pairs(np.array([[[first], [second]]], np.int8)) == saturates(first, second)


def test_the_limit() -> None:
    assert saturates(64, MOST + 1 - 64)
    assert not saturates(64, MOST - 64)
    assert not any(saturates(s * 63, t * 63) for s in (-1, 1) for t in (-1, 1))
    assert 2 ** (SAFE_BITS - 1) - 1 == 63


@given(hnp.arrays(np.int8, hnp.array_shapes(min_dims=3, max_dims=3, max_side=7)))
def test_neighbours_are_first_and_second_third_and_fourth(rows: np.ndarray) -> None:
    expected = sum(
        saturates(int(matrix[k, n]), int(matrix[k + 1, n]))
        for matrix in rows
        for k in range(0, rows.shape[1] - 1, 2)
        for n in range(rows.shape[2])
    )
    assert saturating_pairs(rows) == expected


def test_blocks_do_not_change_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).integers(-128, 128, (2, 23, 5)).astype(np.int8)
    whole = saturating_pairs(rows)
    monkeypatch.setattr("onnxq.ops.forms.saturating_pairs.SLAB", 11)
    assert saturating_pairs(rows) == whole > 0


def test_order_of_a_matrix() -> None:
    codes = np.arange(6, dtype=np.int8).reshape(3, 2)
    assert inner_rows("MatMul", codes).tolist() == [[[0, 1], [2, 3], [4, 5]]]
    assert inner_rows("Gemm", codes, transposed=True).tolist() == [[[0, 2, 4], [1, 3, 5]]]
    assert inner_rows("MatMul", np.zeros((2, 4, 3, 5), np.int8)).shape == (8, 3, 5)
    assert inner_rows("MatMul", codes[0]) is None


def test_order_of_a_kernel_is_channels_within_positions() -> None:
    codes = np.arange(12, dtype=np.int8).reshape(1, 3, 2, 2)  # channel c, position p has 4c + p
    assert inner_rows("Conv", codes)[0, :, 0].tolist() == [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]


def test_a_depthwise_kernel_adds_in_32_bits() -> None:
    codes = np.full((8, 1, 3, 3), 127, np.int8)
    assert inner_rows("QLinearConv", codes, group=8) is None
    assert inner_rows("QLinearConv", codes, group=4).shape == (1, 9, 8)  # two output channels to a group
    assert inner_rows("QLinearConv", codes).shape == (1, 9, 8)  # a grey picture


@pytest.mark.parametrize("shape", [(1, 2, 1), (2, 7, 5), (1, 300, 700), (3, 1, 4), (1, 0, 4), (1, 4, 0)])
@pytest.mark.parametrize("most", [64, 127])
def test_whether_there_is_a_pair_is_told_as_by_counting(shape, most) -> None:
    rng = np.random.default_rng(0)
    for place in range(shape[1]):
        rows = rng.integers(-64, 65, shape).astype(np.int8)
        rows[-1, place, -1:] = most
        assert has_saturating_pair(rows) == (saturating_pairs(rows) > 0)
