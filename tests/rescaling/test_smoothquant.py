"""Smoothing with a Mul: outliers of a few channels no longer decide what all channels are rounded to."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from rescale_support import build, difference, run

from onnxq.calibration.calibrate import calibrate
from onnxq.calibration.channel_stats import ChannelStats
from onnxq.calibration.stats import Stats
from onnxq.ir import Model, commit
from onnxq.planning.outlier_channels import adds_outliers
from onnxq.rescaling.cross_layer import Rescaling, channel_kinds, equalize
from onnxq.rescaling.groups import linear_reader
from onnxq.rescaling.smoothquant import prices, smooth

WIDTH, COLUMNS = 32, 96


def post_norm(outlier: float, *, columns: int = COLUMNS) -> Model:
    """A normalisation whose output two MatMul and a residual read, as in BERT; channel 3 is `outlier` times larger."""
    random = np.random.default_rng(0)
    gamma = np.ones(WIDTH, np.float32)
    gamma[3] = outlier
    return build(
        [
            ("LayerNormalization", ["x", "gamma"], ["z"]),
            ("MatMul", ["z", "q"], ["y1"]),
            ("Gemm", ["z", "k"], ["y2"], {"transB": 1}),
            ("Tanh", ["z"], ["y3"]),
        ],
        ["n", WIDTH],
        {
            "gamma": gamma,
            "q": random.standard_normal((WIDTH, columns)).astype(np.float32),
            "k": random.standard_normal((columns, WIDTH)).astype(np.float32),
        },
        outputs=["y1", "y2", "y3"],
    )


def samples(count: int = 20, seed: int = 1) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(seed)
    return [{"x": random.standard_normal((12, WIDTH)).astype(np.float32)} for _ in range(count)]


def readers(model: Model):
    return [node for node in model.graph.nodes if node.op_type in ("MatMul", "Gemm")]


def smoothed(model: Model, stats: Stats, **settings) -> Rescaling:
    return smooth(readers(model), stats, opset=model.opset, **settings)


def measure(model: Model, name: str = "z") -> Stats:
    kinds = partial(channel_kinds, {name: -1})
    return calibrate(model, [model.graph.values[name]], samples(), kinds=kinds, threads=1)


def layer_noise(activation: np.ndarray, weight: np.ndarray) -> float:
    """Error of an 8-bit activation and per-channel int8 weight in relation to the output, in dB."""
    low, high = min(activation.min(), 0), max(activation.max(), 0)
    step = (high - low) / 255
    zero = np.rint(-low / step)
    rounded = (np.clip(np.rint(activation / step) + zero, 0, 255) - zero) * step
    scale = np.abs(weight).max(axis=0) / 127
    exact = activation.astype(np.float64) @ weight
    return float(
        10 * np.log10(np.square(rounded @ (np.rint(weight / scale) * scale) - exact).mean() / (exact**2).mean())
    )


def test_one_mul_serves_all_readers_and_the_float_model_stays():
    model = post_norm(50.0)
    feeds = samples(1, seed=9)[0]
    reference = run(model, feeds)
    stats = measure(model)
    assert not equalize(readers(model), stats).changes  # the residual cannot undo a division
    rescaling = smoothed(model, stats, at_run_time=readers(model))  # a Mul alone
    (change,) = rescaling.changes
    commit(rescaling.patches)
    assert [node.op_type for node in model.graph.nodes] == ["LayerNormalization", "Mul", "MatMul", "Gemm", "Tanh"]
    assert set(readers(model)) == set(change.readers)
    assert {node.inputs[0].name for node in readers(model)} == {change.inserted}
    assert model.graph.nodes[-1].inputs[0].name == "z"
    assert difference(reference, run(model, feeds)) < 1e-5


def test_the_layers_gain_what_is_promised():
    model = post_norm(50.0)
    stats = measure(model)
    rescaling = smoothed(model, stats, at_run_time=readers(model))  # a Mul alone
    (change,) = rescaling.changes
    before = run(model.serialize(extra_outputs=[model.graph.values["z"]]), samples(1, seed=9)[0])[-1]
    weight = model.graph.values["q"].constant.numpy()
    divisor = change.divisors["z"]
    noise = layer_noise(before, weight), layer_noise(before / divisor, weight * divisor[:, None])
    assert change.gain > 5
    assert noise[0] - noise[1] > change.gain - 1  # for this reader alone, whose weight is rounded with less loss


def test_the_new_value_has_statistics_and_a_type():
    model = post_norm(50.0)
    stats = measure(model)
    rescaling = smoothed(model, stats, at_run_time=readers(model))  # a Mul alone
    old = stats["z"]
    commit(rescaling.patches)
    rescaling.update(stats)
    (change,) = rescaling.changes
    inserted = model.graph.values[change.inserted]
    assert (inserted.dtype, inserted.shape) == (model.graph.values["z"].dtype, model.graph.values["z"].shape)
    assert stats["z"] is old
    again = measure(model, change.inserted)[change.inserted]
    assert stats[change.inserted].max == pytest.approx(again.max, rel=1e-5)
    assert stats[change.inserted].min == pytest.approx(again.min, rel=1e-5)
    np.testing.assert_allclose(
        stats[change.inserted][ChannelStats].second_moment, again[ChannelStats].second_moment, rtol=1e-5
    )


def test_even_channels_do_not_pay_for_a_mul():
    model = post_norm(1.0)
    assert not smoothed(model, measure(model)).patches


def test_few_columns_do_not_pay_for_a_mul():
    model = post_norm(50.0, columns=16)
    assert not smoothed(model, measure(model)).patches


def test_only_the_readers_that_are_quantized_read_the_divided_value():
    model = post_norm(50.0)
    commit(smooth(readers(model)[:1], measure(model), opset=model.opset).patches)
    (other,) = (node for node in model.graph.nodes if node.op_type == "Gemm")
    assert other.inputs[0].name == "z"


def test_a_shared_weight_is_not_stored_twice():
    random = np.random.default_rng(0)
    model = build(
        [("Exp", ["x"], ["z"]), ("MatMul", ["z", "q"], ["y1"]), ("MatMul", ["x", "q"], ["y2"])],
        ["n", WIDTH],
        {"q": random.standard_normal((WIDTH, COLUMNS)).astype(np.float32)},
        outputs=["y1", "y2"],
    )
    stats = measure(model)
    assert smooth(readers(model)[:1], stats, opset=model.opset, least_gain=0.0).patches == []


def test_a_square_weight_that_is_read_transposed_as_well_is_scaled_along_another_axis():
    random = np.random.default_rng(0)
    model = build(
        [("Exp", ["x"], ["z"]), ("MatMul", ["z", "q"], ["y1"]), ("Gemm", ["z", "q"], ["y2"], {"transB": 1})],
        ["n", WIDTH],
        {"q": random.standard_normal((WIDTH, WIDTH)).astype(np.float32)},
        outputs=["y1", "y2"],
    )
    feeds = samples(1)[0]
    before = run(model, feeds)
    found = smoothed(model, measure(model), least_gain=1e-3, at_run_time=readers(model))
    assert [change.exponent is None for change in found.changes] == [False]
    commit(found.patches)
    assert difference(before, run(model, feeds)) < 1e-5


def test_a_value_without_statistics_by_channel_is_left_alone():
    model = post_norm(50.0)
    stats = calibrate(model, [model.graph.values["z"]], samples(), threads=1)
    assert smoothed(model, stats).patches == []


def towering(channels: int, columns: int, *, uneven: float = 0.0) -> Model:
    """An activation whose channel 5 reaches a hundred times further than the others, read by one layer with a bias.

    Where the others are uneven, too, channel 6 reaches a third as far, and the weight makes three times as much of it.
    """
    random = np.random.default_rng(0)
    size = np.exp(uneven * random.standard_normal(channels)).astype(np.float32)
    makes_up = np.where(np.arange(channels) == 5, 1, 1 / size)[:, None]
    weight = (random.standard_normal((channels, columns)) * makes_up).astype(np.float32)
    size[5] = size.max() * 100
    if uneven:
        size[6] = size[5] / 3
        weight[6] = 3 * random.standard_normal(columns)
    return build(
        [
            ("Mul", ["x", "size"], ["g"]),
            ("Softsign", ["g"], ["s"]),
            ("Mul", ["s", "size"], ["z"]),
            ("MatMul", ["z", "w"], ["h"]),
            ("Add", ["b", "h"], ["y"]),
            ("Tanh", ["z"], ["y2"]),
        ],
        ["n", channels],
        {"size": size, "w": weight, "b": random.standard_normal(columns).astype(np.float32)},
        outputs=["y", "y2"],
    )


def wide_samples(channels: int, count: int = 10, seed: int = 1) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(seed)
    return [{"x": random.standard_normal((12, channels)).astype(np.float32)} for _ in range(count)]


def measure_wide(model: Model, channels: int, name: str = "z") -> Stats:
    kinds = partial(channel_kinds, {name: -1})
    return calibrate(model, [model.graph.values[name]], wide_samples(channels), kinds=kinds, threads=1)


def wide(*, uneven: float = 0.0) -> tuple[Model, Stats]:
    """Outliers are cheap beside the product, and where channels differ, a Mul is."""
    model = towering(512, 512 if uneven else 64, uneven=uneven)
    return model, measure_wide(model, 512)


def test_a_channel_that_towers_above_the_rest_is_added_in_float():
    model, stats = wide()
    feeds = wide_samples(512, 1, seed=9)[0]
    reference = run(model, feeds)
    weight = model.graph.values["w"]
    rescaling = smoothed(model, stats)
    (change,) = rescaling.changes
    assert rescaling.said() == ["split outlier channels of 1 tensors off in float"]
    assert change.exponent is None
    known = stats["z"][ChannelStats]
    high, low = (np.delete(extremes[0], 5) for extremes in (known.high, known.low))
    assert change.bounds == (low.min(), high.max())
    commit(rescaling.patches)
    product = next(node for node in model.graph.nodes if node.op_type == "MatMul" and not adds_outliers(node))
    assert product.inputs[0].name == change.inserted
    assert product.inputs[1] is weight, "nothing is stored twice"
    assert difference(reference, run(model, feeds)) < 1e-5


def test_channels_may_be_divided_and_the_furthest_added_in_float():
    model, stats = wide(uneven=1.0)
    feeds = wide_samples(512, 1, seed=9)[0]
    reference = run(model, feeds)
    rescaling = smoothed(model, stats)
    (change,) = rescaling.changes
    assert change.exponent is not None
    assert change.bounds is not None
    assert len(rescaling.said()) == 2
    commit(rescaling.patches)
    kinds = [node.op_type for node in model.graph.nodes]
    assert (kinds.count("Mul"), kinds.count("Clip"), kinds.count("Gather")) == (3, 2, 1)
    assert change.divisors["z"][6] < 0.5, "its row of the weight in float has to follow"
    assert difference(reference, run(model, feeds)) < 1e-5


def test_the_layer_gains_what_is_promised_where_outliers_are_added():
    model, stats = wide()
    (change,) = smoothed(model, stats).changes
    z = run(model.serialize(extra_outputs=[model.graph.values["z"]]), wide_samples(512, 1, seed=9)[0])[-1]
    weight = model.graph.values["w"].constant.numpy()
    signal = np.square(z.astype(np.float64) @ weight).mean()
    clipped = np.clip(z, *change.bounds)
    share = np.square(clipped.astype(np.float64) @ weight).mean() / signal
    noise = layer_noise(z, weight), layer_noise(clipped, weight) + 10 * np.log10(share)
    assert change.gain > 10
    assert noise[0] - noise[1] == pytest.approx(change.gain, abs=1.5)


@pytest.mark.parametrize("uneven", [0.0, 1.0])
def test_what_is_clipped_has_statistics_and_a_type(uneven):
    model, stats = wide(uneven=uneven)
    rescaling = smoothed(model, stats)
    commit(rescaling.patches)
    rescaling.update(stats)
    (change,) = rescaling.changes
    inserted = model.graph.values[change.inserted]
    assert (inserted.dtype, inserted.shape) == (model.graph.values["z"].dtype, model.graph.values["z"].shape)
    known, again = stats[change.inserted], measure_wide(model, 512, change.inserted)[change.inserted]
    assert (known.min, known.max) == pytest.approx((again.min, again.max), rel=1e-5)
    assert change.bounds.low <= known.min < known.max <= change.bounds.high
    np.testing.assert_allclose(known[ChannelStats].high, again[ChannelStats].high, rtol=1e-5)
    np.testing.assert_allclose(known[ChannelStats].low, again[ChannelStats].low, rtol=1e-5)
    most = max(-change.bounds.low, change.bounds.high)
    assert (known[ChannelStats].second_moment >= again[ChannelStats].second_moment * (1 - 1e-5)).all()
    assert (known[ChannelStats].second_moment <= most**2 * (1 + 1e-5)).all()
    assert (np.square(known[ChannelStats].mean) <= known[ChannelStats].second_moment * (1 + 1e-9)).all()
    divided = stats["z"][ChannelStats].divided(change.divisors["z"])
    within = (divided.high[0] <= change.bounds.high) & (divided.low[0] >= change.bounds.low)
    assert 504 <= within.sum() < 512
    exact = again[ChannelStats].mean[within]
    np.testing.assert_allclose(known[ChannelStats].mean[within], exact, rtol=1e-3, atol=1e-6 * most)


@pytest.mark.parametrize(
    ("channels", "columns", "divided", "added"),
    [(512, 512, True, True), (512, 64, False, True), (64, 512, True, True), (64, 64, False, True)],
)
def test_passes_have_to_be_worth_their_time(channels, columns, divided, added):
    """A Mul goes over the channels, and does not pay where columns are few; outliers may pay a lot in any case."""
    model = towering(channels, columns, uneven=0.5)
    stats = measure_wide(model, channels)
    made = [(change.exponent is not None, change.bounds is not None) for change in smoothed(model, stats).changes]
    assert made == ([(divided, added)] if divided or added else [])
    (cheap,) = smoothed(model, stats, least_gain=0.5).changes
    assert cheap.bounds is not None, "if time did not matter"


def test_readers_of_one_value_pay_for_a_mul_together_and_each_for_its_outliers():
    one, two = (prices([linear_reader(n, 0) for n in readers(post_norm(1.0))][:count], 20.0) for count in (1, 2))
    assert one[0] == pytest.approx(2 * two[0])
    assert one[1] == two[1]
    assert list(one[1]) == [1, 2, 4, 8]
    assert sorted(one[1].values()) == list(one[1].values())


def test_some_channels_always_stay():
    model = build([("Exp", ["x"], ["z"]), ("MatMul", ["z", "w"], ["y"])], ["n", 4], {"w": np.ones((4, 8), np.float32)})
    assert list(prices([linear_reader(readers(model)[0], 0)], 20.0)[1]) == [1, 2]
