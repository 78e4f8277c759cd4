"""Questions whether a Softmax gave NaN."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import build, floats, node
from support import assert_same, simplified, written

NOTE = "removed 1 NaN guard after Softmax"
LOWEST = np.finfo(np.float32).min
WEIGHTS = {
    "zero": np.float32(0), "lowest": np.float32(LOWEST), "endless": np.float32(-np.inf), "scale": np.float32(0.5),
    "deep": np.full((1, 1, 5), LOWEST, np.float32), "wide": np.zeros((1, 1, 1, 1), np.float32),
    "bias": np.zeros((1, 1, 5), np.float32), "holes": np.float32([0, 0, -np.inf, 0, 0]),
}  # fmt: skip
FEEDS = [
    {"q": floats(2, 3, 4), "k": floats(2, 4, 5, seed=1), "keep": np.array([[[True, False, True, True, False]]] * 2)},
    {"q": 100 * floats(2, 3, 4), "k": 100 * floats(2, 4, 5), "keep": np.zeros((2, 1, 5), bool)},
]


def attention(*changed: str, outputs=("y",)):
    """Attention as PyTorch's newer exporter writes it, some of its lines in another way."""
    lines = {
        "scores": "MatMul q k", "scaled": "Mul scores scale", "mask": "Where keep zero lowest",
        "masked": "Add scaled mask", "p": "Softmax masked", "asked": "IsNaN p", "sure": "Where asked zero p",
        "y": "Neg sure",
    } | dict(line.split(" = ") for line in changed)  # fmt: skip
    nodes = [node(call.split()[0], " ".join(call.split()[1:]), made) for made, call in lines.items()]
    read = {name for made in nodes for name in made.input}
    weights = {name: array for name, array in WEIGHTS.items() if name in read}
    inputs = {"q": ["b", "t", 4], "k": ["b", 4, 5], "keep": (9, ["b", 1, 5])}
    return build(nodes, inputs, outputs, weights, opset=18)


@pytest.mark.parametrize("changed", [(), ("scaled = Mul scale scores",), ("masked = Sub bias scaled",)])
def test_finite_scores_are_not_asked(changed):
    proto = attention(*changed)
    found = simplified(proto, "remove_nan_guards")
    assert found.notes == (NOTE,)
    assert written(found.model)[-2:] == ["p = Softmax(masked)", "y = Neg(p)"]
    assert_same(proto, found, FEEDS)


@pytest.mark.parametrize(
    "changed",
    [
        ("mask = Where keep zero endless",),  # a row that is masked as a whole comes to 0
        ("masked = Add scaled holes",),
        ("scaled = Add scores deep",),  # with a second mask of the same places, scores are infinite
        ("scaled = Mul scores scores",),
        ("scores = Div q q", "scaled = Identity k"),  # an input can be anything
        ("p = Exp masked",),
        ("sure = Where asked p zero",),
        ("sure = Where asked wide p",),  # the result has an axis more
        ("sure = Where asked scaled p",),
    ],
)
def test_what_stays(changed):
    assert simplified(attention(*changed), "remove_nan_guards").notes == ()


def test_an_output_stays():
    assert simplified(attention(outputs=("y", "sure")), "remove_nan_guards").notes == ()
