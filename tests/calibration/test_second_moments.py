"""Second moments are what they claim: the error of a layer's output, against onnxruntime, whatever the batches."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import run
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from onnxq.calibration.calibrate import calibrate
from onnxq.calibration.im2col import Unfolding, unfolding_of, weight_rows
from onnxq.calibration.layer_moments import MeasuredLayers, block_columns
from onnxq.calibration.second_moments import ROWS_PER_ITEM, InputMoments, LayerMoments
from onnxq.calibration.stats import Moments, Stats, TensorStats
from onnxq.calibration.stats_file import load_stats, save_stats
from onnxq.ir import infer_types, parse


def layer(op, weight, x_shape, *, left=False, **attributes):
    """One node with a constant weight, as bytes of a model."""
    inputs = ["w", "x"] if left else ["x", "w"]
    graph = helper.make_graph(
        [helper.make_node(op, inputs, ["y"], **attributes)],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x_shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def node_of(data):
    model = parse(data)
    infer_types(model)
    return model.graph.nodes[0]


def measured(node, x, block=None):
    _, unfolding = unfolding_of(node)
    moments = LayerMoments(unfolding, block or unfolding.n)
    moments.add(x)
    return moments


def check(data, x, weight, channel_axis):
    """The output of the weight itself is its error as a difference: mean square and mean of each channel."""
    node = node_of(data)
    total = measured(node, x).total()
    out = np.moveaxis(run(data, {"x": x})[0], channel_axis, 0).reshape(-1, total.rows).astype(np.float64)
    rows = weight_rows(node, weight)
    # float32 sums of at most 100 products in onnxruntime: 1e-5 of the largest
    scale = float(np.square(out).mean()) + 1e-30
    np.testing.assert_allclose(total.errors(rows), np.square(out).mean(axis=1), atol=2e-5 * scale, rtol=1e-5)
    cut = rows.reshape(len(total.mean), -1, total.n).astype(np.float64)
    means = np.einsum("gmn,gn->gm", cut, total.mean).reshape(-1)
    np.testing.assert_allclose(means, out.mean(axis=1), atol=2e-5 * scale**0.5, rtol=1e-5)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_error_of_a_conv_is_that_of_onnxruntime(data):
    draw = data.draw
    rank = draw(st.integers(1, 3), "rank")
    axes = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(rank))  # noqa: E731
    kernel, strides, dilations = axes(1, 3), axes(1, 3), axes(1, 2)
    groups, per_group, out = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    size = axes(3, 7)
    attributes = {"group": groups, "strides": strides, "dilations": dilations}
    padding = draw(st.sampled_from(["NOTSET", "", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if padding in ("", "NOTSET"):
        attributes["pads"] = axes(0, 2) + axes(0, 2)
    if padding != "NOTSET":
        attributes["auto_pad"] = padding
        assume(not padding.startswith("SAME") or set(dilations) == {1})  # onnxruntime takes no dilation with SAME
    pads = attributes.get("pads", (0,) * (2 * rank))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    assume(padding.startswith("SAME") or all(s + pads[i] + pads[i + rank] >= reach[i] for i, s in enumerate(size)))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    weight = random.standard_normal((groups * out, per_group, *kernel)).astype(np.float32)
    x = random.standard_normal((draw(st.integers(1, 3)), groups * per_group, *size)).astype(np.float32)
    check(layer("Conv", weight, list(x.shape), **attributes), x, weight, 1)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("transposes", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_the_error_of_a_gemm_is_that_of_onnxruntime(left, transposes):
    random = np.random.default_rng(0)
    shapes = [(4, 5), (5, 3)]
    a, b = (
        random.standard_normal(shape[::-1] if t else shape).astype(np.float32)
        for shape, t in zip(shapes, transposes, strict=True)
    )
    weight, x = (a, b) if left else (b, a)
    data = layer("Gemm", weight, list(x.shape), left=left, transA=transposes[0], transB=transposes[1])
    check(data, x, weight, 0 if left else 1)


@pytest.mark.parametrize("shape", [(7, 5), (2, 7, 5), (2, 3, 4, 5), (5,)])
def test_the_error_of_a_matmul_is_that_of_onnxruntime(shape):
    random = np.random.default_rng(1)
    weight, x = random.standard_normal((5, 3)).astype(np.float32), random.standard_normal(shape).astype(np.float32)
    check(layer("MatMul", weight, list(shape)), x, weight, -1)


@pytest.mark.parametrize("shape", [(5, 7), (2, 5, 7)])
def test_a_weight_on_the_left_reads_columns(shape):
    random = np.random.default_rng(2)
    weight, x = random.standard_normal((3, 5)).astype(np.float32), random.standard_normal(shape).astype(np.float32)
    check(layer("MatMul", weight, list(shape), left=True), x, weight, -2)


@pytest.mark.parametrize(
    ("op", "weight"),
    [("MatMul", (2, 5, 3)), ("MatMul", (5,)), ("Conv", (4, 2, 1, 1, 1, 1)), ("ConvTranspose", (2, 3, 1))],
)
def test_what_is_no_plain_product_is_not_measured(op, weight):
    x_shape = [2, 3, 5] if op == "MatMul" else [1, 2, *[4] * (len(weight) - 2)]
    assert unfolding_of(node_of(layer(op, np.ones(weight, np.float32), x_shape))) is None


CONV = Unfolding(2 * 9, 1, 1, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.sampled_from([(2, 5, 6), (4, 18), (18,)]))
def test_batches_change_no_bit_and_merging_only_the_last(sizes, item):
    unfolding = CONV if len(item) == 3 else Unfolding(18)
    x = np.random.default_rng(len(sizes)).standard_normal((sum(sizes), *item)).astype(np.float32)
    whole, batched = LayerMoments(unfolding, 18), LayerMoments(unfolding, 18)
    whole.add(x)
    parts = []
    for batch in np.split(x, np.cumsum(sizes)[:-1]):
        batched.add(batch)
        parts.append(LayerMoments(unfolding, 18))
        parts[-1].add(batch)
    for view in (LayerMoments.fitted, LayerMoments.held_out, LayerMoments.total):
        assert view(batched).rows == view(whole).rows
        np.testing.assert_array_equal(view(batched).matrix, view(whole).matrix)
        np.testing.assert_array_equal(view(batched).mean, view(whole).mean)
    merged = LayerMoments(unfolding, 18)
    for part in parts:
        merged = merged.merge(part)
    assert (merged.items, merged.total().rows) == (whole.items, whole.total().rows)
    np.testing.assert_allclose(merged.total().matrix, whole.total().matrix, rtol=1e-12, atol=1e-12)


def test_many_rows_are_multiplied_in_pieces_of_the_same_size_whatever_the_batches():
    x = np.random.default_rng(0).standard_normal((5000, 3)).astype(np.float32)
    whole, batched = LayerMoments(Unfolding(3), 3), LayerMoments(Unfolding(3), 3)
    whole.add(x.reshape(5, 1000, 3))
    for batch in x.reshape(5, 1000, 3):
        batched.add(batch[None])
    np.testing.assert_array_equal(whole.total().matrix, batched.total().matrix)
    np.testing.assert_allclose(whole.total().matrix[0], x.T.astype(float) @ x / len(x), rtol=1e-10)


def test_samples_go_to_the_halves_in_turn_and_the_first_to_both():
    moments = LayerMoments(Unfolding(1), 1)
    moments.add(np.array([[[1], [1], [10], [10]], [[2]] * 4, [[3]] * 4], np.float32))
    assert moments.fitted().mean[0, 0] == np.mean([1, 1, 3, 3, 3, 3])
    assert moments.held_out().mean[0, 0] == np.mean([10, 10, 2, 2, 2, 2])


def test_the_greatest_value_has_no_sign_of_zero_whatever_the_order():
    signs = []
    for order in ((0.0, -0.0), (-0.0, 0.0)):
        made = LayerMoments(Unfolding(3), 3)
        for value in order:
            made.add(np.full((2, 3), value, np.float32))
        signs += [np.signbit(made.high).any(), np.signbit(made.share).any()]
    assert signs == [False] * 4


def test_of_a_large_picture_rows_from_everywhere_are_taken():
    unfolding = Unfolding(2, 1, 1, (1, 1), (1, 1), (1, 1), (0, 0, 0, 0))
    side = 128
    picture = np.stack(np.meshgrid(np.arange(side), np.arange(side))).astype(np.float32)[None]
    (rows,) = unfolding.rows(picture, ROWS_PER_ITEM)
    assert rows.shape == (1, ROWS_PER_ITEM, 2)
    assert len(np.unique(rows[0], axis=0)) == ROWS_PER_ITEM
    for axis in range(2):  # a step of 16 places in rows of 128 would see 8 columns only
        seen, counts = np.unique(rows[0, :, axis], return_counts=True)
        assert len(seen) >= 0.95 * side
        assert counts.max() <= 3 * ROWS_PER_ITEM / side


@pytest.mark.parametrize(("block", "width"), [(18, 18), (9, 9), (8, 8), (1, 1)])
def test_a_block_diagonal_matrix_is_the_full_one_without_the_rest(block, width):
    x = np.random.default_rng(3).standard_normal((3, 2, 5, 6)).astype(np.float32)
    full, cut = LayerMoments(CONV, 18), LayerMoments(CONV, block)
    full.add(x), cut.add(x)
    place = np.arange(18) // width
    masked = np.where(place[:, None] == place[None], full.total().matrix[0], 0)
    difference = np.random.default_rng(4).standard_normal((5, 18))
    np.testing.assert_allclose(cut.total().errors(difference), ((difference @ masked) * difference).sum(1), rtol=1e-10)
    np.testing.assert_array_equal(cut.total().join(cut.total().split(difference)), difference)


def test_blocks_hold_whole_channels():
    assert block_columns(CONV, 2304, 256) == 18
    assert block_columns(Unfolding(4608, 1, 1, (3, 3)), 2304, 256) == 252
    assert block_columns(Unfolding(4608, 512, 1, (3, 3)), 2304, 256) == 9
    assert block_columns(Unfolding(4608, 1, 1, (3, 3)), 2304, 8) == 1


def two_layers():
    """Two convolutions read `x` alike, a third differently, a MatMul reads what the first gives."""
    random = np.random.default_rng(5)
    weights = {
        name: random.standard_normal(shape).astype(np.float32)
        for name, shape in {"a": (4, 2, 3, 3), "b": (3, 2, 3, 3), "c": (2, 1, 1, 1), "m": (6, 5)}.items()
    }
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["ya"], "conv_a", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["x", "b"], ["yb"], "conv_b", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["x", "c"], ["yc"], "conv_c", group=2),
        helper.make_node("MatMul", ["ya", "m"], ["ym"], "product"),
        helper.make_node("Relu", ["ym"], ["z"], "relu"),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "layers",
        [info("x", TensorProto.FLOAT, [1, 2, 5, 6])],
        [info(name, TensorProto.FLOAT, None) for name in ("yb", "yc", "z")],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    parsed = parse(model.SerializeToString())
    infer_types(parsed)
    return parsed


def test_one_pass_measures_ranges_and_moments(tmp_path):
    model = two_layers()
    layers = MeasuredLayers(model.graph.nodes)
    assert [value.name for value in layers.values] == ["x", "ya"]
    samples = [{"x": np.random.default_rng(i).standard_normal((1, 2, 5, 6)).astype(np.float32)} for i in range(5)]
    stats = calibrate(model, [*layers.values, model.graph.values["z"]], samples, kinds=layers.kinds)
    a, b, c, product, relu = model.graph.nodes
    assert layers.moments(stats, a) is layers.moments(stats, b)
    assert layers.moments(stats, a) is not layers.moments(stats, c)
    assert layers.moments(stats, relu) is None
    assert stats["z"].min >= 0
    measured = {id(found): found for node in (a, b, c, product) if (found := layers.moments(stats, node))}.values()
    rows = [(found.total().rows // len(samples), found.unfolding.columns, found.block) for found in measured]
    assert layers.work({}) == (sum(n * k for n, k, _ in rows), sum(n * k * block for n, k, block in rows))
    x = np.concatenate([sample["x"] for sample in samples])
    np.testing.assert_allclose(
        np.einsum("pbb->", layers.moments(stats, c).total().matrix), np.square(x, dtype=float).mean() * 2, rtol=1e-6
    )
    assert layers.moments(stats, product).total().rows == 5 * 4 * 5
    shared = layers.moments(stats, a, b).total()
    assert shared.rows == 2 * layers.moments(stats, a).total().rows
    save_stats(tmp_path / "s.npz", stats, "f")
    loaded, _ = load_stats(tmp_path / "s.npz")
    for node in (a, c, product):
        before, after = layers.moments(stats, node), layers.moments(loaded, node)
        assert (after.items, after.unfolding, after.block) == (before.items, before.unfolding, before.block)
        for one, two in zip(before.halves, after.halves, strict=True):
            assert one.rows == two.rows
            for left, right in zip(one.sums(), two.sums(), strict=True):
                np.testing.assert_array_equal(left, right)


def test_little_memory_makes_blocks_and_says_so():
    model = two_layers()
    generous, tight = MeasuredLayers(model.graph.nodes), MeasuredLayers(model.graph.nodes, memory=3500)
    assert tight.bytes <= 3500 < generous.bytes
    (wide,) = (part for part in generous.kinds("ya") if isinstance(part, InputMoments))
    assert [moments.block for moments in wide.layers.values()] == [6]
    narrow = next(part for part in tight.kinds("x") if isinstance(part, InputMoments))
    assert [moments.block for moments in narrow.layers.values()] == [9, 1]
    assert not any(isinstance(part, InputMoments) for part in tight.kinds("z"))


def test_without_measurement_there_are_no_moments():
    model = two_layers()
    layers = MeasuredLayers(model.graph.nodes)
    node = model.graph.nodes[0]
    assert layers.moments(Stats(), node) is None
    stats = Stats()
    stats.tensors["x"] = TensorStats([Moments()])
    assert layers.moments(stats, node) is None
    assert MeasuredLayers([model.graph.nodes[4]]).values == []


def test_what_does_not_fit_is_not_merged():
    with pytest.raises(ValueError, match="different shapes"):
        LayerMoments(CONV, 18).merge(LayerMoments(CONV, 9))
    with pytest.raises(ValueError, match="different layers"):
        InputMoments([LayerMoments(CONV, 18)]).merge(InputMoments())
