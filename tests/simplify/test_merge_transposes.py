"""Transpositions in a row: what becomes of them, and that nothing else changes."""

from __future__ import annotations

import re

import numpy as np
import pytest
from helpers import floats
from hypothesis import given, settings
from hypothesis import strategies as st
from spelled_support import assert_same, ops, simplified

WEIGHTS = {"i0": np.int64([0]), "i3": np.int64([3]), "last": np.int64([-1])}

# body from x [2, 3, 4] to y, what is left of it
MERGED = [
    ("a = Transpose <perm = [0, 2, 1]> (x) b = Transpose <perm = [2, 0, 1]> (a)", ["Transpose"]),
    ("a = Transpose <perm = [0, 2, 1]> (x) b = Transpose <perm = [0, 2, 1]> (a)", []),
    (
        "a = Transpose <perm = [0, 2, 1]> (x) u = Unsqueeze(a, i3) b = Transpose <perm = [0, 2, 1, 3]> (u)",
        ["Unsqueeze"],
    ),
    (
        "a = Transpose <perm = [0, 2, 1]> (x) u = Unsqueeze(a, i0) b = Transpose <perm = [3, 0, 2, 1]> (u)",
        ["Transpose", "Unsqueeze"],
    ),
    (
        "o = Unsqueeze(x, i0) a = Transpose <perm = [1, 2, 3, 0]> (o) u = Squeeze(a, last)"
        " b = Transpose <perm = [0, 2, 1]> (u)",
        ["Unsqueeze", "Squeeze", "Transpose"],
    ),
    (
        "a = Transpose <perm = [0, 2, 1]> (x) b = Transpose <perm = [2, 0, 1]> (a)"
        " c = Transpose <perm = [1, 0, 2]> (b)",
        [],
    ),
]


def text(body: str, more: str = "") -> str:
    """The last value of a body, negated, is the output."""
    last = re.findall(r"(\w+) = [A-Z]", body)[-1]
    dims = "a,b,c,d" if "Unsqueeze(a" in body.replace(" <axes = [3]> ", "") and "Squeeze(u" not in body else "a,b,c"
    return f"g (float[2,3,4] x) => (float[{dims}] y{more}) {{ {body} y = Neg({last}) }}"


@pytest.mark.parametrize(("body", "left"), MERGED)
def test_two_become_one_or_none(body, left):
    found = simplified(text(body), WEIGHTS, "merge_transposes", 13)
    assert ops(found.model) == [*left, "Neg"]
    assert_same(found, {"x": floats(2, 3, 4)}, 0)


def test_older_operator_sets_have_axes_as_attribute():
    body = MERGED[2][0].replace("Unsqueeze(a, i3)", "Unsqueeze <axes = [3]> (a)")
    found = simplified(text(body), WEIGHTS, "merge_transposes", 11)
    assert found.notes == ("merged 1 Transpose with the one before",)
    assert found.model.graph.nodes[0].attributes() == {"axes": [3]}
    assert_same(found, {"x": floats(2, 3, 4)}, 0)


def test_a_transposed_value_that_others_read_stays():
    """There is nothing to gain, unless the second one undoes the first."""
    first, both = "a = Transpose <perm = [0, 2, 1]> (x)", " z = Exp(a)"
    more = ", float[a,c,b] z"
    assert (
        simplified(text(f"{first}{both} b = Transpose <perm = [2, 0, 1]> (a)", more), {}, "merge_transposes").notes
        == ()
    )
    found = simplified(text(f"{first}{both} b = Transpose <perm = [0, 2, 1]> (a)", more), {}, "merge_transposes")
    assert ops(found.model) == ["Transpose", "Exp", "Neg"]
    assert_same(found, {"x": floats(2, 3, 4)}, 0)


@pytest.mark.parametrize(
    "body",
    [
        "a = Transpose <perm = [0, 2, 1]> (x) u = Unsqueeze(a, i0) q = Squeeze(u, i0)"
        " b = Transpose <perm = [2, 1, 0]> (q)",
        "a = Transpose <perm = [0, 2, 1]> (x) u = Exp(a) b = Transpose <perm = [2, 1, 0]> (u)",
        "a = Transpose (x) b = Transpose <perm = [2, 0, 1]> (a)",
    ],
)
def test_what_stands_between_them(body):
    assert simplified(text(body), WEIGHTS, "merge_transposes").notes == ()


def test_outputs_need_a_node():
    whole = "g (float[2,3] x) => (float[2,3] y) { a = Transpose <perm = [1,0]> (x) y = Transpose <perm = [1,0]> (a) }"
    assert simplified(whole, {}, "merge_transposes").notes == ()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_chain(data):
    rank, names, body = 3, iter("abcdefgh"), ""
    value, ones = "x", 0
    for kind in [
        "Transpose",
        *data.draw(st.lists(st.sampled_from(["Transpose", "Unsqueeze"]), max_size=4)),
        "Transpose",
    ]:
        new = next(names)
        if kind == "Transpose":
            perm = data.draw(st.permutations(range(rank)))
            body += f" {new} = Transpose <perm = {list(perm)}> ({value})"
        else:
            axis = data.draw(st.integers(0, rank))
            body += f" {new} = Unsqueeze <axes = [{axis}]> ({value})"
            rank, ones = rank + 1, ones + 1
        value = new
    dims = ",".join("abcdefghij"[:rank])
    whole = f"g (float[2,3,4] x) => (float[{dims}] y) {{ {body} y = Neg({value}) }}"
    found = simplified(whole, {}, "merge_transposes", 11)
    assert ops(found.model).count("Transpose") <= 1
    assert_same(found, {"x": floats(2, 3, 4)}, 0)
