"""Kernel times as tables: what every family has, where it comes from, and how families are weighed into one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxq.targets import Costs, families_of, load_costs, load_mixes
from onnxq.targets.grid import AXES, grid_axes, resampled
from onnxq.targets.mixed import mixed
from onnxq.targets.powers import exp2, log2
from onnxq.targets.tables import read_target, stored_targets

FAMILIES = [name for name in stored_targets() if "pointwise" in read_target(name)]
GRIDS = ("pointwise", "spatial", "depthwise", "grouped", "matmul", "recurrent")
LOGARITHMS = ["0x0.0p+0", "0x1.95c01a39fbd68p+0", "0x1.a934f0979a371p+1", "0x1.48a17937959fbp+3"]
POWERS = ["0x1.0000000000000p+0", "0x1.3b2c47bff8329p+0", "0x1.ae89f995ad3aep-8", "0x1.9fdf8bcce533ap+12"]
OTHERS = ("integer_conv", "borders", "rows", "elementwise", "clamps", "floats")


def tables(name: str) -> dict[str, dict[str, Any]]:
    return {key: table for key, table in read_target(name).items() if isinstance(table, dict) and "source" in table}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_table_of_a_family_says_where_it_comes_from(name: str) -> None:
    found = tables(name)
    assert {*GRIDS, *OTHERS} <= found.keys()
    for section, table in found.items():
        kind, _, source = table["source"].partition(" ")
        assert kind in ("measured", "estimated"), section
        assert "onnxruntime" in source if kind == "measured" else "estimate_arm.py" in source


@pytest.mark.parametrize("name", FAMILIES)
def test_every_grid_has_a_positive_time_for_every_combination_of_sizes(name: str) -> None:
    for section in GRIDS:
        table = tables(name)[section]
        sizes = math.prod(len(table[axis]) for axis in AXES if axis in table)
        for times in (table[key] for key in ("float", "integer")):
            assert len(times) == sizes, section
            assert min(times) > 0, section


@pytest.mark.parametrize("name", FAMILIES)
def test_families_know_the_same_operators(name: str) -> None:
    for section in OTHERS:
        assert tables(name)[section].keys() == tables("cpu-vnni")[section].keys()


def test_a_mix_of_one_family_is_its_table() -> None:
    found = mixed({"a": read_target("cpu-avx2")}, {"a": 2.0})
    for section, table in tables("cpu-avx2").items():
        for key, value in table.items():
            if key != "source":
                assert np.array_equal(found[section][key], value), (section, key)


def test_a_slow_clock_does_not_count_for_more() -> None:
    fast, slow = tables("cpu-avx2"), tables("cpu-avx2")
    for section, table in fast.items():
        kept = {"source", *(AXES if "float" in table else ())}
        slow[section] = {key: value if key in kept else (np.array(value) * 5).tolist() for key, value in table.items()}
    for section, table in mixed({"fast": fast, "slow": slow}, {"fast": 1, "slow": 3}).items():
        for key, value in table.items():
            np.testing.assert_allclose(value, fast[section][key], rtol=1e-12)


def test_a_mix_lies_between_its_families() -> None:
    names = ("cpu-avx2", "cpu-vnni")
    both = Costs(mixed({name: read_target(name) for name in names}, dict.fromkeys(names, 1.0)))
    for shape in ((64, 64, 1, 784, 1), (128, 32, 9, 784, 1), (256, 256, 9, 784, 256)):
        ratios = [times[1] / times[0] for times in (load_costs(name).conv(*shape) for name in names)]
        mean = both.conv(*shape)[1] / both.conv(*shape)[0]
        assert min(ratios) <= mean <= max(ratios)


def test_the_default_is_a_mix_of_families_with_tables() -> None:
    assert set(families_of("cpu")) < set(FAMILIES)
    assert len(load_mixes("cpu")) == len(read_target("cpu")["mix"]["shares"])
    assert load_costs("cpu") is load_mixes("cpu")[0]
    assert "pointwise" not in read_target("cpu")


def test_a_table_over_more_sizes_is_the_same_function_of_sizes() -> None:
    table = tables("cpu-vnni")
    axes = grid_axes(table["pointwise"]) | {"channels": [8, 16, 32, 50, 128, 512], "pixels": [49, 100, 784, 12544]}
    finer = Costs({**table, "pointwise": resampled(table["pointwise"], axes)})
    for shape in ((8, 8, 1, 49, 1), (20, 40, 1, 300, 1), (64, 64, 1, 784, 1), (300, 500, 1, 9000, 1)):
        assert finer.conv(*shape) == pytest.approx(load_costs("cpu-vnni").conv(*shape), rel=1e-12)


def test_conversions_of_a_map_that_leaves_the_cache_take_longer_per_element() -> None:
    costs = load_costs("cpu-avx2")
    for kind in ("QuantizeLinear", "DequantizeLinear", "Transpose", "Reorder"):
        near, far = costs.moved(kind, 1 << 20), costs.moved(kind, 1 << 22)
        assert near == pytest.approx(costs.borders[kind] * 2**20)
        assert far == pytest.approx(4 * near + costs.borders["beyond"] * 3 * 2**20)
    mixes = load_mixes("cpu")
    assert all(mix.moved("Reorder", 1 << 22) > 4 * mix.moved("Reorder", 1 << 20) for mix in mixes)


@pytest.mark.parametrize("name", ["cpu-avx2", "cpu-vnni", "cpu"])
@pytest.mark.parametrize("window", [1, 9])
def test_a_float_kernel_computes_a_block_of_filters_for_one(name: str, window: int) -> None:
    costs = load_costs(name)
    few, block = (costs.conv(64, filters, window, 3136, 1) for filters in (1, 8))
    assert few == block


def test_kernels_without_blocks_take_less_for_one_filter() -> None:
    costs = load_costs("cpu-arm64")
    few, block = (costs.conv(64, filters, 9, 3136, 1) for filters in (1, 8))
    assert few[0] < 0.5 * block[0]


# Channels, window, positions, and how many times as long float took as codes on AMD Zen 4
ONE_AXIS = [(64, 31, 400, 3.4), (256, 9, 400, 2.7), (256, 31, 100, 5.7), (256, 3, 1600, 1.6), (256, 31, 1600, 4.0)]


@pytest.mark.parametrize(("channels", "window", "positions", "ratio"), ONE_AXIS)
def test_float_multiplies_each_channel_of_a_depthwise_conv_of_one_axis(
    channels: int, window: int, positions: int, ratio: float
) -> None:
    in_float, in_integers = load_costs("cpu-vnni").conv(channels, channels, window, positions, channels, axes=1)
    assert ratio / 2 < in_float / in_integers < ratio * 2


@pytest.mark.parametrize("name", FAMILIES)
def test_a_depthwise_conv_of_one_axis_is_no_faster_than_one_of_two(name: str) -> None:
    one, two = (load_costs(name).conv(128, 128, 11, 400, 128, axes=axes) for axes in (1, 2))
    assert one[0] > 1.5 * two[0]


@given(st.floats(1e-9, 1e12))
def test_logarithms_and_powers_are_those_of_numpy_but_for_the_last_bits(number: float) -> None:
    assert log2(number) == pytest.approx(float(np.log2(number)), rel=1e-15, abs=1e-15)
    assert exp2(log2(number)) == pytest.approx(number, rel=1e-14)


def test_logarithms_and_powers_are_the_same_bits_on_every_processor() -> None:
    assert [log2(number).hex() for number in (1.0, 3.0, 10.0, 1234.5)] == LOGARITHMS
    assert [exp2(number).hex() for number in (0.0, 0.3, -7.25, 12.7)] == POWERS


def test_many_inputs_of_few_units_are_a_product_over_all_steps() -> None:
    """Measured on a Zen 3: 0.94 to 1.22 of float's time, and 1.33 of 16 units. As square products: 0.89 and 1.14."""
    costs = load_costs("cpu-avx2")
    for inputs, hidden in ((162, 25), (128, 16)):
        in_float, in_integers = costs.recurrent(200, 1, inputs, hidden, 4)
        assert in_integers > in_float
    in_float, in_integers = costs.recurrent(50, 1, 512, 64, 4)
    assert in_integers < 0.7 * in_float
