"""Variants are judged by their outputs and by the scores in front of a final Softmax or Sigmoid."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import build, floats, node, typed
from onnx import TensorProto, helper, numpy_helper

from onnxq.data.samples import input_specs, wrap_samples
from onnxq.ir import infer_types, load, parse
from onnxq.pipeline.quantize import quantize
from onnxq.runtime import session
from onnxq.search import sqnr_evaluator
from onnxq.search.budget import Budget, BudgetCheck
from onnxq.search.float_outputs import FloatOutputs
from onnxq.search.held_out import LONG_RUN, TRIAL_SAMPLES, HoldoutSplit
from onnxq.search.logits import scores, shared_axes
from onnxq.search.resolution import RESOLUTION, resolved_noise, round_to_resolution
from onnxq.search.sqnr_evaluator import SqnrEvaluator
from onnxq.verification.compare import compare

WEIGHT = np.array([[40.0, 0.0, 0.0], [0.0, 40.0, 0.0]], np.float32)
CERTAIN = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)


def classifier(weight: np.ndarray, *tail: tuple[str, dict[str, object]], opset: int = 17, shift: float = 0.0) -> bytes:
    """x · weight + shift, then the operators of `tail`."""
    names = ["sum", "scores", *(f"t{i}" for i in range(len(tail) - 1)), "y"]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["sum"]), helper.make_node("Add", ["sum", "shift"], ["scores"])]
    nodes += [
        helper.make_node(op, [names[1 + i]], [names[2 + i]], **attributes) for i, (op, attributes) in enumerate(tail)
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.float32(shift), "shift")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return bytes(model.SerializeToString())


def judge_of(data: bytes) -> SqnrEvaluator:
    """A judge on two clear cases."""
    return SqnrEvaluator(parse(data), wrap_samples([{"x": CERTAIN}], input_specs(parse(data))))


def test_scores_show_what_certain_probabilities_hide() -> None:
    softmax = ("Softmax", {"axis": -1})
    judge = judge_of(classifier(WEIGHT, softmax))
    worse = parse(classifier(WEIGHT * np.float32(0.9), softmax))
    noise = judge.noise(worse)
    assert noise[0] < 1e-20
    np.testing.assert_allclose(noise[1], 0.01, rtol=1e-4)  # a tenth of the scores
    np.testing.assert_allclose(judge.sqnr(worse), 20, atol=RESOLUTION + 1e-3)


def test_a_variant_runs_once_on_a_sample_whoever_judges_it(monkeypatch: pytest.MonkeyPatch) -> None:
    data = classifier(WEIGHT, ("Softmax", {"axis": -1}))
    samples = wrap_samples([{"x": floats(1, 2, seed=seed)} for seed in range(8)], input_specs(parse(data)))
    opened, ran = [0], [0]
    open_before, run_before = sqnr_evaluator.open_session, session.run_session

    def count_open(*given: Any, **settings: Any) -> Any:
        opened[0] += 1
        return open_before(*given, **settings)

    def count_run(*given: Any) -> Any:
        ran[0] += 1
        return run_before(*given)

    monkeypatch.setattr(sqnr_evaluator, "open_session", count_open)
    monkeypatch.setattr(session, "run_session", count_run)
    split = HoldoutSplit(parse(data), samples)
    worse = classifier(WEIGHT * np.float32(0.9), ("Softmax", {"axis": -1}))
    half, again = split.judge.noise(parse(worse)), split.judge.noise(parse(worse))
    np.testing.assert_array_equal(half, again)
    assert (opened, ran) == ([1], [4])
    everything = split.goal_evaluator.noise(parse(worse))
    assert (opened, ran) == ([2], [8])
    np.testing.assert_array_equal(everything, SqnrEvaluator(parse(data), samples).noise(parse(worse)))
    split.judge.noise(parse(data))
    assert (opened, ran) == ([4], [20])


def test_a_limit_is_one_for_outputs_and_as_far_as_it_decides_anything_for_scores() -> None:
    softmax = ("Softmax", {"axis": -1})
    data = parse(classifier(WEIGHT, softmax))
    samples = wrap_samples([{"x": CERTAIN}], input_specs(data))

    def missed(factor: float, limit: float) -> str:
        meets = BudgetCheck(data, samples, Budget(min_sqnr=limit))
        model = parse(classifier(WEIGHT * np.float32(factor), softmax))
        return "" if meets(model) else meets.last

    assert missed(0.9, 15) == ""
    assert missed(0.9, 25).endswith(" dB, 20.00 dB in front of a Softmax or Sigmoid at best, 25 dB asked for")
    assert missed(0.99, 25) == missed(0.99, 50) == ""  # 40 dB, of which a probability shows nothing
    neutral = ("Identity", {})
    plain = parse(classifier(WEIGHT, neutral))
    meets = BudgetCheck(plain, samples, Budget(min_sqnr=50))
    assert not meets(parse(classifier(WEIGHT * np.float32(0.99), neutral)))
    assert meets.last == "40.00 dB at best, 50 dB asked for"


def test_a_softmax_does_not_see_a_shift_and_a_sigmoid_does() -> None:
    judge = judge_of(classifier(WEIGHT, ("Softmax", {"axis": 1})))
    shifted = classifier(WEIGHT, ("Softmax", {"axis": 1}), shift=8.0)
    assert judge.noise(parse(shifted))[1] < 1e-12
    judge = judge_of(classifier(WEIGHT, ("Sigmoid", {})))
    np.testing.assert_allclose(judge.noise(parse(classifier(WEIGHT, ("Sigmoid", {}), shift=8.0)))[1], 0.12, rtol=1e-4)


@pytest.mark.filterwarnings("error")
def test_masked_scores_of_float16_are_summed_in_float32() -> None:
    tail = (("Cast", {"to": TensorProto.FLOAT16}), ("Softmax", {"axis": -1}), ("Cast", {"to": TensorProto.FLOAT}))
    weight = np.tile(np.float32([64, 128, 192, 256]), (2, 256))
    weight[:, 0] = -1e30
    judge = judge_of(classifier(weight, *tail))
    worse = parse(classifier(weight * np.float32(0.875), *tail))
    np.testing.assert_allclose(judge.noise(worse)[1], 0.125**2, rtol=1e-2)


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ([("Softmax", {"axis": -1})], {"y": "scores"}),
        ([("LogSoftmax", {"axis": -1}), ("Identity", {})], {"y": "scores"}),
        ([("Sigmoid", {}), ("Flatten", {}), ("Transpose", {"perm": [1, 0]})], {"y": "scores"}),
        ([("Softmax", {"axis": -1}), ("Cast", {"to": TensorProto.FLOAT16}), ("Cast", {"to": 1})], {"y": "scores"}),
        ([("Relu", {})], {}),
        ([("Softmax", {"axis": -1}), ("Relu", {})], {}),
    ],
)
def test_which_scores_are_found(tail: list[tuple[str, dict[str, object]]], expected: dict[str, str]) -> None:
    found = scores(parse(classifier(WEIGHT, *tail)))
    assert {name: value.name for name, value in found.items()} == expected


@pytest.mark.parametrize(
    ("opset", "attributes", "expected"),
    [(11, {}, (1, None)), (11, {"axis": 0}, (0, None)), (13, {}, (-1, None)), (13, {"axis": 0}, (0, 1))],
)
def test_axes_of_a_softmax(opset: int, attributes: dict[str, object], expected: tuple[int, int | None]) -> None:
    model = parse(classifier(WEIGHT, ("Softmax", attributes), opset=opset))
    (value,) = scores(model).values()
    assert shared_axes(value, model.opset) == expected


def test_scores_that_a_variant_has_no_more_count_nothing() -> None:
    judge = judge_of(classifier(WEIGHT, ("Softmax", {"axis": -1})))
    noise = judge.noise(parse(classifier(WEIGHT, ("Softmax", {"axis": -1}), ("Relu", {}))))
    assert noise.tolist() == [0, 0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    weights = {"w": floats(64, 64, seed=1), "b": floats(64, seed=2), "v": floats(64, 64, seed=3)}
    weights["w"][:, 0] *= 50  # one channel that rescaling divides
    nodes = [node("Gemm", "x w b", "h"), node("Relu", "h", "r"), node("Gemm", "r v b", "y")]
    (tmp_path / "m.onnx").write_bytes(build(nodes, {"x": [16, 64]}, ["y"], weights).SerializeToString())
    return tmp_path / "m.onnx"


def some(count: int) -> list[dict[str, np.ndarray]]:
    return [{"x": floats(16, 64, seed=10 + i)} for i in range(count)]


def test_every_sample_is_in_one_fold_under_its_number(path):
    model = load(path)
    for count, sizes in ((9, [3, 2, 2, 2]), (3, [1, 1, 1])):
        split = HoldoutSplit(model.copy(), wrap_samples(given := some(count), input_specs(model)))
        folds, rest = split.folds()
        assert rest is None
        assert [len(list(fold)) for fold in folds] == sizes
        assert [fold.numbers for fold in folds] == [
            list(range(count))[first :: len(sizes)] for first in range(len(sizes))
        ]
        for fold in folds:
            for number, sample in zip(fold.numbers, fold, strict=True):
                np.testing.assert_array_equal(sample["x"], given[number]["x"])


@pytest.mark.parametrize(("run_time", "judged", "besides"), [(0, 96, 72), (LONG_RUN, 24, 72), (10 * LONG_RUN, 8, 7)])
def test_what_is_in_no_fold_is_measured_besides_as_long_as_runs_are_short(path, run_time, judged, besides):
    model = load(path)
    split = HoldoutSplit(model.copy(), wrap_samples(given := some(300), input_specs(model)), run_time)
    folds, rest = split.folds()
    assert sum(len(list(fold)) for fold in folds) == judged
    assert len(rest.numbers) == besides
    assert not {number for fold in folds for number in fold.numbers} & set(rest.numbers)
    for _ in range(2):  # it is read anew each time
        for number, sample in zip(rest.numbers, rest, strict=True):
            np.testing.assert_array_equal(sample["x"], given[number]["x"])
    assert max(rest.numbers) > 250


def test_the_halves_take_turns_and_are_made_once(path):
    model = load(path)
    given = some(5)
    split = HoldoutSplit(model.copy(), wrap_samples(given, input_specs(model)))
    fitting, held_out = split.halves
    assert [list(half) for half in (fitting, held_out)] == [[given[0], given[2], given[4]], [given[1], given[3]]]
    assert split.halves[0] is fitting
    assert split.judge is split.judge


def test_each_half_has_a_judge_of_its_own(path, monkeypatch):
    model = load(path)
    given = some(5)
    split = HoldoutSplit(model.copy(), wrap_samples(given, input_specs(model)))
    monkeypatch.setattr(HoldoutSplit, "evaluator", lambda _, samples: list(samples))
    assert split.swapped_evaluator == [given[0], given[2], given[4]]
    assert split.judge == [given[1], given[3]]


def test_all_parts_of_the_data_are_judged_on(path, monkeypatch):
    """The first ones of a stream, or of data sorted by class, say nothing about the others."""
    model = load(path)
    given = some(60)
    split = HoldoutSplit(model.copy(), wrap_samples(given, input_specs(model)))
    monkeypatch.setattr(HoldoutSplit, "evaluator", lambda _, samples: list(samples))
    fitting, held_out = split.halves
    places = [*fitting.numbers, *held_out.numbers]
    assert [given[place] for place in places] == [*fitting, *held_out]
    assert len(places) == TRIAL_SAMPLES
    judged_quickly, grouped = (
        [next(i for i in range(60) if (given[i]["x"] == one["x"]).all()) for one in few]
        for few in (split.ranking_evaluator, split.group_evaluator)
    )
    assert set(grouped) < set(judged_quickly)  # their float outputs are known
    for part in (places, judged_quickly, grouped):
        assert np.histogram(part, bins=4, range=(0, 60))[0].min() >= len(part) // 4 - 1


@pytest.mark.parametrize(
    ("run_time", "trials", "searched"), [(0, 24, 8), (LONG_RUN, 24, 8), (1.5 * LONG_RUN, 16, 5), (100 * LONG_RUN, 8, 4)]
)
def test_fewer_samples_are_tried_on_where_a_run_takes_long(path, monkeypatch, run_time, trials, searched):
    model = load(path)
    split = HoldoutSplit(model.copy(), wrap_samples(some(60), input_specs(model)), run_time)
    monkeypatch.setattr(HoldoutSplit, "evaluator", lambda _, samples: list(samples))
    assert sum(map(len, map(list, split.halves))) == trials
    assert len(split.ranking_evaluator) == searched
    assert len(split.goal_evaluator) == trials


def test_goals_are_judged_by_what_the_search_is_where_there_are_no_more_samples(path):
    model = load(path)
    split = HoldoutSplit(model.copy(), wrap_samples(some(6), input_specs(model)))
    assert split.goal_evaluator is split.ranking_evaluator


def test_one_large_sample_does_not_decide_about_a_change() -> None:
    """A MobileOne lost a rescaling that gains 3 dB on most pictures, 24 of which one was larger than all others."""
    neutral = ("Identity", {})
    data, shifted, scaled = (
        parse(classifier(WEIGHT * np.float32(factor), neutral, shift=shift))
        for factor, shift in ((1.0, 0.0), (1.0, 0.4), (0.99, 0.0))
    )
    sizes = [1.0, 1.0, 1.0, 1.0, 1000.0]
    judge = SqnrEvaluator(data, wrap_samples([{"x": CERTAIN * np.float32(size)} for size in sizes], input_specs(data)))
    alone = [10 * np.log10(2 * (40 * size) ** 2 / (6 * 0.4**2)) for size in sizes]
    np.testing.assert_allclose(judge.typical(shifted), np.mean(alone), atol=0.01 + RESOLUTION)  # float32
    np.testing.assert_allclose(judge.typical(scaled), 40, atol=RESOLUTION + 1e-3)
    assert judge.sqnr(shifted) > judge.sqnr(scaled) + 30
    assert judge.gain(shifted, scaled) == judge.typical(scaled) - judge.typical(shifted)
    assert judge.typical(data) == 100
    assert judge.gain(data, data) == 0


def test_one_sample_cannot_be_held_out(path):
    model = load(path)
    split = HoldoutSplit(model.copy(), wrap_samples(some(1), input_specs(model)))
    assert split.halves is None
    for half in ("judge", "swapped_evaluator"):
        with pytest.raises(ValueError, match="too few samples"):
            getattr(split, half)
    assert split.ranking_evaluator.sqnr(model) == float("inf")


def test_rescaling_rounding_and_correction_share_the_float_outputs(path, tmp_path, monkeypatch):
    made, asked = [], []
    begin, noise = SqnrEvaluator.__init__, SqnrEvaluator._run_quantized

    def ask(self: SqnrEvaluator, *args: object, **kind: int) -> np.ndarray:
        asked.append(self)
        return noise(self, *args, **kind)

    def start(self: SqnrEvaluator, *args: object, **kind: bool) -> None:
        made.append(self)
        begin(self, *args, **kind)

    monkeypatch.setattr(SqnrEvaluator, "__init__", start)
    monkeypatch.setattr(SqnrEvaluator, "_run_quantized", ask)
    recipe = tmp_path / "r.toml"
    recipe.write_text('scheme = "static-int8"\n')
    quantize(path, recipe, output=tmp_path / "q.onnx", samples=some(6))
    assert len(made) == len(set(made)), "none is made twice"
    assert 4 <= len(made) <= 6, "one for each half, and for each of four folds that is still worth a trial"
    assert asked.count(made[0]) >= 6  # at least two for each of the three steps
    assert asked.count(made[1]) == 2  # a rescaling the other way, before and after


def test_a_label_that_flips_is_no_noise_where_there_are_probabilities() -> None:
    def model(weight: np.ndarray) -> bytes:
        steps = [node("MatMul", "x w", "s"), node("Softmax", "s", "p"), node("ArgMax", "p", "label", axis=1)]
        outputs = {"label": TensorProto.INT64, "p": TensorProto.FLOAT}
        return build(steps, {"x": ["N", 2]}, outputs, {"w": weight}).SerializeToString()

    close = np.array([[1.0, 1.001, 0.0], [0.0, 1.0, 1.001]], np.float32)
    flipped = np.array([[1.001, 1.0, 0.0], [0.0, 1.001, 1.0]], np.float32)
    samples = wrap_samples([{"x": CERTAIN}], input_specs(parse(model(close))))
    assert SqnrEvaluator(parse(model(close)), samples).sqnr(parse(model(flipped))) > 50
    comparison = compare(model(close), model(flipped), samples, latency=False)
    label, probabilities = comparison.outputs
    assert label.sqnr < 10
    assert comparison.worst_sqnr == probabilities.sqnr > 50
    assert comparison.missed(min_sqnr=50) == []
    assert len(replace(comparison, outputs=(label,)).missed(min_sqnr=50)) == 1


def test_ratios_are_rounded_down_to_what_tells_variants_apart_on_every_processor() -> None:
    assert round_to_resolution(39.9999) == pytest.approx(39.99)
    assert round_to_resolution(40.00002) == round_to_resolution(40.0) == pytest.approx(40)
    assert round_to_resolution(-0.001) == pytest.approx(-0.01)
    assert round_to_resolution(float("inf")) == float("inf")
    assert resolved_noise(1.00001e-4) == resolved_noise(1.0003e-4) == pytest.approx(10**-3.999)
    assert resolved_noise(0.0) == 0
    assert resolved_noise(float("inf")) == float("inf")


def test_ratios_of_a_judge_lie_on_that_grid() -> None:
    judge = judge_of(classifier(WEIGHT, ("Relu", {})))
    off = parse(classifier(WEIGHT * np.float32(0.93), ("Relu", {})))
    for ratio in (judge.sqnr(off), judge.typical(off)):
        assert ratio / RESOLUTION == pytest.approx(round(ratio / RESOLUTION), abs=1e-6)


def test_a_variant_of_an_output_that_is_zero_gains_nothing() -> None:
    """Two ratios of minus infinity have no difference: it was no number, which passed for a gain."""

    def model(added: float) -> Any:
        steps = [node("Mul", "x none", "zero"), node("Add", "zero a", "y")]
        weights = {"none": np.zeros(1, np.float32), "a": np.full(1, added, np.float32)}
        return parse(build(steps, {"x": ["N", 2]}, ["y"], weights).SerializeToString())

    judge = SqnrEvaluator(model(0.0), wrap_samples([{"x": CERTAIN}], input_specs(model(0.0))))
    assert judge.sqnr(model(0.1)) == float("-inf")
    assert judge.sqnr_gains(lambda: model(0.1), [lambda: model(0.2)], least=0.5) == [0.0]
    assert judge.sqnr_towards(model(0.2), float("-inf")) == float("-inf")


@pytest.mark.parametrize(("least", "ran"), [(-1.0, 12), (1.0, 12), (3.0, 4)])
def test_a_variant_that_cannot_gain_enough_runs_on_the_first_samples_only(least, ran, monkeypatch) -> None:
    neutral = ("Identity", {})
    data, before, after = (parse(classifier(WEIGHT * np.float32(factor), neutral)) for factor in (1.0, 0.9, 0.92))
    samples = wrap_samples([{"x": floats(1, 2, seed=seed)} for seed in range(12)], input_specs(data))
    judge = SqnrEvaluator(data, samples)
    whole = judge.gain(before, after)
    assert 1 < whole < 3
    run, runs = session.run_session, [0]

    def count(*given: Any) -> Any:
        runs[0] += 1
        return run(*given)

    monkeypatch.setattr(session, "run_session", count)
    judge = SqnrEvaluator(data, samples)
    for figures in (judge.typicals([before, after], least=least), judge.sqnrs([before, after], least=least)):
        first, second = figures
        assert second - first == pytest.approx(whole, abs=2 * RESOLUTION)
    assert runs[0] == 12 + ran  # results of the first figures serve the second ones


@pytest.mark.parametrize(("goal", "reached", "ran"), [(19.5, True, 12), (20.5, False, 12), (30.0, False, 2)])
def test_a_goal_that_some_of_the_samples_miss_already_is_missed(goal, reached, ran, monkeypatch) -> None:
    neutral = ("Identity", {})
    data, off = (parse(classifier(WEIGHT * np.float32(factor), neutral)) for factor in (1.0, 0.9))  # 20 dB
    samples = wrap_samples([{"x": floats(1, 2, seed=seed)} for seed in range(12)], input_specs(data))
    judge = SqnrEvaluator(data, samples)
    run, runs = session.run_session, [0]

    def count(*given: Any) -> Any:
        runs[0] += 1
        return run(*given)

    monkeypatch.setattr(session, "run_session", count)
    assert (judge.sqnr_towards(off, goal) >= goal) is reached
    assert runs[0] <= ran + 4  # some more have begun by then
    assert (judge.sqnr(off) >= goal) is reached


def test_a_large_model_gives_each_sample_its_own_where_one_comes_twice(tmp_path: Path) -> None:
    model = parse(bytes(build([node("Neg", "x", "y")], {"x": ["n", 2]}).SerializeToString()))
    infer_types(model)
    first, second = ({"x": floats(1, 2) + shift} for shift in (0, 1))
    given = [first, first, second, second, first]
    found = FloatOutputs(model, ["y"], tmp_path).of(given)
    pairs = zip(given, found, strict=True)
    assert [np.array_equal(one.outputs["y"], -sample["x"]) for sample, one in pairs] == [True] * 5


def test_scores_that_a_mask_leaves_out_do_not_move_the_others() -> None:
    """Scores of minus infinity, or next to it, have no mean; a shift of all others is none to a Softmax."""
    nodes = [node("MatMul", "x w", "h"), node("Add", "h m", "z"), node("Softmax", "z", "y", axis=-1)]
    mask = np.triu(np.full((6, 6), -np.inf, np.float32), 1)
    mask[:, 0] = 5 * np.arange(6)
    for least in (-np.inf, np.finfo(np.float32).min):
        made = np.where(np.isinf(mask), np.float32(least), mask)
        model = typed(build(nodes, {"x": [6, 6]}, ["y"], {"w": floats(6, 6, seed=1), "m": made}))
        samples = wrap_samples([{"x": floats(6, 6, seed=i)} for i in range(4)], input_specs(model))
        judge = SqnrEvaluator(model, samples)
        shifted = typed(build(nodes, {"x": [6, 6]}, ["y"], {"w": floats(6, 6, seed=1), "m": made + np.float32(1)}))
        assert judge.sqnr(shifted) > 90
