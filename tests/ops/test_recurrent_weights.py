"""LSTM, GRU and RNN: weights in 8 bit, one scale for each gate of each unit."""

import numpy as np
import pytest
from helpers import build, floats, node, quantize_in_memory
from onnx import helper

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@pytest.mark.parametrize("form", ["cast-mul", "qdq"])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("op", GATES)
def test_weights_are_stored_in_8_bit(op: str, directions: int, form: str) -> None:
    rows = GATES[op] * 32
    weights = {"w": floats(directions, rows, 16), "r": floats(directions, rows, 32, seed=1) * np.float32(0.2)}
    direction = "bidirectional" if directions == 2 else "forward"
    step = node(op, "x w r", "y", hidden_size=32, direction=direction)
    made = quantize_in_memory(build([step], {"x": [5, 3, 16]}, ["y"], weights), "weight-int8", form=form)
    assert [made.weights[f"{name}_quantized"].dtype for name in "wr"] == [np.int8, np.int8]
    assert not {"w", "r"} & made.weights.keys(), "the float weights are gone"
    assert made.sqnr({"x": floats(5, 3, 16, seed=2)}) > (30 if form == "cast-mul" else 25)
    if form == "cast-mul":
        assert made.weights["w_scale"].shape == (directions, rows, 1)


def test_a_node_whose_first_output_is_left_out() -> None:
    weights = {"w": floats(1, 128, 16), "r": floats(1, 128, 32, seed=1)}
    step = helper.make_node("LSTM", ["x", "w", "r"], ["", "y"], "lstm", hidden_size=32)
    made = quantize_in_memory(build([step], {"x": [5, 3, 16]}, ["y"], weights), "weight-int8")
    assert made.ops["Cast"] == 2
