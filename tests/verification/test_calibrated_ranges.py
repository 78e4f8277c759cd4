"""Samples beyond what a quantized model was calibrated for are found by its QuantizeLinear nodes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from onnxq.verification.calibrated_ranges import CalibratedRanges, calibration_warnings
from onnxq.verification.compare import compare

BODY = "q = QuantizeLinear(%s, s, z)  y = DequantizeLinear(q, s, z)"
SCALE = "float s = {0.0185}, uint8 z = {114}"  # of -2.1 … 2.6


def encoded(nodes: str = BODY % "x", constants: str = SCALE, kind: str = "float") -> bytes:
    head = f'<ir_version: 8, opset_import: ["" : 17]> main ({kind}[n, 3, 4, 4] x) => (float y)'
    return parser.parse_model(f"{head} <{constants}> {{ {nodes} }}").SerializeToString()


def samples(low: float, high: float, count: int = 3) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(0)
    return [{"x": random.uniform(low, high, (1, 3, 4, 4)).astype(np.float32)} for _ in range(count)]


def codes(model: bytes, given: list[dict[str, np.ndarray]]) -> list[str]:
    return [warning.code for warning in calibration_warnings(model, given)]


def test_values_within_the_range_are_usual() -> None:
    assert codes(encoded(), samples(-2.1, 2.6)) == []
    assert codes(encoded(), samples(-2.15, 2.65)) == []  # a few lie just outside


def test_values_beyond_the_range_are_named_with_both_ranges() -> None:
    found = calibration_warnings(encoded(), samples(-123, 151))
    assert [warning.code for warning in found] == ["beyond-calibration"]
    assert (
        "% of the values of 'x' lie outside what the model was calibrated for (-2.11 … 2.61; here" in found[0].message
    )
    assert found[0].message.split(" ")[0] > "97"
    assert "Calibrate on data like these" in found[0].remedy


def test_values_that_use_little_of_the_range_are_named() -> None:
    wide = "float s = {1.0}, uint8 z = {0}"
    assert codes(encoded(constants=wide), samples(0, 1)) == ["narrow-range"]
    assert codes(encoded(constants=wide), samples(0, 60)) == []


def test_constant_values_say_nothing_about_a_range() -> None:
    assert codes(encoded(), [{"x": np.zeros((1, 3, 4, 4), np.float32)}]) == []


@pytest.mark.parametrize("move", ["Transpose<perm = [0, 2, 3, 1]>(x)", "Flatten(x)", "Identity(x)"])
def test_what_only_moves_values_is_looked_through(move: str) -> None:
    found = calibration_warnings(encoded(f"m = {move}  {BODY % 'm'}"), samples(0, 255))
    assert [warning.code for warning in found] == ["beyond-calibration"]
    assert "values of 'x' lie" in found[0].message


def test_what_float_layers_make_of_an_input_is_looked_at() -> None:
    layer = f"m = Add(x, x)  r = Relu(m)  {BODY % 'r'}"
    found = calibration_warnings(encoded(layer), samples(0, 255))
    assert [warning.code for warning in found] == ["beyond-calibration"]
    assert "'r', behind input 'x'," in found[0].message
    assert codes(encoded(layer), samples(-1, 1)) == []
    assert codes(encoded(layer), samples(0, 0.2)) == []
    assert codes(encoded(layer), samples(0, 0.01)) == ["narrow-range"]


def test_a_range_behind_another_one_is_not_looked_at() -> None:
    nodes = "q1 = QuantizeLinear(x, s, z)  d = DequantizeLinear(q1, s, z)  w = Mul(d, t)  " + BODY % "w"
    assert len(CalibratedRanges.of(encoded(nodes, SCALE + ", float t = {100.0}")).ranges) == 1


def test_a_model_without_ranges_says_nothing() -> None:
    assert codes(encoded("y = Relu(x)", "float s = {1.0}"), samples(-123, 151)) == []
    scaled = encoded("s = ReduceMax<keepdims = 0>(x)  " + BODY % "x", "uint8 z = {0}")
    assert codes(scaled, samples(-123, 151)) == []


def test_every_comparison_looks_at_the_ranges() -> None:
    plain = encoded("y = Identity(x)", "float s = {1.0}")
    found = compare(plain, encoded(), samples(-123, 151), latency=False)
    assert [warning.code for warning in found.warnings] == ["beyond-calibration"]
    assert not compare(plain, encoded(), samples(-2, 2), latency=False).warnings
    last = compare(plain, encoded(), [*samples(-2, 2, 1), *samples(-123, 151, 1)], latency=False)
    assert [warning.code for warning in last.warnings] == ["beyond-calibration"]


def test_bytes_that_are_no_model_are_left_to_others() -> None:
    assert calibration_warnings(b"\x08", samples(0, 1)) == ()
