"""AveragePool between quantized neighbours: a Conv of equal weights where windows are divided by one number."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import ALL, build, floats, node, quantize_in_memory, typed

from onnxq.ops.forms.average_pool import averaging_window
from onnxq.planning.recipe import load_recipe

X = [1, 4, 12, 12]
WINDOW = {"kernel_shape": [2, 2], "strides": [2, 2]}
AS_CONV = {
    "windows": WINDOW,
    "counted padding": {"kernel_shape": [3, 3], "pads": [1] * 4, "count_include_pad": 1},
    "no stride": {"kernel_shape": [3, 2]},
    "valid": WINDOW | {"auto_pad": "VALID"},
}
AS_POOL = {
    "padding that does not count": {"kernel_shape": [3, 3], "pads": [1] * 4},
    "windows that hang over": WINDOW | {"strides": [3, 3], "ceil_mode": 1},
    "padding by sizes": {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER"},
}


def pooled(attributes: dict, shape=X, opset: int = 17):
    """Conv, AveragePool and Conv."""
    ones = [1] * (len(shape) - 2)
    nodes = [node("Conv", "x w", "c"), node("AveragePool", "c", "m", **attributes), node("Conv", "m v", "y")]
    weights = {"w": floats(16, shape[1], *ones), "v": floats(8, 16, *ones, seed=1)}
    return build(nodes, {"x": shape}, ["y"], weights, opset)


@pytest.mark.parametrize("name", AS_CONV)
def test_it_is_a_conv_of_equal_codes(name):
    x = {"x": floats(*X)}
    made = quantize_in_memory(pooled(AS_CONV[name]), "static-int8", [x])
    assert made.decision("n_m").scheme == "static-int8"
    assert (made.ops["AveragePool"], made.ops["Conv"]) == (0, 3)
    assert made.optimized()["QLinearConv"] == 3
    exact, got = made.float_run(x), made.run(x, ALL)
    assert exact[0].shape == got[0].shape
    assert made.sqnr(x, ALL) > 30


def test_along_one_axis_too():
    made = quantize_in_memory(pooled({"kernel_shape": [4]}, [1, 4, 40]), "static-int8", [{"x": floats(1, 4, 40)}])
    assert made.optimized()["QLinearConv"] == 3
    assert made.sqnr({"x": floats(1, 4, 40)}, ALL) > 30


@pytest.mark.parametrize("name", AS_POOL)
def test_windows_of_several_sizes_stay_a_pool(name):
    made = quantize_in_memory(pooled(AS_POOL[name]), "static-int8", [{"x": floats(*X)}])
    assert made.ops["AveragePool"] == 1


@pytest.mark.parametrize("attributes", [{"dilations": [2, 2]}, {"dilations": [1, 1]}])
def test_gaps_are_no_window_of_neighbours(attributes):
    (pool,) = (one for one in typed(pooled(WINDOW | attributes, opset=19)).graph.nodes if one.op_type == "AveragePool")
    assert averaging_window(pool) == (None if attributes["dilations"] == [2, 2] else (16, (2, 2)))


def test_other_runtimes_get_the_operator_that_they_know():
    recipe = load_recipe("static-int8").setting(target="generic")
    made = quantize_in_memory(pooled(WINDOW), recipe, [{"x": floats(*X)}])
    assert made.ops["AveragePool"] == 1


def test_the_codes_are_those_of_the_pool():
    x = {"x": floats(*X)}
    made = quantize_in_memory(pooled(WINDOW), "static-int8", [x])
    codes = made.run_taps(x, "c_quantized", "m_quantized")
    names = ("c_scale", "c_zero_point", "m_scale", "m_zero_point")
    before, zero, after, to = (float(made.weights[name]) for name in names)
    means = ((codes[0].astype(np.float64) - zero) * before).reshape(1, 16, 6, 2, 6, 2).mean(axis=(3, 5))
    assert np.abs(np.clip(np.rint(means / after + to), 0, 255) - codes[1]).max() <= 1


def test_pads_beside_valid_count_for_nothing():
    valid = WINDOW | {"auto_pad": "VALID", "pads": [1] * 4}
    (pool,) = (one for one in typed(pooled(valid)).graph.nodes if one.op_type == "AveragePool")
    assert averaging_window(pool) == (16, (2, 2))
