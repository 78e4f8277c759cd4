"""Transpose nodes between a Reshape that joins axes and one that takes them apart again."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import floats
from spelled_support import assert_same, ops, simplified

NOTE = "moved 1 Transpose through Reshape"
WEIGHTS = {
    "low": np.int64([-(2**63)]), "two": np.int64([-2]), "zero": np.int64([0]), "one": np.int64([1]),
    "three": np.int64([3]), "any": np.int64([-1]), "all": np.int64([2**63 - 1]), "d": np.int64([4]),
    "apart": np.int64([2, 5, 4, 3]), "rows": np.int64([10, 3, 4]), "same": np.int64([2, 5, 3, 4]),
    "back": np.int64([3, 2, 5, 4]), "ends": np.int64([2, 15, 4]), "swapped": np.int64([2, 4, 5, 3]),
    "mixed": np.int64([6, 5, 4]),
}  # fmt: skip

# As PyTorch's exporter writes it where batch and sequence are open
KEYS = (
    "s = Shape(x) lead = Slice(s, low, two) last = Slice(s, two, all) n = Slice(last, zero, one)"
    " t = Concat <axis = 0> (any, last) j = Reshape(x, t) p = Transpose <perm = [0, 2, 1]> (j)"
    " u = Concat <axis = 0> (lead, d, n) k = Reshape(p, u) y = Neg(k)"
)


def graph(body: str, dims: str = "2,5,3,4", out: str = "a,b,c,d", more: str = "") -> str:
    return f"g (float[{dims}] x) => (float[{out}] y{more}) {{ {body} }}"


def test_keys_of_open_sizes():
    found = simplified(graph(KEYS, "b,h,n,4"), WEIGHTS, "transpose_through_reshape", 18)
    assert found.notes == (NOTE,)
    assert [node.attributes() for node in found.model.graph.nodes if node.op_type == "Transpose"] == [
        {"perm": [0, 1, 3, 2]}
    ]
    assert "Reshape" not in ops(found.model)
    for shape in ((2, 5, 3, 4), (1, 1, 7, 4), (3, 2, 1, 4)):
        assert_same(found, {"x": floats(*shape)}, 0)


@pytest.mark.parametrize(
    ("join", "perm", "split", "left"),
    [
        ("rows", [0, 2, 1], "apart", [0, 1, 3, 2]),
        ("rows", [1, 0, 2], "back", [2, 0, 1, 3]),
        ("ends", [0, 2, 1], "swapped", [0, 3, 1, 2]),
    ],
)
def test_known_sizes(join, perm, split, left):
    body = f"j = Reshape(x, {join}) p = Transpose <perm = {perm}> (j) k = Reshape(p, {split}) y = Neg(k)"
    found = simplified(graph(body), WEIGHTS, "transpose_through_reshape")
    assert ops(found.model) == ["Transpose", "Neg"]
    assert found.model.graph.nodes[0].attributes() == {"perm": left}
    assert_same(found, {"x": floats(2, 5, 3, 4)}, 0)


@pytest.mark.parametrize(
    "body",
    [
        "j = Reshape(x, rows) p = Transpose <perm = [0, 2, 1]> (j) k = Reshape(p, same) y = Neg(k)",
        "j = Reshape(x, mixed) p = Transpose <perm = [0, 2, 1]> (j) k = Reshape(p, apart) y = Neg(k)",
        "j = Reshape(x, rows) p = Transpose <perm = [0, 2, 1]> (j) e = Exp(p) k = Reshape(e, apart) y = Neg(k)",
        "j = Reshape(x, rows) p = Transpose (j) k = Reshape(p, apart) y = Neg(k)",
    ],
)
def test_what_stays(body):
    assert simplified(graph(body), WEIGHTS, "transpose_through_reshape").notes == ()


def test_what_others_read_stays():
    body = "j = Reshape(x, rows) z = Transpose <perm = [0, 2, 1]> (j) k = Reshape(z, apart) y = Neg(k)"
    assert simplified(graph(body, more=", float[e,f,g] z"), WEIGHTS, "transpose_through_reshape").notes == ()


def test_heads_are_not_told_by_sizes_of_another_tensor():
    """Sizes that are not proved to be the same could be exchanged."""
    body = "s = Shape(w) j = Reshape(x, rows) p = Transpose <perm = [0, 2, 1]> (j) k = Reshape(p, s) y = Neg(k)"
    text = f"g (float[2,5,3,4] x, float[a,b,c,d] w) => (float[e,f,g,h] y) {{ {body} }}"
    assert simplified(text, WEIGHTS, "transpose_through_reshape").notes == ()
