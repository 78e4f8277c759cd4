"""Histograms that count channels by what their errors do at the outputs of their readers, and ranges from those."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import build, floats, node
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.calibration.histogram import Histogram
from onnxq.calibration.output_sensitivity import OutputSensitivity, channel_energies
from onnxq.calibration.ranges import choose_range
from onnxq.calibration.stats import Stats, TensorStats, basic_kinds
from onnxq.calibration.stats_file import load_stats, save_stats
from onnxq.calibration.weighted_histogram import GREATEST, WeightedHistogram, channel_weights
from onnxq.evaluator import Evaluator
from onnxq.ir import infer_types, parse
from onnxq.planning.planner import make_plan
from onnxq.planning.recipe import load_recipe

SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5))


def state(histogram: Histogram) -> tuple[object, ...]:
    return histogram.exponent, histogram.first, histogram.zeros, histogram.counts.tolist()


def repeated(values: np.ndarray, weights: np.ndarray, axis: int) -> Histogram:
    """The definition: an ordinary histogram in which every element stands as often as its channel weighs."""
    made = Histogram()
    made.add(values)
    made.counts[:] = made.zeros = 0
    spread = np.broadcast_to(np.expand_dims(weights, tuple(range(1, values.ndim - axis))), values.shape)
    made.add(np.repeat(values.reshape(-1), spread.reshape(-1)))
    return made


@given(SHAPES, st.integers(0, 2), st.integers(0, 99), st.sampled_from([0.01, 1.0, 300.0]))
def test_it_is_a_histogram_of_repeated_elements(shape, axis, seed, scale):
    values = np.round(floats(*shape, seed=seed, scale=scale), 1)
    weights = np.random.default_rng(seed).integers(0, 5, shape[axis])
    for given_axis in (axis, axis - 3):
        made = WeightedHistogram(weights, given_axis)
        made.add(values)
        assert state(made) == state(repeated(values, weights, axis))


def test_large_batches_are_counted_in_pieces():
    weights = np.array([3, 0, 7])
    for shape, axis in (((2, 3, 40_000), 1), ((50_000, 3), -1)):
        values = floats(*shape)
        made = WeightedHistogram(weights, axis)
        made.add(values)
        assert state(made) == state(repeated(values, weights, axis % values.ndim))


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(1, 6), st.sampled_from([0.0, 1e-3, 1.0, 1e4])), max_size=5), st.randoms())
def test_order_split_and_merge_change_nothing(sizes, random):
    weights = np.array([5, 0, GREATEST])
    batches = [floats(rows, 3, seed=i, scale=scale) for i, (rows, scale) in enumerate(sizes)]
    whole, one_by_one = WeightedHistogram(weights), WeightedHistogram(weights)
    if batches:
        whole.add(np.concatenate(batches[::-1]))
    parts = [WeightedHistogram(weights)]
    for batch in batches:
        one_by_one.add(batch)
        parts.append(WeightedHistogram(weights))
        parts[-1].add(batch)
    random.shuffle(parts)
    while len(parts) > 1:
        parts.append(parts.pop(random.randrange(len(parts))).merge(parts.pop(random.randrange(len(parts)))))
    assert state(parts[0]) == state(one_by_one) == state(whole)
    assert parts[0].counts.sum() == sum(len(batch) for batch in batches) * weights.sum()


def test_different_weights_do_not_merge():
    for other in (WeightedHistogram([1, 3]), WeightedHistogram([1, 2], 1)):
        with pytest.raises(ValueError, match="different channel weights"):
            WeightedHistogram([1, 2]).merge(other)
    with pytest.raises(ValueError, match="3 channels, but weights for 2"):
        WeightedHistogram([1, 2]).add(floats(4, 3))


def test_saved_statistics_come_back_and_go_on(tmp_path):
    stats = Stats(lambda name: (*basic_kinds(), *([WeightedHistogram([1, 9], 1)] if name == "a" else [])))
    stats.add("a", floats(2, 2, 30))
    stats.add("b", floats(2, 2, 30))
    save_stats(tmp_path / "s.npz", stats, "none")
    loaded = load_stats(tmp_path / "s.npz")[0]
    assert WeightedHistogram not in loaded["b"]
    assert state(loaded["a"][WeightedHistogram]) == state(stats["a"][WeightedHistogram])
    assert choose_range(loaded["a"], "output-error") == choose_range(stats["a"], "output-error")
    loaded["a"][WeightedHistogram].add(floats(2, 2, 30, seed=1))
    stats["a"][WeightedHistogram].add(floats(2, 2, 30, seed=1))
    assert state(loaded["a"][WeightedHistogram]) == state(stats["a"][WeightedHistogram])


# -- readers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reader", "shape", "axis"),
    [
        (node("MatMul", "x w", "y"), (6, 4), -1),
        (node("MatMul", "w x", "y"), (5, 6), -2),
        (node("Gemm", "x w", "y", transA=1, transB=1), (5, 6), -2),
        (node("Conv", "x w", "y", group=2), (4, 3, 3, 3), 1),
    ],
)
def test_energies_are_what_a_change_of_one_channel_does(reader, shape, axis):
    conv = reader.op_type == "Conv"
    weight = floats(*shape)
    values = np.zeros((1, 6, 7, 7), np.float32) if conv else np.zeros((6, 6), np.float32)
    data = build([reader], {"x": list(values.shape)}, ["y"], {"w": weight}).SerializeToString()
    model = parse(data)
    infer_types(model)
    found = channel_energies(model.graph.nodes[0], model.graph.values["x"])
    assert found is not None
    assert found[0] == axis
    evaluator = Evaluator(model)
    for channel in range(6):
        changed = values.copy()
        if conv:
            changed[0, channel, 3, 3] = 1.0  # seen through every position of the kernel
        else:
            changed[(0, channel) if axis == -1 else (channel, 0)] = 1.0
        (result,) = evaluator.run({"x": changed}, ["y"]).values()
        np.testing.assert_allclose(np.square(result).sum(), found[1][channel], rtol=1e-5)


def test_a_reader_of_another_kind_has_no_energies():
    model = parse(build([node("Relu", "x", "y")], {"x": ["N", 3]}).SerializeToString())
    assert channel_energies(model.graph.nodes[0], model.graph.values["x"]) is None


def test_readers_count_alike_however_large_their_outputs_are():
    small, large = np.array([1.0, 0.0]), np.array([0.0, 1e6])
    assert channel_weights([small, large]).tolist() == [GREATEST, GREATEST]
    assert channel_weights([np.array([1.0, 3.0])]).tolist() == [round(GREATEST / 3), GREATEST]
    assert channel_weights([np.zeros(3)]).tolist() == [1, 1, 1]
    assert channel_weights([np.array([np.inf, 1.0])]).tolist() == [1, 1]


def planned(model: onnx.ModelProto):
    parsed = parse(model.SerializeToString())
    infer_types(parsed)
    return make_plan(parsed, load_recipe("static-int8"), with_data=True)


def test_a_plan_weighs_what_its_static_layers_read():
    weight = np.diag([1.0, 2.0, 0.0]).astype(np.float32)
    nodes = [node("MatMul", "x w", "y"), node("Neg", "x", "z")]
    weights = OutputSensitivity(planned(build(nodes, {"x": ["N", 3]}, ["y", "z"], {"w": weight})))
    (found,) = [kind for kind in weights.kinds("x") if isinstance(kind, WeightedHistogram)]
    assert found.axis == 1
    assert found.weights.tolist() == [GREATEST // 4, GREATEST, 0]  # Neg reads x in float
    assert not any(isinstance(kind, WeightedHistogram) for kind in weights.kinds("y"))


def test_values_that_everybody_reads_in_8_bit_count_for_everybody():
    weight = np.zeros((2, 2, 1, 1), np.float32)
    weight[0, 0] = 1.0
    nodes = [node("Conv", "x v", "c"), node("Conv", "c w", "y"), node("Neg", "c", "z")]
    model = build(nodes, {"x": ["N", 2, 4, 4]}, ["y", "z"], {"v": floats(2, 2, 1, 1), "w": weight})
    (found,) = [kind for kind in OutputSensitivity(planned(model)).kinds("c") if isinstance(kind, WeightedHistogram)]
    assert found.weights.tolist() == [GREATEST, GREATEST // 3]  # shares 1 and 0 of w, a half each of Neg


# -- ranges -----------------------------------------------------------------------------------------------------


def measured(values: np.ndarray, weights: list[int]) -> TensorStats:
    stats = TensorStats([*basic_kinds(), WeightedHistogram(weights)])
    stats.add(values)
    return stats


def test_an_outlier_is_cut_off_where_nobody_reads_it_and_kept_where_it_matters():
    values = floats(2000, 2)
    values[0, 1] = 100.0
    unread, decisive = measured(values, [GREATEST, 0]), measured(values, [1, GREATEST])
    assert choose_range(unread, "output-error")[1] < 5
    assert choose_range(decisive, "output-error")[1] > 95
    assert choose_range(unread, "mse") == choose_range(decisive, "mse")


@pytest.mark.parametrize("kind", ["normal", "laplace"])
def test_clipping_counts_more_at_outputs_than_in_the_tensor_itself(kind):
    values = getattr(np.random.default_rng(3), kind)(size=(20_000, 3)).astype(np.float32)
    stats = measured(values, [7, 7, 7])
    low, high = choose_range(stats, "output-error", bits=4)
    inner = choose_range(stats, "mse", bits=4)
    assert low < inner[0]
    assert inner[1] < high < values.max()


def test_the_chosen_range_has_the_least_error_at_the_output():
    """By trying: with weights on single channels, so that output errors are those of the model of the docstring."""
    generator = np.random.default_rng(0)
    values = (generator.standard_t(4, (4000, 4)) * [1, 2, 0.3, 1]).astype(np.float32)
    columns = np.array([1.0, 0.1, 4.0, 0.0])
    stats = measured(values, channel_weights([np.square(columns)]).tolist())
    low, high = choose_range(stats, "output-error", bits=6)

    def error(lo: float, hi: float) -> float:
        scale = (hi - lo) / 63
        zero = np.rint(-lo / scale)
        codes = np.clip(np.rint(values / scale) + zero, 0, 63)
        off = np.square(((codes - zero) * scale - values) * columns)
        beyond = (values < -zero * scale) | (values > (63 - zero) * scale)
        return float((off * np.where(beyond, 4.0, 1.0)).sum())

    tried = [
        error(values.min() * a, values.max() * b) for a in np.geomspace(0.05, 1, 40) for b in np.geomspace(0.05, 1, 40)
    ]
    assert error(low, high) <= min(tried) * 1.05  # 5 %: bins and grids differ
    assert error(low, high) < 0.5 * error(values.min(), values.max())
