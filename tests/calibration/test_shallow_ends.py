"""Ends of ranges whose readers make little of negative values."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from helpers import build, floats, node

from onnxq.calibration.activation_qparams import scheme_qparams
from onnxq.calibration.shallow_ends import shallow_end
from onnxq.calibration.stats import TensorStats, range_kinds
from onnxq.ir import parse
from onnxq.ops.forms.scheme import Scheme
from onnxq.pipeline.quantize import quantize
from onnxq.planning.reader_curves import Curve, reader_curve
from onnxq.planning.static_bounds import MARGIN, flat_beyond

LEAKY = node("LeakyRelu", "x", "y", alpha=0.25)
CONSTANTS = {
    "alike": np.full((4, 1), 0.5, np.float32),
    "slopes": np.array([[0.1], [0.3], [0.2], [0.1]], np.float32),
    "steep": np.array([[0.1], [1.5], [0.2], [0.1]], np.float32),
    "down": np.full((4, 1), -0.5, np.float32),
    "end": np.array([[-0.5]], np.float32),
    "ends": np.array([[-0.5], [-0.25], [0], [0]], np.float32),
    "high": np.float32(6),
}


@pytest.mark.parametrize(
    ("nodes", "curve"),
    [
        ([LEAKY], Curve(0.25)),
        ([LEAKY, node("Max", "end y", "z")], Curve(0.25, -0.5)),
        ([LEAKY, node("Max", "y end", "m"), node("Min", "m high", "z")], Curve(0.25, -0.5, 6.0)),
        ([LEAKY, node("Max", "y ends", "z")], Curve(0.25)),
        ([LEAKY, node("Clip", "y end high", "z")], Curve(0.25, -0.5, 6.0)),
        ([LEAKY, node("Relu", "y", "z")], Curve(0.25, 0.0)),
        ([LEAKY, node("Relu", "x", "z")], None),
        ([node("Max", "x end", "y")], Curve(1.0, -0.5)),
        ([node("PRelu", "x alike", "y"), node("Max", "y end", "z")], Curve(0.5, -0.5)),
        ([node("PRelu", "x slopes", "y"), node("Max", "y end", "z")], Curve(float(np.float32(0.3)))),
        ([node("PRelu", "x down", "y"), node("Max", "y end", "z")], Curve(0.5)),
        ([node("PRelu", "x steep", "y")], None),
        ([node("PRelu", "alike x", "y")], None),
        ([node("LeakyRelu", "x", "y", alpha=1.5)], None),
        ([node("Sigmoid", "x", "y")], None),
    ],
)
def test_readers_are_one_curve(nodes, curve) -> None:
    made = {name for one in nodes for name in one.output}
    outputs = [name for name in ("y", "z") if name in made and not any(name in one.input for one in nodes)]
    model = parse(build(nodes, {"x": [4, 4]}, outputs, CONSTANTS).SerializeToString())
    assert reader_curve(model.graph.values["x"]) == curve


def test_an_output_is_read_as_it_is() -> None:
    nodes = [node("Identity", "a", "x"), LEAKY]
    model = parse(build(nodes, {"a": [4, 4]}, ["x", "y"]).SerializeToString())
    assert reader_curve(model.graph.values["x"]) is None


def test_codes_end_where_results_are_clamped() -> None:
    nodes = [LEAKY, node("Max", "y end", "m"), node("Min", "m high", "z")]
    model = parse(build(nodes, {"x": [4, 4]}, ["z"], CONSTANTS).SerializeToString())
    assert flat_beyond(model.graph.values["x"]) == pytest.approx((-2 * MARGIN, 6 * MARGIN))
    assert Curve(0.5, 0.25, inf).flat_beyond() == (0.0, inf)


def behind(curve: Curve, x: np.ndarray, low: float, high: float) -> float:
    """Return the squared error behind a curve of rounding to 256 codes."""
    scale, zero = scheme_qparams(TensorStats.of(np.array([low, high], np.float32)), Scheme(ranges="minmax"))
    codes = np.clip(np.rint(x / scale) + zero, 0, 255)
    return float(((curve(x) - curve((codes - zero) * float(scale))) ** 2).sum())


@pytest.mark.parametrize("slope", [0.0, 0.01, 0.1, 0.3, 0.7])
def test_the_lower_end_is_near_that_of_least_error(slope) -> None:
    x = np.random.default_rng(1).normal(size=100_000)
    low, high, curve = float(x.min()), float(x.max()), Curve(slope)
    end = shallow_end(TensorStats.of(x.astype(np.float32)), low, high, curve)
    errors = [behind(curve, x, low * share, high) for share in np.linspace(0.02, 1, 50)]
    assert low <= end < 0
    assert behind(curve, x, end, high) <= 1.25 * min(errors)
    assert behind(curve, x, end, high) <= behind(curve, x, low, high)


def test_an_end_without_a_histogram_or_without_a_curve_stays() -> None:
    x = floats(1000, seed=3)
    without = TensorStats(range_kinds())
    without.add(x)
    assert shallow_end(without, -3.0, 2.0, Curve(0.1)) == -3.0
    assert shallow_end(TensorStats.of(x), 0.0, 2.0, Curve(0.1)) == 0.0
    known, leaky, auto = TensorStats.of(x), Curve(0.01), Scheme(ranges="auto")
    assert scheme_qparams(known, auto, curve=leaky)[0] < scheme_qparams(known, auto)[0]
    for scheme in (Scheme(ranges="minmax"), Scheme(ranges="auto", activations="int8")):
        assert scheme_qparams(known, scheme, curve=leaky) == scheme_qparams(known, scheme)


@pytest.mark.parametrize("fast", [False, True])
def test_a_network_of_leaky_activations_gains(fast, monkeypatch) -> None:
    weights = {f"w{i}": floats(32, 32, 3, 3, seed=i) / 12 for i in range(3)}
    nodes, source = [], "x"
    for index in range(3):
        nodes += [
            node("Conv", f"{source} w{index}", f"c{index}", pads=[1, 1, 1, 1]),
            node("LeakyRelu", f"c{index}", f"a{index}", alpha=0.1),
        ]
        source = f"a{index}"
    model = build(nodes, {"x": [1, 32, 16, 16]}, [source], weights)
    samples = {"x": floats(8, 32, 16, 16, seed=9)}

    def reached() -> float:
        report = quantize(model, "static-int8", samples=samples, fast=fast)
        assert report.comparison is not None
        return report.comparison.worst_sqnr

    found = reached()
    monkeypatch.setattr("onnxq.stages.measure.reader_curve", lambda value: None)
    assert found > reached() + 0.3
