"""Bias correction: means of the outputs come out right, and nothing is changed that gains nothing."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from helpers import build, floats, node
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from onnxq import evaluate
from onnxq.data.samples import input_specs, wrap_samples
from onnxq.evaluator import Evaluator
from onnxq.evaluator.several_runs import several_runs
from onnxq.ir import load, parse
from onnxq.progress import Silent
from onnxq.search import bias_correction
from onnxq.search.bias_correction import (
    bias_sites,
    channel_means,
    correct,
    paired_samples,
    shift_biases,
    shifts,
    shrink_to_zero,
)
from onnxq.search.held_out import HoldoutSplit
from onnxq.search.sqnr_evaluator import SqnrEvaluator
from onnxq.search.variants import Variants, calibrate_and_round
from onnxq.stages.prepare import prepare
from onnxq.targets.assumed_shapes import TensorBytes

NEAREST = 'scheme = "static-int8"\nsmoothing = false\nrounding = "nearest"\n'


def network(kind: str):
    """Build two layers of one kind, and the shape of what they read: all weights lie a little above a code."""
    if kind == "conv":
        w = [floats(8, 8, 3, 3, seed=s) / 8 for s in (1, 2)]
        nodes = [node("Conv", "x w0 b0", "h", pads=[1, 1, 1, 1]), node("Relu", "h", "r"), node("Conv", "r w1", "y")]
        return nodes, {"w0": w[0], "w1": w[1], "b0": floats(8, seed=3)}, [1, 8, 8, 8]
    w = [floats(16, 16, seed=s) / 4 for s in (1, 2)]
    if kind == "gemm":
        nodes = [node("Gemm", "x w0 b0", "h"), node("Relu", "h", "r"), node("Gemm", "r w1 b1", "y", transB=1)]
    else:
        nodes = [
            node("MatMul", "x w0", "m"), node("Add", "m b0", "h"), node("Relu", "h", "r"),
            node("MatMul", "r w1", "n"), node("Add", "b1 n", "y"),
        ]  # fmt: skip
    return nodes, {"w0": w[0], "w1": w[1], "b0": floats(16, seed=3), "b1": floats(16, seed=4)}, [4, 16]


def variants_of(tmp_path, kind: str, extra: str = "") -> Variants:
    nodes, weights, shape = network(kind)
    (tmp_path / "m.onnx").write_bytes(build(nodes, {"x": shape}, ["y"], weights).SerializeToString())
    (tmp_path / "r.toml").write_text(NEAREST + extra)
    prepared = prepare(load(tmp_path / "m.onnx"), str(tmp_path / "r.toml"), with_data=True)
    samples = [{"x": np.abs(floats(*shape, seed=10 + i)) + 1} for i in range(12)]  # far from zero mean
    wrapped = wrap_samples(samples, input_specs(prepared.model))
    return calibrate_and_round(prepared, HoldoutSplit(prepared.model.copy(), wrapped), wrapped, None, Silent())


@pytest.mark.parametrize("kind", ["conv", "gemm", "matmul"])
def test_the_means_of_the_outputs_come_out_right(tmp_path, kind):
    variants = variants_of(tmp_path, kind)
    found = shifts(variants, {}, variants.model({}), variants.samples)
    assert len(found) == 2
    axis = 1 if kind == "conv" else -1

    def off(model) -> float:
        rest = tuple(a for a in range(4 if kind == "conv" else 2) if a != axis % (4 if kind == "conv" else 2))
        differences = [
            (evaluate(variants.prepared.model, sample)["y"] - evaluate(model, sample)["y"]).mean(axis=rest)
            for sample in variants.samples
        ]
        return float(np.abs(np.mean(differences, axis=0)).max())

    before = off(variants.model({}))
    after = off(variants.model({}, partial(shift_biases, shifts=found)))
    assert after < before / 2


@pytest.mark.parametrize("kind", ["conv", "gemm", "matmul"])
def test_what_is_kept_gains_on_other_samples(tmp_path, kind):
    variants = variants_of(tmp_path, kind)
    found = correct(variants, {})
    if found:
        judge = SqnrEvaluator(variants.baseline, variants.samples)
        after = judge.sqnr(variants.model({}, partial(shift_biases, shifts=found)))
        assert after > judge.sqnr(variants.model({}))


def test_nothing_is_corrected_where_little_is_lost(tmp_path, monkeypatch):
    """Codes fit the few samples that they were chosen on, and their mean errors there are not those of others."""
    variants = variants_of(tmp_path, "gemm")
    monkeypatch.setattr(bias_correction, "LEAST_GAIN", -100.0)
    assert correct(variants, {})
    monkeypatch.setattr(bias_correction, "ENOUGH", 10.0)
    assert not correct(variants, {})


def test_no_shift_is_computed_where_samples_share_little_of_the_error(tmp_path, monkeypatch):
    variants = variants_of(tmp_path, "gemm")
    judge = variants.split.judge
    assert 0 <= judge.constant_share(variants.model({})) <= 1
    monkeypatch.setattr(type(judge), "constant_share", lambda self, model: 0.04)  # 0.18 dB
    monkeypatch.setattr(bias_correction, "shifts", lambda *given: pytest.fail("computed"))
    assert not correct(variants, {})


def test_the_error_of_a_shifted_output_is_the_same_in_all_samples(tmp_path):
    variants = variants_of(tmp_path, "gemm")
    shifted = variants.prepared.model.copy()
    shift_biases(shifted, {"y": np.full(shifted.graph.outputs[0].shape[-1], 3.0)})
    assert variants.split.judge.constant_share(shifted) > 0.999


def test_a_conv_without_a_bias_gets_one(tmp_path):
    variants = variants_of(tmp_path, "conv")
    model = variants.prepared.model.copy()
    shift_biases(model, {"y": np.arange(8.0)})
    second = [n for n in model.graph.nodes if n.op_type == "Conv"][1]
    np.testing.assert_array_equal(second.inputs[2].constant.numpy(), np.arange(8, dtype=np.float32))


def test_a_shared_bias_changes_for_one_reader_only(tmp_path):
    nodes = [node("Gemm", "x w b", "h"), node("Gemm", "h w b", "y")]
    model = build(nodes, {"x": [2, 4]}, ["y"], {"w": floats(4, 4), "b": floats(4, seed=1)})
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    loaded = load(tmp_path / "m.onnx")
    shift_biases(loaded, {"h": np.ones(4)})
    first, second = loaded.graph.nodes
    np.testing.assert_array_equal(second.inputs[2].constant.numpy(), floats(4, seed=1))
    np.testing.assert_allclose(first.inputs[2].constant.numpy(), floats(4, seed=1) + 1)


def test_a_recipe_can_turn_it_off(tmp_path):
    variants = variants_of(tmp_path, "gemm", "bias_correction = false\n")
    assert not bias_sites(variants.prepared.plan, variants.model({}))
    assert not correct(variants, {})


@given(st.integers(1, 20), st.floats(-10, 10), st.floats(0, 5))
def test_shrinking_never_turns_or_overshoots(count, mean, spread):
    off = mean + spread * floats(count, 3).astype(np.float64)
    found = shrink_to_zero(off)
    assert found.shape == (3,)
    assert (np.abs(found) <= np.abs(off.mean(axis=0)) + 1e-12).all()
    assert (found * off.mean(axis=0) >= 0).all()


def test_a_mean_that_never_varies_is_kept_whole():
    np.testing.assert_allclose(shrink_to_zero(np.full((5, 2), 0.25)), 0.25)


def test_empty_batches_have_no_mean_and_shift_nothing(tmp_path):
    nodes, weights, shape = network("conv")
    (tmp_path / "m.onnx").write_bytes(build(nodes, {"x": [None, *shape[1:]]}, ["y"], weights).SerializeToString())
    (tmp_path / "r.toml").write_text(NEAREST)
    prepared = prepare(load(tmp_path / "m.onnx"), str(tmp_path / "r.toml"), with_data=True)
    samples = [{"x": floats(count, *shape[1:], seed=count)} for count in (0, 2, 0, 3)]
    wrapped = wrap_samples(samples, input_specs(prepared.model))
    variants = calibrate_and_round(prepared, HoldoutSplit(prepared.model.copy(), wrapped), wrapped, None, Silent())
    assert not shifts(variants, {}, variants.model({}), wrapped)
    assert not channel_means(np.zeros((0, 3)), 1).any()


def test_as_many_samples_are_taken_as_fit_into_memory(monkeypatch):
    # Four pictures of 24, as a limit on their elements came to, gave a detector of faces 0.5 dB less than all of them
    nodes = [node("Conv", "x w", "h", pads=[1, 1, 1, 1]), node("Relu", "h", "y")]
    evaluator = Evaluator(build(nodes, {"x": [1, 3, 240, 320]}, ["y"], {"w": floats(4, 3, 3, 3)}))
    samples = wrap_samples([{"x": floats(1, 3, 240, 320, seed=i)} for i in range(24)], input_specs(evaluator.model))
    assert len(paired_samples([evaluator, evaluator], samples)) == 24
    monkeypatch.setattr(bias_correction, "MOST_BYTES", 10 * evaluator.peak_bytes(next(iter(samples))))
    assert len(paired_samples([evaluator, evaluator], samples)) == 5
    monkeypatch.setattr(bias_correction, "MOST_BYTES", 1)
    assert len(paired_samples([evaluator], samples)) == 1


@pytest.mark.parametrize(("side", "known"), [(16, True), ("side", False)])
def test_samples_are_counted_without_a_run_where_sizes_follow_from_the_inputs(side, known):
    nodes = [node("Conv", "x w", "h", pads=[1, 1, 1, 1]), node("Relu", "h", "r"), node("Flatten", "r", "y")]
    given = build(nodes, {"x": ["rows", 3, side, side]}, ["y"], {"w": floats(4, 3, 3, 3)})
    evaluator, sample = Evaluator(parse(given.SerializeToString())), {"x": floats(2, 3, 16, 16)}
    runs = []
    evaluator.peak_bytes = lambda feeds: runs.append(feeds) or 1
    assert len(paired_samples([evaluator], wrap_samples([sample], input_specs(evaluator.model)))) == 1
    assert bool(runs) != known
    if known:
        expected = evaluator.expected_peak_bytes(sample, TensorBytes(evaluator.model, sample, {}).of)
        assert expected == Evaluator(given).peak_bytes(sample)


def test_what_reads_constants_alone_is_computed_once_for_all_samples() -> None:
    nodes = [node("DequantizeLinear", "c s", "w"), node("Neg", "w", "n"), node("MatMul", "x n", "y")]
    weights = {"c": np.arange(-8, 8, dtype=np.int8).reshape(4, 4), "s": np.float32(0.5)}
    evaluator = Evaluator(parse(build(nodes, {"x": [2, 4]}, ["y"], weights).SerializeToString()), wide=True)
    assert [step.fixed for step in evaluator.steps] == [True, True, False]
    calls = 0
    before = evaluator.steps[0].call
    assert before is not None

    def counted(*given):
        nonlocal calls
        calls += 1
        return before(*given)

    evaluator.steps[0].call = counted
    feeds = [{"x": floats(2, 4, seed=seed)} for seed in range(3)]
    runs = [evaluator.begin(one) for one in feeds]
    with several_runs() as compute:
        for step in evaluator.steps:
            compute(runs, step)
            for run in runs:
                run.release(step)
    assert calls == 1
    for run, one in zip(runs, feeds, strict=True):
        expected = evaluator.run(one)["y"]
        np.testing.assert_array_equal(run.values[evaluator.model.graph.values["y"]], expected)


def test_an_initializer_that_is_an_input_too_is_no_constant() -> None:
    made = build([node("Neg", "w", "n"), node("MatMul", "x n", "y")], {"x": [2, 4]}, ["y"], {"w": floats(4, 4)})
    made.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 4]))
    assert not any(step.fixed for step in Evaluator(parse(made.SerializeToString())).steps)
