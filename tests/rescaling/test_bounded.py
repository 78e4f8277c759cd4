"""Channels in front of an upper bound: enlarged by half of the room, and those not that reach it."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from rescale_support import build, difference, linear, run

from onnxq.calibration.calibrate import calibrate
from onnxq.calibration.stats import Stats
from onnxq.ir import Model, commit
from onnxq.rescaling.bounded import required_headroom
from onnxq.rescaling.cross_layer import Rescaling, channel_axes, channel_kinds, equalize
from onnxq.rescaling.find_groups import find_groups
from onnxq.rescaling.groups import ScaleGroup

R = np.random.default_rng(5)
SIZES = np.array([40.0, 3.0, 1.0, 0.3])  # of channels, the first of which reaches the 6
PICTURES = [{"x": R.random((2, 3, 8, 8)).astype(np.float32)} for _ in range(12)]


def relu6() -> Model:
    first = np.abs(R.standard_normal((4, 3, 1, 1))) * SIZES[:, None, None, None] / 3
    second = R.standard_normal((5, 4, 1, 1)) / SIZES[:, None, None]
    return build(
        [("Conv", ["x", "a"], ["h"]), ("Clip", ["h", "zero", "six"], ["z"]), ("Conv", ["z", "b"], ["y"])],
        ["n", 3, 8, 8],
        {
            "a": first.astype(np.float32),
            "b": second.astype(np.float32),
            "zero": np.float32(0),
            "six": np.float32(6),
        },
    )


def measured(model: Model, count: int = len(PICTURES)) -> Stats:
    axes = channel_axes(linear(model))
    values = [model.graph.values[name] for name in axes]
    return calibrate(model, values, PICTURES[:count], kinds=partial(channel_kinds, axes), threads=1)


def bounded(group: ScaleGroup) -> bool:
    return bool(group.limits)


def enlarged(model: Model) -> Rescaling:
    return equalize(linear(model), measured(model), wanted=bounded)


def group_of(model: Model) -> ScaleGroup:
    value = model.graph.values["z"]
    return find_groups({value: 1})[value]


def test_the_float_model_computes_the_same_on_what_was_seen():
    model = relu6()
    before = [run(model, picture)[0] for picture in PICTURES]
    commit(enlarged(model).patches)
    assert difference(before, [run(model, picture)[0] for picture in PICTURES]) < 1e-5


def test_channels_are_enlarged_half_way_and_the_one_at_the_bound_stays():
    model = relu6()
    needed = required_headroom(group_of(model), measured(model))
    assert needed is not None
    assert needed[0] >= 1
    (change,) = enlarged(model).changes
    divisor = change.divisors["z"]
    assert divisor[0] == 1
    assert divisor == pytest.approx(np.sqrt(np.minimum(needed, 1)))
    assert (divisor[1:] < 1).all()


def test_nothing_is_enlarged_unless_it_is_asked_for():
    model = relu6()
    assert not equalize(linear(model), measured(model)).changes


def test_one_sample_says_nothing_about_others():
    model = relu6()
    assert required_headroom(group_of(model), measured(model, 1)) is None


def test_a_bounded_value_that_was_not_measured_stays():
    assert required_headroom(group_of(relu6()), Stats()) is None
