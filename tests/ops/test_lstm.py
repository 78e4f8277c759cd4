"""LSTM, GRU and RNN: weights in 8 bit, one scale for each gate of each unit."""

import numpy as np
import pytest
from helpers import build, floats, node, quantize_in_memory, sqnr
from onnx import helper

from onnxq import evaluate, quantize
from onnxq.planning.recipe import load_recipe

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


@pytest.mark.parametrize("form", ["cast-mul", "qdq"])
def test_weights_in_4_bit_ask_for_the_operator_set_that_knows_them(form: str) -> None:
    weights = {"w": floats(1, 96, 16), "r": floats(1, 96, 32, seed=1) * np.float32(0.2)}
    proto = build([node("GRU", "x w r", "y", hidden_size=32)], {"x": [5, 3, 16]}, ["y"], weights, opset=17)
    recipe = load_recipe("weight-int8").setting(name="weight-int4", form=form)
    report = quantize(proto, recipe, samples={"x": floats(4, 5, 3, 16, seed=2)}, fast=True)
    assert report.model.opset_import[0].version == 21
    assert report.counts() == {"weight-int4": 1}
    assert "stored in 4 bit" in report.nodes[0].reason
    assert report.comparison.worst_sqnr > 10


@pytest.mark.parametrize(
    ("recipe", "op"),
    [("static-int8", "LSTM"), ("static-int8", "GRU"), ("dynamic-int8", "GRU"), ("dynamic-int8", "RNN")],
)
def test_recipes_that_have_no_form_for_a_layer_store_its_weights(recipe: str, op: str) -> None:
    rows = GATES[op] * 32
    weights = {"w": floats(1, rows, 16), "r": floats(1, rows, 32, seed=1) * np.float32(0.2)}
    proto = build([node(op, "x w r", "y", hidden_size=32)], {"x": [5, 3, 16]}, ["y"], weights)
    made = quantize_in_memory(proto, load_recipe(recipe))
    assert made.decision("n_y").scheme == "weight-int8"
    assert [made.weights[f"{name}_quantized"].dtype for name in "wr"] == [np.int8, np.int8]


def test_a_node_whose_first_output_is_left_out() -> None:
    weights = {"w": floats(1, 128, 16), "r": floats(1, 128, 32, seed=1)}
    step = helper.make_node("LSTM", ["x", "w", "r"], ["", "y"], "lstm", hidden_size=32)
    made = quantize_in_memory(build([step], {"x": [5, 3, 16]}, ["y"], weights), "weight-int8")
    assert made.ops["Cast"] == 2


WIDE = {"w": floats(2, 128, 16, scale=0.3), "r": floats(2, 128, 32, seed=1, scale=0.2), "b": floats(2, 256, seed=2)}
STATES = {"h": [2, 3, 32], "c": [2, 3, 32]}


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
@pytest.mark.parametrize("outputs", ["y", "y yh yc", "- yh", "- - yc"])
@pytest.mark.parametrize("names", ["x w r", "x w r b", "x w r b steps h c p"])
def test_an_lstm_that_computes_in_8_bit(names: str, outputs: str, granularity: str) -> None:
    given = names.split()
    weights = {name: array for name, array in WIDE.items() if name in given}
    inputs: dict = {"x": [5, 3, 16], **{name: shape for name, shape in STATES.items() if name in given}}
    feeds = {name: floats(*shape, seed=i + 4) for i, (name, shape) in enumerate(inputs.items())}
    if "p" in given:
        weights |= {"p": floats(2, 96, seed=3, scale=0.1), "steps": np.array([5, 3, 1], np.int32)}
    made = ["" if name == "-" else name for name in outputs.split()]
    step = helper.make_node("LSTM", given, made, "lstm", hidden_size=32, direction="bidirectional", clip=3.0)
    proto = build([step], inputs, [name for name in made if name], weights)
    result = quantize_in_memory(proto, "dynamic-int8", domain="com.microsoft", granularity=granularity)
    assert result.ops == {"DynamicQuantizeLSTM": 1}
    for expected, got in zip(result.float_run(feeds), result.run(feeds), strict=True):
        assert sqnr(expected, got) > (25 if granularity == "channel" else 22)
    for expected, got in zip(result.run(feeds), evaluate(result.proto, feeds).values(), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-2)  # approximate Sigmoid and Tanh: a code may flip


@pytest.mark.parametrize(
    ("settings", "attributes", "reason"),
    [
        ({}, {}, 'only com.microsoft has an LSTM that computes in 8 bit (domain = "com.microsoft" asks for it)'),
        (
            {"domain": "com.microsoft"},
            {"layout": 1},
            "DynamicQuantizeLSTM needs the steps as first axis, not the batch",
        ),
    ],
)
def test_an_lstm_that_computes_in_float(settings: dict, attributes: dict, reason: str) -> None:
    weights = {"w": floats(1, 128, 16), "r": floats(1, 128, 32, seed=1)}
    step = node("LSTM", "x w r", "y", hidden_size=32, **attributes)
    made = quantize_in_memory(build([step], {"x": [5, 3, 16]}, ["y"], weights), "dynamic-int8", **settings)
    assert made.decision("n_y").reason == reason


@pytest.mark.parametrize(
    ("target", "hidden", "steps", "scheme"),
    [
        ("cpu", 64, None, "dynamic-int8"),
        ("cpu", 128, 1, "dynamic-int8"),
        ("cpu", 48, 1, "weight-int8"),  # two kernels of a microsecond: what is around them decides
        ("cpu", 16, 100, "weight-int8"),
        ("generic", 128, None, "weight-int8"),
    ],
)
def test_auto_takes_the_lstm_that_computes_in_8_bit_where_it_is_faster(target, hidden, steps, scheme):
    w, r = floats(1, 4 * hidden, hidden, scale=0.1), floats(1, 4 * hidden, hidden, seed=1, scale=0.1)
    proto = build([node("LSTM", "x w r", "y", hidden_size=hidden)], {"x": [steps, 1, hidden]}, ["y"], {"w": w, "r": r})
    made = quantize_in_memory(proto, "auto", target=target)
    assert made.decision("n_y").scheme == scheme
    assert made.sqnr({"x": floats(steps or 9, 1, hidden, seed=2)}) > 35
