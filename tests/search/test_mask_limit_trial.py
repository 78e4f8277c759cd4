"""Masks are limited as deep as the samples show to be enough, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from decoders import HEAD as WIDE
from decoders import HEADS as CACHED
from decoders import TOKENS as TOKEN_COUNT
from decoders import optimum_decoder
from helpers import ALL, count_ops, floats, node, recipe_of, run
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_support import CAUSAL, HEADS, LENGTH, LOWEST, attention, causal, feeds, ready_for
from onnx import ModelProto, TensorProto, numpy_helper

from onnxq.pipeline.quantize import quantize
from onnxq.planning.recipe import in_blocks, load_recipe
from onnxq.rescaling.mask_limits import MaskLimit
from onnxq.search.held_out import HoldoutSplit
from onnxq.search.trials import mask_limit_trial
from onnxq.search.trials.mask_limit_trial import limit_attention_masks
from onnxq.stages.prepared import Prepared

ADD = [node("Add", "s m", "x")]
COMPUTED = [
    node("Shape", "q", "shape"),
    node("Gather", "shape two", "length"),
    node("Concat", "length length", "square", axis=0),
    node("ConstantOfShape", "square", "full", value=numpy_helper.from_array(np.array([-np.inf], np.float32))),
    node("Trilu", "full one", "m", upper=1),
    *ADD,
]
SIZES = {"two": np.array([2]), "one": np.array(1)}
PADDING = [
    node("Cast", "attention_mask", "kept", to=TensorProto.FLOAT),
    node("Sub", "unit kept", "hidden"),
    node("Mul", "hidden depth", "deep"),
    node("Unsqueeze", "deep axes", "m"),
    *ADD,
]
DEPTHS = {"unit": np.float32(1), "depth": np.float32(LOWEST), "axes": np.array([1, 2])}
TOKENS = {"attention_mask": (TensorProto.INT64, ["batch", LENGTH])}
SAMPLES = [feeds(seed) for seed in range(6)]


def padded(seed: int, kept: int, **more: int) -> dict[str, np.ndarray]:
    return feeds(seed, attention_mask=np.array([[1] * kept + [0] * (LENGTH - kept)]), **more)


def ops(prepared: Prepared) -> dict[str, int]:
    return count_ops(ModelProto.FromString(prepared.model.serialize()))


def worst(prepared: Prepared, changed: Prepared, feed: dict[str, np.ndarray]) -> float:
    """The largest difference of outputs, as onnxruntime runs both."""
    pairs = zip(*(run(each.model.serialize(), feed, ALL) for each in (prepared, changed)), strict=True)
    return max(float(np.abs(before - after).max()) for before, after in pairs)


def constants(prepared: Prepared) -> dict[str, np.ndarray]:
    return {value.name: value.tensor.numpy() for value in prepared.model.initializers() if value.tensor is not None}


@pytest.mark.parametrize("depth", [-1e4, -1e9, LOWEST, -np.inf])
def test_a_stored_mask_is_stored_limited(depth: float, tmp_path: Path) -> None:
    prepared, split = ready_for(attention(ADD, {"m": causal(depth)}), SAMPLES, tmp_path)
    changed = limit_attention_masks(prepared, split)
    assert ops(changed) == ops(prepared)
    limited = constants(changed)["m_limited"]
    assert "m" not in constants(changed)
    assert (limited[~CAUSAL] == 0).all()
    (limit,) = set(limited[CAUSAL].tolist())
    assert -80 < limit < -30
    assert changed.notes[-1] == (
        f"limited the mask of 1 Softmax node to {limit:.0f}: what lies deeper costs onnxruntime denormal numbers"
    )
    assert worst(prepared, changed, feeds(99)) < 1e-6


def test_scores_that_change_get_another_name(tmp_path: Path) -> None:
    prepared, split = ready_for(attention(ADD, {"m": causal(-1e9)}), SAMPLES, tmp_path)
    before, after = (set(each.model.graph.values) for each in (prepared, limit_attention_masks(prepared, split)))
    assert before - after == {"m", "x"}


def test_a_computed_mask_is_stored_where_it_is_small_beside_the_weights(tmp_path: Path) -> None:
    prepared, split = ready_for(attention(COMPUTED, SIZES, columns=16_384), SAMPLES, tmp_path)
    changed = limit_attention_masks(prepared, split)
    assert "Trilu" in ops(prepared)
    assert "Trilu" not in ops(changed)
    assert "ReduceMax" not in ops(changed)
    assert worst(prepared, changed, feeds(99)) < 1e-5


@pytest.mark.parametrize("opset", [17, 18])
def test_a_computed_mask_that_is_large_is_limited_in_every_run(opset: int, tmp_path: Path) -> None:
    prepared, split = ready_for(attention(COMPUTED, SIZES, opset=opset), SAMPLES, tmp_path)
    changed = limit_attention_masks(prepared, split)
    assert {"Trilu", "ReduceMax", "LeakyRelu", "Max"} < set(ops(changed))
    assert worst(prepared, changed, feeds(99)) < 1e-6


def test_padding_is_limited_and_a_sample_of_nothing_else_stays_as_it_is(tmp_path: Path) -> None:
    samples = [padded(seed, 5 + seed) for seed in range(6)]
    prepared, split = ready_for(attention(PADDING, DEPTHS, TOKENS), samples, tmp_path)
    changed = limit_attention_masks(prepared, split)
    assert {"ReduceMax", "LeakyRelu", "Max"} < set(ops(changed))
    for kept in (0, 1, 20, LENGTH):
        assert worst(prepared, changed, padded(99, kept)) < 1e-6


def test_rows_that_are_masked_twice_over_stay_masked(tmp_path: Path) -> None:
    """Masks that are added up make rows of -1e9 and -2e9, of which only the second is out of reach."""
    nodes = [*PADDING[:-1], node("Add", "m later", "both"), node("Neg", "both", "minus"), node("Neg", "minus", "again")]
    nodes += [node("Add", "s again", "x")]
    known = DEPTHS | {"depth": np.float32(-1e9), "later": causal(-1e9)}
    samples = [padded(seed, 12 + seed) for seed in range(6)]
    prepared, split = ready_for(attention(nodes, known, TOKENS), samples, tmp_path)
    changed = limit_attention_masks(prepared, split)
    assert "LeakyRelu" in ops(changed)
    left = padded(99, 20)
    left["attention_mask"] = left["attention_mask"][:, ::-1].copy()
    assert worst(prepared, changed, left) < 1e-6


def test_layers_that_read_one_mask_share_its_limit(tmp_path: Path) -> None:
    nodes = [
        *PADDING,
        node("Softmax", "x", "p1", axis=-1),
        node("MatMul", "p1 s", "s2"),
        node("Add", "m s2", "x2"),
        node("Softmax", "x2", "p2", axis=-1),
        node("MatMul", "p2 s2", "s3"),
        node("Add", "s3 m", "x3"),
    ]
    proto = attention(nodes, DEPTHS, TOKENS, scores="x3")
    prepared, split = ready_for(proto, [padded(seed, 5 + seed) for seed in range(6)], tmp_path)
    changed = limit_attention_masks(prepared, split)
    assert ops(changed)["ReduceMax"] == ops(changed)["Max"] == 1
    assert "limited the mask of 3 Softmax nodes to" in changed.notes[-1]
    assert worst(prepared, changed, padded(99, 20)) < 1e-5


def test_equal_masks_are_stored_once(tmp_path: Path) -> None:
    nodes = [*ADD, node("Softmax", "x", "p1", axis=-1), node("MatMul", "p1 s", "s2"), node("Add", "s2 m2", "x2")]
    proto = attention(nodes, {"m": causal(-1e9), "m2": causal(-1e9)}, scores="x2")
    prepared, split = ready_for(proto, SAMPLES, tmp_path)
    changed = limit_attention_masks(prepared, split)
    assert sum("limited" in name for name in constants(changed)) == 1
    assert not {"m", "m2"} & set(constants(changed))


@pytest.mark.parametrize("number", [-1e4, -1e9, LOWEST, -np.inf])
@pytest.mark.parametrize(("order", "kept"), [("hidden s number", True), ("hidden number s", False)])
def test_a_where_gets_another_number(order: str, kept: bool, number: float, tmp_path: Path) -> None:
    known = {"hidden": CAUSAL ^ kept, "number": np.float32(number)}
    prepared, split = ready_for(attention([node("Where", order, "x")], known), SAMPLES, tmp_path)
    changed = limit_attention_masks(prepared, split)
    assert ops(changed) == ops(prepared)
    assert "number" not in constants(changed)
    assert -80 < constants(changed)["number_limited"] < -30
    assert worst(prepared, changed, feeds(99)) < 1e-6


def test_the_number_of_a_safe_softmax_stays(tmp_path: Path) -> None:
    """PyTorch's gives 0 for rows that are masked as a whole, by asking for NaN; only the scores may be limited."""
    nodes = [node("Where", "kept s number", "x")]
    safe = [node("IsNaN", "p", "nan"), node("Where", "nan zero p", "safe")]
    known = {"number": np.float32(-np.inf), "zero": np.float32(0)}
    proto = attention(nodes, known, {"kept": (TensorProto.BOOL, [LENGTH, LENGTH])}, behind=safe)
    prepared, split = ready_for(proto, [feed | {"kept": ~CAUSAL} for feed in SAMPLES], tmp_path)
    changed = limit_attention_masks(prepared, split)
    assert np.isinf(constants(changed)["number"])
    kept = ~CAUSAL
    kept[3] = False
    assert worst(prepared, changed, feeds(99, kept=kept)) < 1e-6


def test_a_where_stays_that_leaves_nothing_of_a_row(tmp_path: Path) -> None:
    nodes = [node("Where", "hidden number s", "x")]
    every = CAUSAL.copy()
    every[3] = True
    samples = [feed | {"hidden": every if index == 2 else CAUSAL} for index, feed in enumerate(SAMPLES)]
    proto = attention(nodes, {"number": np.float32(-np.inf)}, {"hidden": (TensorProto.BOOL, [LENGTH, LENGTH])})
    prepared, split = ready_for(proto, samples, tmp_path)
    assert np.isinf(constants(limit_attention_masks(prepared, split))["number"])


def test_scores_that_are_spread_too_widely_are_limited_themselves(tmp_path: Path) -> None:
    window = np.where(np.tri(LENGTH, k=-3) + CAUSAL > 0, np.float32(-1e9), np.float32(0))
    samples = [feeds(seed, scale=12) for seed in range(6)]
    prepared, split = ready_for(attention(ADD, {"m": window}), samples, tmp_path)
    changed = limit_attention_masks(prepared, split)
    assert "m" in constants(changed)
    assert "limited the logits of 1 Softmax node to 80 below the largest of a row" in changed.notes[-1]
    assert set(prepared.model.graph.values) < set(changed.model.graph.values), "they mean what they meant"
    assert worst(prepared, changed, feeds(99, scale=12)) < 1e-6


def test_a_few_denormals_are_not_worth_it(tmp_path: Path) -> None:
    few = np.zeros((LENGTH, LENGTH), np.float32)
    few[:, -1] = -1e9
    prepared, split = ready_for(attention([node("Identity", "mask", "m"), *ADD], inputs={"mask": [LENGTH, LENGTH]}),
                             [feed | {"mask": few} for feed in SAMPLES], tmp_path)  # fmt: skip
    assert limit_attention_masks(prepared, split) is prepared


def test_a_bias_by_distance_stays(tmp_path: Path) -> None:
    """ALiBi: what is far away counts less, yet counts; alone it is no mask."""
    distance = np.arange(LENGTH, dtype=np.float32)
    bias = (np.array([0.5, 1.0, 1.5, 2.0], np.float32)[:, None, None] * -np.abs(distance - distance[:, None]))[None]
    prepared, split = ready_for(attention(ADD, {"m": bias}), SAMPLES, tmp_path)
    assert limit_attention_masks(prepared, split) is prepared
    masked = np.where(CAUSAL, -np.inf, bias).astype(np.float32)
    prepared, split = ready_for(attention(ADD, {"m": masked}), SAMPLES, tmp_path)
    changed = limit_attention_masks(prepared, split)
    limited = constants(changed)["m_limited"]
    limit = limited.min()
    assert -80 < limit < -30
    np.testing.assert_array_equal(limited, np.maximum(masked, limit))
    assert worst(prepared, changed, feeds(99)) < 1e-6


def test_a_mask_is_found_among_several_terms(tmp_path: Path) -> None:
    nodes = [node("Add", "s bias", "biased"), node("Add", "m biased", "x")]
    known = {"m": causal(-1e9), "bias": floats(1, HEADS, LENGTH, LENGTH, seed=7)}
    prepared, split = ready_for(attention(nodes, known), SAMPLES, tmp_path)
    changed = limit_attention_masks(prepared, split)
    assert "biased" in changed.model.graph.values
    assert "m_limited" in constants(changed)
    nodes = [node("Add", "m bias", "both"), node("Add", "s both", "x")]
    prepared, split = ready_for(attention(nodes, known), SAMPLES, tmp_path)
    changed = limit_attention_masks(prepared, split)
    assert worst(prepared, changed, feeds(99)) < 1e-6
    assert any("limited the mask" in note for note in changed.notes)


def test_what_an_output_comes_from_at_once_stays(tmp_path: Path) -> None:
    proto = attention(ADD, {"m": causal(-1e9)}, outputs=["y", "p"])
    prepared, split = ready_for(proto, SAMPLES, tmp_path)
    assert limit_attention_masks(prepared, split) is prepared


@pytest.mark.parametrize("target", ["generic", "tensorrt"])
def test_targets_that_are_not_simplified_for_keep_their_masks(target: str, tmp_path: Path) -> None:
    recipe = load_recipe("auto").for_target(target)
    prepared, split = ready_for(attention(ADD, {"m": causal(-1e9)}), SAMPLES, tmp_path, recipe)
    assert limit_attention_masks(prepared, split) is prepared


@pytest.mark.parametrize("depth", [-1e9, -np.inf])
def test_scores_in_8_bit_get_steps_whatever_a_mask_says(depth: float, tmp_path: Path) -> None:
    """Steps that reach down to -1e9 leave one code for all scores, and none reach down to -inf."""
    path, other = tmp_path / "m.onnx", tmp_path / "o.onnx"
    path.write_bytes(attention(ADD, {"m": causal(depth)}, columns=256).SerializeToString())
    other.write_bytes(attention(ADD, {"m": causal(-40.0)}, columns=256).SerializeToString())
    recipe, found = load_recipe("static-int8").for_target("qnn"), []
    for source in (path, other):
        report = quantize(source, recipe, output=source.with_suffix(".int8.onnx"), samples=SAMPLES)
        assert report.comparison is not None
        found.append(report.comparison.worst_sqnr)
        limited = [note for note in report.notes if note.endswith("codes that reach deeper leave no steps for scores")]
        assert len(limited) == (source is path)
    assert found[0] > found[1] - 2


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    for target in ("cpu", "qnn"):
        recipe = replace(recipe_of("auto").for_target(target), simplify=False)
        prepared, split = ready_for(attention(ADD, {"m": causal(-1e9)}), SAMPLES, tmp_path, recipe)
        assert limit_attention_masks(prepared, split) is prepared


def test_a_fast_run_one_sample_and_made_up_samples_change_nothing(tmp_path: Path) -> None:
    proto = attention(ADD, {"m": causal(-1e9)})
    prepared, split = ready_for(proto, SAMPLES, tmp_path, fast=True)
    assert limit_attention_masks(prepared, split) is prepared
    prepared, split = ready_for(proto, SAMPLES, tmp_path)
    assert limit_attention_masks(prepared, split) is not prepared
    assert limit_attention_masks(prepared, HoldoutSplit(split.baseline, split.samples.limit(1))) is prepared
    split.samples.made_up = True
    assert limit_attention_masks(prepared, split) is prepared


def test_a_limit_that_changes_the_outputs_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, split = ready_for(attention(ADD, {"m": causal(-1e9)}), SAMPLES, tmp_path)
    choose = mask_limit_trial.choose_limits

    def shallow(*given) -> list[MaskLimit]:
        return [replace(limited, limit=-3) for limited in choose(*given)]

    monkeypatch.setattr(mask_limit_trial, "choose_limits", shallow)
    assert limit_attention_masks(prepared, split) is prepared


def test_a_run_limits_masks_with_data_only_and_compares_with_the_model_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(attention(ADD, {"m": causal(-1e9)}, columns=256).SerializeToString())
    report = quantize(path, output=tmp_path / "q.onnx", samples=SAMPLES, detailed=True)
    assert any(note.startswith("limited the mask of 1 Softmax node") for note in report.notes)
    assert report.comparison is not None
    assert report.comparison.worst_sqnr > 30
    assert all(layer.sqnr is None or layer.sqnr > 20 for layer in report.comparison.layers)
    assert quantize(path, output=tmp_path / "r.onnx", samples=SAMPLES).files
    without = quantize(path, output=tmp_path / "s.onnx")
    assert not any("limited" in note for note in without.notes)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1 << 16),
    scale=st.floats(0.1, 12),
    depth=st.sampled_from([-1e4, -1e9, LOWEST, -np.inf]),
    share=st.floats(0.3, 0.9),
    form=st.sampled_from(["Add", "Where", "stored"]),
)
def test_outputs_are_the_same_on_other_inputs(seed, scale, depth, share, form, tmp_path_factory) -> None:
    generator = np.random.default_rng(seed)

    def sample(number: int) -> dict[str, np.ndarray]:
        hidden = generator.random((1, 1, LENGTH, LENGTH)) < share
        hidden[..., 0] = False
        return feeds(seed + number, scale) | ({} if form == "stored" else {"hidden": hidden})

    samples = [sample(number) for number in range(6)]
    computed = [node("Where", "hidden number zero", "m"), *ADD]
    nodes = {"Where": [node("Where", "hidden number s", "x")], "Add": computed, "stored": ADD}[form]
    numbers = {"number": np.float32(depth), "zero": np.float32(0)}
    inputs = {} if form == "stored" else {"hidden": (TensorProto.BOOL, [1, 1, LENGTH, LENGTH])}
    proto = attention(nodes, {"m": causal(depth)} if form == "stored" else numbers, inputs)
    prepared, split = ready_for(proto, samples, tmp_path_factory.mktemp("masks"))
    changed = limit_attention_masks(prepared, split)
    largest = float(np.abs(run(prepared.model.serialize(), (other := sample(77)))[0]).max())
    assert worst(prepared, changed, other) <= 1e-6 * max(1.0, largest)


WINDOWS = 4
WINDOWED = [
    node("Reshape", "s apart", "pictures"),
    node("Add", "pictures m", "masked"),
    node("Reshape", "masked together", "x"),
]


def windowed(rows: int) -> dict[str, np.ndarray]:
    """A mask for each window of a picture, added to scores with one axis more; the first window has nothing to hide."""
    mask = np.zeros((1, WINDOWS, 1, LENGTH, LENGTH), np.float32)
    mask[:, 1:, :, : LENGTH // 2, LENGTH // 2 :] = -100
    shapes = {"apart": (1, WINDOWS, HEADS, LENGTH, LENGTH), "together": (WINDOWS, HEADS, LENGTH * LENGTH // rows, rows)}
    return {"m": mask, **{name: np.array(sizes) for name, sizes in shapes.items()}}


def test_a_mask_for_every_window_is_limited_behind_a_reshape(tmp_path: Path) -> None:
    samples = [feeds(seed, batch=WINDOWS) for seed in range(6)]
    prepared, split = ready_for(attention(WINDOWED, windowed(LENGTH)), samples, tmp_path)
    changed = limit_attention_masks(prepared, split)
    limited = constants(changed)["m_limited"]
    assert (limited[:, 0] == 0).all()
    assert -80 < limited.min() < -30
    assert ops(changed) == ops(prepared)
    assert worst(prepared, changed, feeds(99, batch=WINDOWS)) < 1e-6


def test_scores_are_limited_where_the_softmax_reads_them(tmp_path: Path) -> None:
    samples = [feeds(seed, 12, batch=WINDOWS) for seed in range(6)]
    weights = windowed(LENGTH)
    weights["m"][:, 1:] = np.where(np.tri(LENGTH, k=-3) + CAUSAL > 0, np.float32(-1e9), np.float32(0))
    prepared, split = ready_for(attention(WINDOWED, weights), samples, tmp_path)
    changed = limit_attention_masks(prepared, split)
    assert "limited the logits of 1 Softmax node" in changed.notes[-1]
    assert worst(prepared, changed, feeds(99, 12, batch=WINDOWS)) < 1e-5


def test_other_rows_behind_a_reshape_are_left_alone(tmp_path: Path) -> None:
    samples = [feeds(seed, batch=WINDOWS) for seed in range(6)]
    rows = [node("Reshape", "p whole", "safe")]
    weights = windowed(LENGTH * 2) | {"whole": np.array([WINDOWS, HEADS, LENGTH, LENGTH])}
    prepared, split = ready_for(attention(WINDOWED, weights, behind=rows), samples, tmp_path)
    assert limit_attention_masks(prepared, split) is prepared


def test_attention_that_becomes_one_operator_keeps_its_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sample(seed: int) -> dict[str, np.ndarray]:
        ids = np.random.default_rng(seed).integers(0, TOKEN_COUNT, (1, 12))
        caches = {f"past_key_values.0.{part}": np.zeros((1, CACHED, 0, WIDE), np.float32) for part in ("key", "value")}
        return {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(12)[None], **caches}

    looked = []
    monkeypatch.setattr(mask_limit_trial, "choose_limits", lambda found, known: looked.append(len(found)))
    samples = [sample(seed) for seed in range(6)]
    for recipe in (in_blocks(4, 32), recipe_of("weight-int8")):
        prepared, split = ready_for(optimum_decoder(), samples, tmp_path, recipe=recipe)
        assert limit_attention_masks(prepared, split) is prepared
    assert looked == [1]  # weights of a scale a channel keep the operators of attention
