"""Rows of codes in order: each is chosen with what all rows before it have added."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import floats

from onnxq.rounding import column_sweep
from onnxq.rounding.column_sweep import sweep


@pytest.mark.parametrize("n", [1, 7, 8, 33, 70])
def test_a_row_is_chosen_with_what_those_before_have_added(monkeypatch, n):
    monkeypatch.setattr(column_sweep, "WIDE", 48)
    monkeypatch.setattr(column_sweep, "STRIP", 16)
    coupling, start = floats(n, n, seed=1).astype(np.float64), floats(n, 5, seed=2).astype(np.float64)
    owed, change = start.copy(), np.empty_like(start)

    def choose(row):
        change[row] = np.rint(owed[row]) / 8

    sweep(owed, coupling, change, choose)
    expected = start.copy()
    for row in range(n):
        expected[row] += coupling[row, :row] @ change[:row]
        np.testing.assert_array_equal(change[row], np.rint(expected[row]) / 8)
    np.testing.assert_allclose(owed, expected, rtol=1e-12)
