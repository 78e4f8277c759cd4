"""The note on a file that is hardly smaller than the float model."""

from __future__ import annotations

from helpers import build, floats, node

from onnxq.ir import parse
from onnxq.stages.finish import size_note


def test_only_a_file_of_more_than_half_the_size_is_explained() -> None:
    weights = {"w": floats(64, 64), "b": floats(64)}
    proto = build([node("MatMul", "x w", "p"), node("Add", "p b", "y")], {"x": [1, 64]}, weights=weights)
    model = parse(proto.SerializeToString())
    assert size_note(model, 1000, 500) == ()
    (line,) = size_note(model, 20_000, 17_000)
    assert line.startswith("the file is 0.85 of the float model's size: ")
    assert "0 bytes of constants in 8 bit or less, 16.6 kB in wider types, 360 bytes of nodes" in line
