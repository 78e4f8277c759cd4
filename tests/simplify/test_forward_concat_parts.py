"""What is joined and taken apart at the same places: what is read afterwards, and where a node stays."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import floats
from spelled_support import assert_same, ops, simplified

WEIGHTS = {
    name: np.array([number], np.int64)
    for name, number in {
        "zero": 0,
        "one": 1,
        "two": 2,
        "three": 3,
        "four": 4,
        "five": 5,
        "last": -1,
        "back": -3,
        "far": 2**62,
    }.items()
} | {"sizes": np.array([2, 3]), "others": np.array([3, 2])}


def text(body: str, outputs: str = "float[N,40,2] y") -> str:
    return "g (float[N,40,2] a, float[N,40,3] b) => (" + outputs + ") {\nc = Concat <axis = 2> (a, b)\n" + body + "\n}"


BOTH = "float[N,40,2] y, float[N,40,3] z"


@pytest.mark.parametrize(
    ("body", "outputs", "left"),
    [
        ("p = Slice(c, zero, two, two)\ny = Neg(p)", "float[N,40,2] y", ["Neg"]),
        ("p = Slice(c, two, far, last)\ny = Neg(p)", "float[N,40,3] y", ["Neg"]),
        ("p = Slice(c, back, five, two, one)\ny = Neg(p)", "float[N,40,3] y", ["Neg"]),
        ("p, q = Split <axis = -1> (c, sizes)\ny = Neg(p)\nz = Exp(q)", BOTH, ["Neg", "Exp"]),
        # centre and size, and both once more of what they are joined to
        (
            "p, q = Split <axis = -1> (c, sizes)\nd = Concat <axis = -1> (q, p)\nr, s = Split <axis = 2> (d, others)\n"
            "y = Neg(s)\nz = Exp(r)",
            BOTH,
            ["Neg", "Exp"],
        ),
    ],
)
def test_whole_parts_are_read_where_they_come_from(body: str, outputs: str, left: list[str]) -> None:
    found = simplified(text(body, outputs), WEIGHTS, "forward_concat_parts")
    assert "of Concat by their source" in found.notes[0]
    assert [op for op in ops(found.model) if op not in ("Concat", "Split")] == left
    readers = [node for node in found.model.graph.nodes if node.op_type in left]
    assert {value.name for node in readers for value in node.inputs} <= {"a", "b"}
    assert_same(found, {"a": floats(3, 40, 2), "b": floats(3, 40, 3)}, 0)


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        ("p = Slice(c, zero, three, two)\ny = Neg(p)", "float[N,40,3] y"),  # more than a part
        ("p = Slice(c, zero, one, two)\ny = Neg(p)", "float[N,40,1] y"),  # less
        ("p = Slice(c, zero, two, one)\ny = Neg(p)", "float[N,2,5] y"),  # of another axis
        ("p = Slice(c, two, five, two, two)\ny = Neg(p)", "float[N,40,2] y"),  # every other one
        ("y = Slice(c, zero, two, two)", "float[N,40,2] y"),  # an output needs a node that makes it
        ("p, q = Split <axis = -1> (c, others)\ny = Neg(p)\nz = Exp(q)", "float[N,40,3] y, float[N,40,2] z"),
    ],
)
def test_others_stay(body: str, outputs: str) -> None:
    assert simplified(text(body, outputs), WEIGHTS, "forward_concat_parts").notes == ()


def test_a_part_of_unknown_size_stays() -> None:
    graph = (
        "g (float[N,2] a, float[M,2] b) => (float[K,2] y) {\n"
        "c = Concat <axis = 0> (a, b)\np = Slice(c, zero, two, zero)\ny = Neg(p)\n}"
    )
    assert simplified(graph, WEIGHTS, "forward_concat_parts").notes == ()
