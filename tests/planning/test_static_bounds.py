"""Ranges end where the operator that makes a tensor cannot go."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from helpers import build, floats, node
from hypothesis import given
from hypothesis import strategies as st

from onnxq.calibration.activation_qparams import scheme_qparams
from onnxq.calibration.ranges import METHODS
from onnxq.calibration.stats import TensorStats
from onnxq.ir import parse
from onnxq.ops.forms.scheme import Scheme
from onnxq.planning.static_bounds import MARGIN, exact_bounds, flat_beyond


def bounds_of(nodes, **weights):
    """The bounds of `y`."""
    model = parse(build(nodes, {"x": ["N", 4]}, ["y"], weights).SerializeToString())
    return exact_bounds(model.graph.values["y"])


@pytest.mark.parametrize(
    ("op", "attributes", "bounds"),
    [
        ("Softmax", {}, (0, 1)),
        ("Sigmoid", {}, (0, 1)),
        ("HardSigmoid", {"alpha": 3.0}, (0, 1)),
        ("Tanh", {}, (-1, 1)),
        ("Erf", {}, (-1, 1)),
        ("Relu", {}, (0, inf)),
        ("LogSoftmax", {}, (-inf, 0)),
        ("LeakyRelu", {}, (-inf, inf)),
        ("Clip", {}, (-inf, inf)),
    ],
)
def test_each_operator_has_its_bounds(op, attributes, bounds):
    assert bounds_of([node(op, "x", "y", **attributes)]) == bounds


def test_a_chain_of_clamps_may_be_longer_than_python_calls_go():
    chain = [node("Relu", f"h{i}", f"h{i + 1}") for i in range(1200)]
    nodes = [node("HardSigmoid", "x", "h0"), *chain, node("Identity", "h1200", "y")]
    assert bounds_of(nodes) == (0, 1)


def test_clip_takes_its_bounds_from_constants_only():
    limits = {"low": np.float32(-1), "high": np.float32(6)}
    assert bounds_of([node("Clip", "x low high", "y")], **limits) == (-1, 6)
    assert bounds_of([node("Clip", "x - high", "y")], **limits) == (-inf, 6)
    assert bounds_of([node("ReduceMax", "x", "m", keepdims=0), node("Clip", "x - m", "y")]) == (-inf, inf)


def test_a_clamp_keeps_the_bounds_of_what_it_clamps():
    limits = {"low": np.float32(-1), "high": np.float32(6), "half": np.float32(0.5), "two": np.float32(2)}
    assert bounds_of([node("HardSigmoid", "x", "s"), node("Clip", "s low high", "y")], **limits) == (0, 1)
    assert bounds_of([node("Tanh", "x", "s"), node("Relu", "s", "y")]) == (0, 1)
    assert bounds_of([node("Tanh", "x", "s"), node("Clip", "s - half", "y")], **limits) == (-1, 0.5)
    assert bounds_of([node("Tanh", "x", "s"), node("Clip", "s two high", "y")], **limits) == (-inf, inf)


def test_bounds_pass_what_moves_or_averages_values_and_nothing_else():
    moved = [node("Sigmoid", "x", "s"), node("Transpose", "s", "t", perm=[1, 0]), node("Identity", "t", "y")]
    assert bounds_of(moved) == (0, 1)
    assert bounds_of([node("Sigmoid", "x", "s"), node("Add", "s s", "y")]) == (-inf, inf)
    assert bounds_of([node("Identity", "x", "y")]) == (-inf, inf)


@given(st.integers(0, 50), st.sampled_from(sorted(METHODS)), st.booleans())
def test_no_range_goes_beyond_the_bounds(seed, method, symmetric):
    stats = TensorStats.of(np.append(np.abs(floats(300, seed=seed)), np.float32(1.25)))
    scheme = Scheme(ranges=method, activations="int8" if symmetric else "uint8")
    scale, zero = scheme_qparams(stats, scheme, (0.0, 1.0))
    top = (127 if symmetric else 255) - int(zero)
    assert top * float(scale) <= 1.0 + 1e-6
    if not symmetric:
        assert zero == 0
    assert scheme_qparams(stats, scheme, (0.0, 100.0)) == scheme_qparams(stats, scheme)


GATE = [node("HardSigmoid", "x", "g", alpha=1 / 6), node("Mul", "x g", "y")]
SILU = [node("Sigmoid", "x", "g"), node("Mul", "g x", "y")]


@pytest.mark.parametrize(
    ("nodes", "ends"),
    [
        ([node("HardSwish", "x", "y")], (-3, inf)),
        ([node("HardSigmoid", "x", "y")], (-2.5, 2.5)),
        ([node("HardSigmoid", "x", "y", alpha=-1.0)], (-inf, inf)),
        ([node("Tanh", "x", "y")], (-5, 5)),
        ([node("Sigmoid", "x", "y")], (-inf, inf)),
        (GATE, (-3, inf)),
        (SILU, (-8, inf)),
        ([*SILU[:1], node("Mul", "g g", "y")], (-inf, inf)),
        ([*SILU[:1], node("Mul", "g c", "y")], (-inf, inf)),
        ([*SILU, node("Relu", "x", "z")], (-inf, inf)),
        ([node("HardSwish", "x", "y"), node("Tanh", "x", "z")], (-5, inf)),
        ([*SILU[:1], node("Mul", "g x", "y"), node("Relu", "g", "z")], (-inf, inf)),
    ],
)
def test_codes_end_where_all_readers_are_flat(nodes, ends) -> None:
    outputs = [name for name in ("y", "z") if any(name in one.output for one in nodes)]
    model = parse(build(nodes, {"x": ["N", 4]}, outputs, {"c": floats(4)}).SerializeToString())
    assert flat_beyond(model.graph.values["x"]) == pytest.approx(tuple(MARGIN * end for end in ends))
