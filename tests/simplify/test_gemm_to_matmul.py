"""Gemm nodes between a Reshape to two axes and one back."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import build, floats, node
from support import assert_same, simplified, written

I64 = np.int64
NOTE = "rewrote 1 Gemm of flattened rows as MatMul"
WEIGHTS = {
    "w": floats(64, 96, seed=1), "wt": floats(96, 64, seed=1), "b": floats(96, seed=2), "rows": floats(1, 96, seed=2),
    "one": I64([1]), "flat": I64([-1, 64]), "end": I64([96]), "lead": I64([0]),
    "two": I64([2]), "seven": I64([-1, 7, 96]),
    "small": floats(64, 32), "end32": I64([32]), "some": I64([-1, 32]), "w32": floats(32, 96),
}  # fmt: skip
FEEDS = [{"x": floats(2, 5, 64)}, {"x": floats(1, 1, 64)}]


def flattened(*changed: str, outputs=("y",), axes=("b", "t", 64), **attributes):
    """A linear layer as GPT-2 has it, some of its lines in another way."""
    lines = {
        "s": "Shape x", "ahead": "Slice s lead two", "to": "Concat ahead end", "f": "Reshape x flat",
        "g": "Gemm f w b", "back": "Reshape g to", "y": "Neg back",
    } | dict(line.split(" = ") for line in changed)  # fmt: skip
    more = {"Concat": {"axis": 0}, "Gemm": attributes}
    calls = {made: call.split() for made, call in lines.items()}
    nodes = [node(call[0], " ".join(call[1:]), made, **more.get(call[0], {})) for made, call in calls.items()]
    read = {name for made in nodes for name in made.input}
    weights = {name: array for name, array in WEIGHTS.items() if name in read}
    return build(nodes, {"x": list(axes)}, outputs, weights)


@pytest.mark.parametrize(
    ("changed", "attributes", "weight"),
    [((), {}, "w"), (("g = Gemm f wt b",), {"transB": 1}, "wt_transposed"), (("g = Gemm f w",), {}, "w")],
)
def test_a_linear_layer(changed, attributes, weight):
    proto = flattened(*changed, **attributes)
    found = simplified(proto, "gemm_to_matmul", "dead_code_elimination")
    assert found.notes[0] == NOTE
    product = "back" if changed == ("g = Gemm f w",) else "back_product"
    added = [] if product == "back" else [f"back = Add({product}, b[96])"]
    assert written(found.model) == [f"{product} = MatMul(x, {weight}[64, 96])", *added, "y = Neg(back)"]
    assert_same(proto, found, FEEDS, rtol=1e-6)


def test_heads_are_joined_on_the_way():
    """The newer exporter joins them with all rows at once."""
    proto = flattened(axes=("b", "t", 4, 16))
    found = simplified(proto, "gemm_to_matmul", "dead_code_elimination")
    assert found.notes[0] == NOTE
    assert written(found.model) == [
        "back_joined = Reshape(x, [0, 0, 64])",
        "back_product = MatMul(back_joined, w[64, 96])",
        "back = Add(back_product, b[96])",
        "y = Neg(back)",
    ]
    assert_same(proto, found, [{"x": floats(2, 5, 4, 16)}, {"x": floats(1, 1, 4, 16)}], rtol=1e-6)


def test_rows_are_parted_before_a_square_product():
    """Where a mask could be of a larger batch, nothing proves that sizes are the same again; rows keep their order."""
    nodes = [
        node("Shape", "z", "ahead"),
        node("Concat", "ahead flat1", "to", axis=0),
        node("Reshape", "x flat", "f"),
        node("Gemm", "f square b64", "g"),
        node("Reshape", "g to", "back", allowzero=1),
        node("Neg", "back", "y"),
    ]
    weights = {"flat": I64([-1, 64]), "flat1": I64([64]), "square": floats(64, 64, seed=3), "b64": floats(64, seed=4)}
    proto = build(nodes, {"x": ["b", "t", 4, 16], "z": ["c", "u"]}, weights=weights)
    found = simplified(proto, "gemm_to_matmul", "dead_code_elimination")
    assert found.notes[0] == NOTE
    assert written(found.model)[2:] == [
        "back_joined = Reshape(x, to, allowzero=1)",
        "back_product = MatMul(back_joined, square[64, 64])",
        "back = Add(back_product, b64[64])",
        "y = Neg(back)",
    ]
    feeds = [{"x": floats(2, 6, 4, 16), "z": floats(*shape)} for shape in ((2, 6), (3, 4))]
    assert_same(proto, found, feeds, rtol=1e-6)


@pytest.mark.parametrize(
    ("changed", "attributes"),
    [
        (("back = Reshape g seven",), {}),
        (("g = Gemm f w rows",), {}),
        (("g = Gemm f small", "to = Concat ahead end32"), {}),
        (("f = Reshape x some", "g = Gemm f w32 b", "back = Reshape g seven"), {}),
        ((), {"alpha": 0.5}),
        ((), {"beta": 2.0}),
        (("back = Relu g", "y = Reshape back to"), {}),  # something stands between
    ],
)
def test_what_stays(changed, attributes):
    assert NOTE not in simplified(flattened(*changed, **attributes), "gemm_to_matmul").notes


def test_rows_of_another_length_than_the_last_axis_stay():
    """The two Reshape give sizes that look as if nothing had moved, and a product of twice the length."""
    nodes = [node("Reshape", "x flat", "f"), node("Gemm", "f w", "g"), node("Reshape", "g back", "b")]
    weights = {"flat": I64([-1, 128]), "w": floats(128, 256), "back": I64([2, 128, 128])}
    proto = build([*nodes, node("Neg", "b", "y")], {"x": [2, 128, 64]}, weights=weights)
    found = simplified(proto, "gemm_to_matmul")
    assert found.notes == ()


def test_outputs_stay():
    assert simplified(flattened(outputs=("y", "g")), "gemm_to_matmul").notes == ()


def test_rows_that_are_two_axes_already_stay():
    proto = flattened("to = Concat ahead end", "ahead = Slice s lead one", axes=("b", 64))
    assert NOTE not in simplified(proto, "gemm_to_matmul").notes
