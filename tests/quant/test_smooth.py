"""Smoothing with a Mul: outliers of a few channels no longer decide what all channels are rounded to."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from onnxq.ir import Model, commit
from onnxq.quant.calibrate import calibrate
from onnxq.quant.channels import ChannelStats
from onnxq.quant.equalize import channel_kinds, equalize
from onnxq.quant.rescale import Reading, best
from onnxq.quant.smooth import smooth
from onnxq.quant.stats import Stats
from tests.quant.rescale_support import build, difference, run

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
    rescaling = smooth(readers(model), stats)
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
    rescaling = smooth(readers(model), stats)
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
    rescaling = smooth(readers(model), stats)
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
    assert not smooth(readers(model), measure(model)).patches


def test_few_columns_do_not_pay_for_a_mul():
    model = post_norm(50.0, columns=16)
    assert not smooth(readers(model), measure(model)).patches


def test_only_the_readers_that_are_quantized_read_the_divided_value():
    model = post_norm(50.0)
    commit(smooth(readers(model)[:1], measure(model)).patches)
    assert [node.inputs[0].name for node in readers(model)][1] == "z"


def test_a_shared_weight_is_not_stored_twice():
    random = np.random.default_rng(0)
    model = build(
        [("Exp", ["x"], ["z"]), ("MatMul", ["z", "q"], ["y1"]), ("MatMul", ["x", "q"], ["y2"])],
        ["n", WIDTH],
        {"q": random.standard_normal((WIDTH, COLUMNS)).astype(np.float32)},
        outputs=["y1", "y2"],
    )
    stats = measure(model)
    assert smooth(readers(model)[:1], stats, least_gain=0.0).patches == []


def test_a_value_without_statistics_by_channel_is_left_alone():
    model = post_norm(50.0)
    stats = calibrate(model, [model.graph.values["z"]], samples(), threads=1)
    assert smooth(readers(model), stats).patches == []


def test_the_exponent_leaves_room_where_batches_disagree():
    """Channels whose range comes from a single batch get headroom; those that every batch fills are made equal."""
    random = np.random.default_rng(5)
    weight = random.standard_normal((1, 64, 16, 1))
    size = np.exp2(np.arange(16) / 2)
    steady, spiky = ChannelStats(-1), ChannelStats(-1)
    for index in range(16):
        batch = random.uniform(-1, 1, (400, 16))
        batch[0], batch[1] = 1, -1
        steady.add((batch * size).astype(np.float32))
        batch[:2, index] *= 8  # of one channel in each batch
        spiky.add((batch * size).astype(np.float32))
    exponents = [best([Reading(stats, [weight], [None])], 0.0)[0].exponent for stats in (steady, spiky)]
    assert exponents[0] == 1.0
    assert exponents[1] is None or exponents[1] < 0.9


def test_a_channel_that_is_always_zero_does_no_harm():
    stats = ChannelStats(-1)
    values = np.random.default_rng(6).standard_normal((50, 8)).astype(np.float32) * np.exp2(
        np.arange(8, dtype=np.float32)
    )
    values[:, 2] = 0
    stats.add(values)
    stats.add(values / 2)
    weight = np.random.default_rng(7).standard_normal((1, 4, 8, 1))
    weight[:, :, 5] = 0  # and one that nobody reads
    candidate, gain = best([Reading(stats, [weight], [np.ones(4)])], 1.0)
    assert gain > 0
    assert np.isfinite(candidate.divisor).all()
    assert (candidate.divisor > 0).all()


def towering(reader: str, **attributes) -> Model:
    """An activation whose channel 5 reaches a hundred times further than the others, read by one layer with a bias."""
    random = np.random.default_rng(0)
    size = np.ones(WIDTH, np.float32)
    size[5] = 100
    weight = random.standard_normal((WIDTH, WIDTH)).astype(np.float32)
    nodes = [("Mul", ["x", "size"], ["g"]), ("Softsign", ["g"], ["s"]), ("Mul", ["s", "size"], ["z"])]
    nodes += (
        [("MatMul", ["z", "w"], ["h"]), ("Add", ["b", "h"], ["y"])]
        if reader == "MatMul"
        else [("Gemm", ["z", "w", "b"], ["y"], attributes)]
    )
    return build(
        [*nodes, ("Tanh", ["z"], ["y2"])],
        ["n", WIDTH],
        {"size": size, "w": weight, "b": random.standard_normal(WIDTH).astype(np.float32)},
        outputs=["y", "y2"],
    )


@pytest.mark.parametrize(
    ("reader", "attributes"), [("MatMul", {}), ("Gemm", {}), ("Gemm", {"transB": 1, "alpha": 0.5, "beta": 2.0})]
)
def test_a_channel_that_towers_above_the_rest_is_computed_apart(reader, attributes):
    model = towering(reader, **attributes)
    feeds = samples(1, seed=9)[0]
    reference = run(model, feeds)
    stats = measure(model)
    wide = smooth(readers(model), stats, least_columns=WIDTH)
    (change,) = wide.changes
    assert change.apart == (5,)
    commit(wide.patches)
    wide.update(stats)
    kinds = [node.op_type for node in model.graph.nodes]
    assert kinds.count("Slice") == 1
    assert difference(reference, run(model, feeds)) < 1e-5
    inserted = run(model.serialize(extra_outputs=[model.graph.values[change.inserted]]), feeds)[-1]
    assert not inserted[:, 5].any()
    assert stats[change.inserted].max < 3
    assert stats[change.inserted][ChannelStats].high[0, 5] == 0


def test_the_bias_stays_right_behind_its_product():
    """Onnxruntime computes an Add with the integer product only where it follows at once."""
    model = towering("MatMul")
    commit(smooth(readers(model), measure(model), least_columns=WIDTH).patches)
    product = next(node for node in model.graph.nodes if node.op_type == "MatMul")
    (bias,) = product.outputs[0].consumers()
    assert bias.op_type == "Add"
    assert product.outputs[0].name == "h_without_outlier"  # it is not what the float model calls h
    assert "b" in [source.name for source in bias.inputs]


def test_two_outliers_may_be_apart_but_no_more():
    random = np.random.default_rng(8)
    values = random.uniform(-1, 1, (500, 64)) * np.where(np.arange(64) < 3, 200, 1)
    stats = ChannelStats(-1)
    for part in np.split(values.astype(np.float32), 5):
        stats.add(part)
    reading = Reading(stats, [random.standard_normal((1, 64, 64, 1))], [None])
    assert best([reading], 1.0)[0].apart == ()
    few = np.where(np.arange(64) == 2, 0.005, 1)
    two = Reading(stats.divided(1 / few), [random.standard_normal((1, 64, 64, 1))], [None])
    assert best([two], 1.0, apart=2, pays=1.5)[0].apart == (0, 1)


def test_wide_outputs_do_not_pay_for_a_channel_apart():
    model = post_norm(50.0)
    stats = measure(model)
    (change,) = smooth(readers(model), stats).changes
    assert change.apart == ()
    weight = model.graph.values["q"].constant.numpy().T.reshape(1, COLUMNS, WIDTH, 1)
    reading = Reading(stats["z"][ChannelStats], [weight], [None])
    assert best([reading], 1.0, apart=2, pays=1.5)[0].apart == (3,)  # where it would help
