"""A Sum of two values: an Add."""

from __future__ import annotations

import pytest
from helpers import floats
from spelled_support import assert_same, ops, simplified

SIGNATURE = "g (float[N,3,4] x, float[N,3,4] z, float[3,1] w) => (float[N,3,4] y)"


@pytest.mark.parametrize("opset", [8, 13])
@pytest.mark.parametrize("terms", ["x, z", "x, w", "w, x", "x, x"])
def test_it_is_an_add(terms: str, opset: int) -> None:
    found = simplified(f"{SIGNATURE} {{ y = Sum ({terms}) }}", {}, "sum_to_add", opset)
    assert ops(found.model) == ["Add"]
    assert found.notes == ("rewrote 1 Sum of two values as Add",)
    assert_same(found, {"x": floats(2, 3, 4), "z": floats(2, 3, 4, seed=1), "w": floats(3, 1)}, 0)


@pytest.mark.parametrize("terms", ["x", "x, z, w"])
def test_one_and_three_terms_stay(terms: str) -> None:
    assert simplified(f"{SIGNATURE} {{ y = Sum ({terms}) }}", {}, "sum_to_add", 13).notes == ()
