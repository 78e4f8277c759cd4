"""Shifting channels around zero: the float model stays as it is, and nothing is shifted that somebody cannot undo."""

from __future__ import annotations

import numpy as np
import pytest
from rescale_support import build, difference, run

from onnxq.calibration.calibrate import calibrate
from onnxq.calibration.channel_stats import ChannelStats
from onnxq.calibration.stats import Stats
from onnxq.ir import Model
from onnxq.ir.shape_inference.types import infer_types
from onnxq.rescaling.centering import centerable_tensors, centre
from onnxq.search.bias_correction import shift_biases

R = np.random.default_rng(3)
C = 6


def weight(*shape: int) -> np.ndarray:
    return R.standard_normal(shape).astype(np.float32)


FIRST = ("Conv", ["x", "a", "c"], ["h"], {"pads": [1, 1, 1, 1]})
SECOND = ("Conv", ["h", "b"], ["i"])
SUM = ("Add", ["h", "i"], ["s"])
LAST = ("Conv", ["s", "d", "e"], ["y"], {"group": 2})
WEIGHTS = {
    "a": weight(C, 3, 3, 3),
    "c": 5 * weight(C),
    "b": weight(C, C, 1, 1),
    "d": weight(4, C // 2, 1, 1),
    "e": weight(4),
}
PICTURES = [{"x": R.standard_normal((2, 3, 8, 8)).astype(np.float32)} for _ in range(4)]


def measured(model: Model) -> Stats:
    values = centerable_tensors(model.graph)
    return calibrate(model, values, PICTURES, kinds=lambda name: (ChannelStats(1),), threads=1)


def names(nodes, weights=WEIGHTS, **options) -> list[str]:
    return [value.name for value in centerable_tensors(build(nodes, ["n", 3, 8, 8], weights, **options).graph)]


def residual() -> Model:
    return build([FIRST, SECOND, SUM, LAST], ["n", 3, 8, 8], WEIGHTS)


def test_the_float_model_computes_the_same():
    model = residual()
    before = run(model, PICTURES[0])
    assert [value.name for value in centerable_tensors(model.graph)] == ["h", "i", "s"]
    found = centre(centerable_tensors(model.graph), measured(model))
    assert {len(shift) for shift in found.biases.values()} == {C, 4}
    shift_biases(model, found.biases)
    assert difference(before, run(model, PICTURES[0])) < 1e-5


def test_channels_lie_around_zero_and_statistics_say_so():
    model = residual()
    stats = measured(model)
    off = {name: np.abs(stats[name][ChannelStats].high[0] + stats[name][ChannelStats].low[0]) for name in "his"}
    found = centre(centerable_tensors(model.graph), stats)
    shift_biases(model, found.biases)
    infer_types(model)
    found.update(stats)
    again = measured(model)
    for name in "his":
        expected, got = again[name][ChannelStats], stats[name][ChannelStats]
        np.testing.assert_allclose(got.high, expected.high, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(got.low, expected.low, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(got.squares, expected.squares, rtol=1e-4)
        assert np.abs(got.high[0] + got.low[0]).max() < off[name].max() / 3
    assert np.abs(stats["h"][ChannelStats].high[0] + stats["h"][ChannelStats].low[0]).max() < 1e-4


PADDED = ("Conv", ["h", "p"], ["y"], {"pads": [1, 1, 1, 1]})
KEPT = {
    "padding, which would have to be the shift": ([FIRST, PADDED], {"p": weight(4, C, 3, 3)}, {}),
    "padding that is not written out": (
        [FIRST, ("Conv", ["h", "p"], ["y"], {"auto_pad": "SAME_UPPER"})],
        {"p": weight(4, C, 3, 3)},
        {},
    ),
    "a Relu": ([FIRST, ("Relu", ["h"], ["s"]), LAST], {}, {}),
    "an output": ([FIRST, ("Conv", ["h", "d"], ["y"], {"group": 2})], {}, {"outputs": ("y", "h")}),
    "another reader": (
        [FIRST, ("Conv", ["h", "d"], ["y"], {"group": 2}), ("Tanh", ["h"], ["z"])],
        {},
        {"outputs": ("y", "z")},
    ),
    "a sum that is clamped": ([FIRST, SECOND, SUM, ("Relu", ["s"], ["y"])], {}, {}),
    "a sum that is broadcast": (
        [FIRST, ("GlobalAveragePool", ["x"], ["g"]), ("Conv", ["g", "q"], ["i"]), SUM, LAST],
        {"q": weight(C, 3, 1, 1)},
        {},
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_what_nobody_undoes_stays(case):
    nodes, more, options = KEPT[case]
    assert names(nodes, WEIGHTS | more, **options) == []


def test_the_other_term_of_a_sum_may_stay():
    nodes = [("Conv", ["x", "a", "c"], ["k"]), ("Relu", ["k"], ["h"]), ("Conv", ["h", "b"], ["i"]), SUM, LAST]
    assert names(nodes) == ["i", "s"]
