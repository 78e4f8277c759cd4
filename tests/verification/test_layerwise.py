"""Where the error of a quantized model comes from."""

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from node_cases import node_cases

from onnxq.errors import DataError
from onnxq.evaluator.engine import Evaluator
from onnxq.ir import parse
from onnxq.verification.channel_rescaling import channel_factors
from onnxq.verification.layerwise import MOST_ELEMENTS, compare_layers, with_layers
from onnxq.verification.records import Comparison, LayerComparison
from tests.helpers import build, floats, node, quantize_in_memory

W, V = floats(8, 6, seed=1), floats(6, 5, seed=2)
TWO = [node("MatMul", "x w", "h"), node("Relu", "h", "a"), node("MatMul", "a v", "y")]


def two(nodes=TWO, **weights: np.ndarray) -> onnx.ModelProto:
    return build(nodes, {"x": ["n", 8]}, weights={"w": W, "v": V, **weights})


def samples(count: int = 3, width: int = 8) -> list[dict[str, np.ndarray]]:
    return [{"x": floats(i + 2, width, seed=i)} for i in range(count)]


def layers(float_model, quantized, given=None, **options) -> dict[str, LayerComparison]:
    models = (parse(model.SerializeToString()) for model in (float_model, quantized))
    return {layer.tensor: layer for layer in compare_layers(*models, samples() if given is None else given, **options)}


def decibels(signal: np.ndarray, noise: np.ndarray) -> float:
    return 10 * math.log10(np.square(signal, dtype=np.float64).sum() / np.square(noise, dtype=np.float64).sum())


def test_a_node_owns_the_error_of_its_weight_and_the_next_inherits_it() -> None:
    changed = (W + floats(8, 6, seed=3, scale=0.01)).astype(np.float32)
    found = layers(two(), two(w=changed))
    assert list(found) == ["h", "a", "y"]
    x = np.concatenate([sample["x"] for sample in samples()])
    h, q = x @ W, x @ changed
    expected = decibels(h, h - q)
    # float32 products in another order: relative 1e-5 of an error of 1e-2
    assert found["h"].own == found["h"].sqnr == pytest.approx(expected, abs=0.01)
    assert found["h"].inherited == math.inf
    assert found["h"].max_abs == pytest.approx(np.abs(h - q).max(), rel=1e-3)
    y, z = h.clip(0) @ V, q.clip(0) @ V
    assert found["y"].own == math.inf
    assert found["y"].inherited == found["y"].sqnr == pytest.approx(decibels(y, y - z), abs=0.01)
    assert [(layer.node, layer.op_type, layer.rescaled) for layer in found.values()] == [
        ("n_h", "MatMul", False),
        ("n_a", "Relu", False),
        ("n_y", "MatMul", False),
    ]


def test_own_and_inherited_error_are_told_apart_where_both_are_there() -> None:
    w, v = (a + floats(*a.shape, seed=9, scale=0.02) for a in (W, V))
    found = layers(two(), two(w=w, v=v))["y"]
    x = np.concatenate([sample["x"] for sample in samples()])
    r, f, q = (x @ W).clip(0) @ V, (x @ w).clip(0) @ V, (x @ w).clip(0) @ v
    assert found.sqnr == pytest.approx(decibels(r, r - q), abs=0.01)
    assert found.own == pytest.approx(decibels(r, f - q), abs=0.01)
    assert found.inherited == pytest.approx(decibels(r, r - f), abs=0.01)


def test_a_model_against_itself_is_exact() -> None:
    assert {(one.own, one.inherited, one.sqnr, one.max_abs) for one in layers(two(), two()).values()} == {
        (math.inf, math.inf, math.inf, 0.0)
    }


def test_quantized_by_us_the_error_enters_where_codes_are() -> None:
    nodes = [node("Conv", "x w b", "c"), node("Relu", "c", "a"), node("GlobalAveragePool", "a", "y")]
    proto = build(nodes, {"x": [1, 3, 8, 8]}, weights={"w": floats(4, 3, 3, 3), "b": floats(4, seed=1)}, opset=17)
    data = [{"x": floats(1, 3, 8, 8, seed=i)} for i in range(4)]
    quantized = quantize_in_memory(proto, "static-int8", data)
    found = {
        layer.tensor: layer
        for layer in compare_layers(parse(proto.SerializeToString()), parse(quantized.data), data, limit=4)
    }
    assert 25 < found["a"].sqnr < 60
    assert min(found["c"].own if "c" in found else math.inf, found["a"].own) < 60
    assert not any(layer.rescaled for layer in found.values())


def test_a_tensor_that_was_fused_away_leaves_its_error_to_the_next() -> None:
    changed = (W * np.float32(1.01)).astype(np.float32)
    fused = two([node("MatMul", "x w", "other"), node("Relu", "other", "a"), node("MatMul", "a v", "y")], w=changed)
    found = layers(two(), fused)
    assert list(found) == ["a", "y"]
    assert found["a"].own == pytest.approx(40.0, abs=0.01)  # one percent
    assert found["y"].own == math.inf


def test_a_tensor_of_another_shape_is_another_tensor() -> None:
    renamed = [node("Transpose", "x", "h"), node("MatMul", "x w", "t"), node("Relu", "t", "a"), *TWO[2:]]
    found = layers(two(), two(renamed))
    assert list(found) == ["a", "y"]
    assert found["a"].own == math.inf


def test_a_tensor_that_was_folded_into_a_constant_is_compared() -> None:
    nodes = [node("Neg", "w", "m"), node("MatMul", "x m", "y")]
    folded = build([node("MatMul", "x m", "y")], {"x": ["n", 8]}, weights={"m": -W})
    listed = build(nodes, {"x": ["n", 8]}, weights={"w": W})
    assert layers(listed, folded)["m"].sqnr == math.inf


def test_the_order_of_the_quantized_model_does_not_matter() -> None:
    nodes = [node("MatMul", "x w", "h"), node("Neg", "x", "g"), node("MatMul", "g w", "k"), node("Add", "h k", "y")]
    other = [nodes[1], nodes[2], nodes[0], nodes[3]]
    found = layers(two(nodes), two(other))
    assert list(found) == ["h", "g", "k", "y"]
    assert all(layer.sqnr == math.inf for layer in found.values())


def test_values_whose_first_axes_were_swapped_are_compared() -> None:
    """As `put_sequence_first` does it at the end of a quantization."""
    shape, weights = ["b", "t", 8], {"w": W, "v": V}
    plain = build([node("MatMul", "x w", "h"), node("MatMul", "h v", "y")], {"x": shape}, weights=weights)
    turned = [
        node("Transpose", "x", "x_sequence_first", perm=[1, 0, 2]),
        node("MatMul", "x_sequence_first w", "h_sequence_first"),
        node("Transpose", "h_sequence_first", "h_batch_first", perm=[1, 0, 2]),
        node("MatMul", "h_batch_first v", "y"),
    ]
    changed = (W + floats(8, 6, seed=3, scale=0.01)).astype(np.float32)
    given = [{"x": floats(2, 3, 8, seed=seed)} for seed in range(3)]
    found = layers(plain, build(turned, {"x": shape}, weights=weights | {"w": changed}), given)
    assert list(found) == ["h", "y"]
    x = np.concatenate([sample["x"].reshape(-1, 8) for sample in given])
    assert found["h"].own == pytest.approx(decibels(x @ W, x @ W - x @ changed), abs=0.01)
    assert found["y"].own == math.inf


def test_integers_are_passed_on_but_not_listed() -> None:
    nodes = [node("Shape", "x", "s"), node("ConstantOfShape", "s", "z"), node("Add", "x z", "y")]
    assert list(layers(two(nodes), two(nodes))) == ["z", "y"]


def test_bodies_count_as_one_node() -> None:
    from onnx import TensorProto, helper

    then = helper.make_graph([node("MatMul", "x w", "t")], "then", [], [helper.make_tensor_value_info("t", 1, None)])
    other = helper.make_graph([node("Relu", "x", "e")], "else", [], [helper.make_tensor_value_info("e", 1, None)])
    nodes = [
        node("ReduceSum", "x", "sum", keepdims=0),
        node("Cast", "sum", "yes", to=TensorProto.BOOL),
        helper.make_node("If", ["yes"], ["i"], name="branch", then_branch=then, else_branch=other),
        node("Relu", "i", "y"),
    ]
    found = layers(two(nodes), two(nodes, w=(W * np.float32(1.01)).astype(np.float32)))
    assert found["i"].own == pytest.approx(40.0, abs=0.01)
    assert found["y"].own == math.inf


def scaled(factor: np.ndarray, **weights: np.ndarray) -> onnx.ModelProto:
    """The model with `h` and `a` divided by a factor for each channel, which `v` takes up."""
    return two(w=(W / factor).astype(np.float32), v=(weights.get("v", V) * factor[:, None]).astype(np.float32))


def test_rescaled_channels_are_no_error() -> None:
    factor = np.array([0.1, 8, 1, 3, 0.5, 20], np.float32)
    found = layers(two(), scaled(factor))
    assert [found[name].rescaled for name in "hay"] == [True, True, False]
    assert min(layer.sqnr for layer in found.values()) > 120  # what float32 rounds


def test_the_error_beside_rescaled_channels_is_measured() -> None:
    factor = np.array([0.1, 8, 1, 3, 0.5, 20], np.float32)
    noisy = (V * (1 + floats(6, 5, seed=4, scale=0.03))).astype(np.float32)
    plain, found = layers(two(), two(v=noisy))["y"], layers(two(), scaled(factor, v=noisy))["y"]
    assert found.own == pytest.approx(plain.own, abs=0.01)
    assert found.sqnr == pytest.approx(plain.sqnr, abs=0.01)


def test_channels_of_an_output_are_never_taken_as_rescaled() -> None:
    wrong = (V * np.float32(3)).astype(np.float32)
    found = layers(two(), two(v=wrong))["y"]
    assert (found.rescaled, round(found.own)) == (False, -6)  # off by twice its size


@settings(deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([(2, 7, 5), (1, 5, 4, 4), (9, 3)]),
    st.integers(0, 3),
    st.sampled_from([0.0, 1e-3, 1e-2]),
)
def test_factors_are_found_along_any_axis(seed: int, shape: tuple[int, ...], axis: int, noise: float) -> None:
    random = np.random.default_rng(seed)
    axis %= len(shape)
    if shape[axis] == 1:
        axis = -1 % len(shape)
    wanted = np.exp(random.uniform(-2, 1, shape[axis]))  # none near the first, or two factors are one along any axis
    wanted[0] = 7.0
    broadcast = wanted.reshape([-1 if at == axis else 1 for at in range(len(shape))])
    exact = [random.standard_normal(shape) for _ in range(6)]
    given_ = [f / broadcast * (1 + noise * random.standard_normal(shape)) for f in exact]
    found = channel_factors(exact, given_)
    assert found is not None
    assert found.shape == broadcast.shape
    np.testing.assert_allclose(found, broadcast, rtol=10 * noise + 1e-9)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.1, 3))
def test_noise_is_no_factor(seed: int, noise: float) -> None:
    random = np.random.default_rng(seed)
    exact = [random.standard_normal((1, 6)) for _ in range(8)]
    assert channel_factors(exact, [f + noise * random.standard_normal(f.shape) for f in exact]) is None


def test_a_channel_that_is_turned_round_is_no_factor() -> None:
    exact = floats(40, 6)
    assert channel_factors([exact], [-exact]) is None


def test_too_few_elements_fit_anything() -> None:
    exact = floats(1, 6)
    assert channel_factors([exact], [exact * np.float32(5)]) is None  # one factor for all is none of channels
    assert channel_factors([np.array(2.0)], [np.array(3.0)]) is None


def test_infinite_elements_are_compared_as_they_are() -> None:
    nodes = [node("Add", "h mask", "a"), node("Softmax", "a", "y", axis=-1)]
    mask = np.array([0, 0, -np.inf, 0, 0, -np.inf], np.float32)
    proto = two([TWO[0], *nodes], mask=mask)
    found = layers(proto, two([TWO[0], *nodes], mask=mask, w=(W * np.float32(1.01)).astype(np.float32)))
    assert found["a"].inherited == pytest.approx(found["a"].sqnr)
    assert 30 < found["a"].sqnr < 50
    broken = layers(proto, two([TWO[0], *nodes], mask=np.zeros(6, np.float32)))["a"]
    assert (broken.own, broken.sqnr, broken.max_abs) == (-math.inf, -math.inf, math.inf)


@pytest.mark.parametrize(("width", "limit", "count"), [(8, 2, 2), (MOST_ELEMENTS // 2, 8, 2)])
def test_samples_are_few_and_fewer_where_they_are_large(monkeypatch, width: int, limit: int, count: int) -> None:
    run = []
    begin = Evaluator.begin
    monkeypatch.setattr(Evaluator, "begin", lambda self, sample: (run.append(sample), begin(self, sample))[1])
    proto = build([node("Relu", "x", "y")], {"x": [1, "n"]}).SerializeToString()
    feeds = [{"x": floats(1, width, seed=i)} for i in range(9)]
    compare_layers(parse(proto), parse(proto), feeds, limit=limit)
    assert {next(i for i in range(9) if feeds[i] is sample) for sample in run} == {0, 4}
    assert len({id(sample) for sample in run}) == count


def test_progress_counts_nodes() -> None:
    seen: list[tuple[int, int | None]] = []
    layers(two(), two(), progress=lambda *at: seen.append(at))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_no_samples() -> None:
    with pytest.raises(DataError, match="no samples"):
        layers(two(), two(), [])


def test_a_model_that_the_evaluator_cannot_run_leaves_a_reason(tmp_path: Path) -> None:
    odd = onnx.ModelProto()
    odd.CopyFrom(two())
    odd.graph.node[1].domain = "com.acme"
    odd.opset_import.append(onnx.helper.make_opsetid("com.acme", 1))
    plain, strange = (parse(model.SerializeToString()) for model in (two(), odd))
    comparison = with_layers(Comparison((), 1), plain, strange, samples())
    assert comparison.layers == ()
    assert comparison.no_layers is not None
    assert "com.acme.Relu" in comparison.no_layers
    fine = with_layers(Comparison((), 1), plain, plain, samples())
    assert (len(fine.layers), fine.no_layers) == (3, None)


def test_the_worst_layers_are_those_that_add_most() -> None:
    rows = [
        LayerComparison(f"n{i}", "Relu", f"t{i}", 1.0, own, 2.0, 0.1) for i, own in enumerate((30, math.inf, 10, 20))
    ]
    comparison = Comparison((), 1, layers=tuple(rows))
    assert [layer.node for layer in comparison.worst_layers(2)] == ["n2", "n3"]
    assert [layer.node for layer in comparison.worst_layers(9)] == ["n2", "n3", "n0"]


def test_a_path_is_normalised(tmp_path: Path) -> None:
    nodes = [node("Conv", "x k", "c"), node("BatchNormalization", "c s b m v", "y", epsilon=0.0)]
    numbers = {"s": [2.0, 3.0], "b": [0.0, 0.0], "m": [0.0, 0.0], "v": [1.0, 1.0]}
    weights = {name: np.array(given_, np.float32) for name, given_ in numbers.items()} | {"k": floats(2, 1, 1, 1)}
    onnx.save(build(nodes, {"x": [1, 1, 4, 4]}, weights=weights), tmp_path / "m.onnx")
    (layer,) = compare_layers(tmp_path / "m.onnx", tmp_path / "m.onnx", [{"x": floats(1, 1, 4, 4)}])
    assert (layer.tensor, layer.op_type) == ("y", "Conv")
    assert layer.sqnr > 120  # the factor is in the weight now


@pytest.mark.slow
def test_every_operator_of_onnx_is_exact_against_itself() -> None:
    compared = 0
    for case in node_cases():
        feeds = dict(zip([i.name for i in case.model.graph.input], case.data_sets[0][0], strict=False))
        random = any("Random" in one.op_type or one.op_type == "Bernoulli" for one in case.model.graph.node)
        if random or not all(isinstance(array, np.ndarray) for array in feeds.values()):
            continue
        models = [parse(case.model.SerializeToString()) for _ in range(2)]
        found = compare_layers(*models, [feeds, feeds])
        assert {(one.sqnr, one.own, one.inherited) for one in found} <= {(math.inf,) * 3}, case.name
        compared += 1
    assert compared > 1000
