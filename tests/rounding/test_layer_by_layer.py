"""Codes of block weights are chosen on what each layer reads once the layers before are quantized."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import build, floats, node, recipe_of
from onnx import TensorProto, helper, numpy_helper

from onnxq import evaluate
from onnxq.calibration.calibrate import calibrate
from onnxq.calibration.layer_moments import MeasuredLayers
from onnxq.errors import ModelError
from onnxq.ir import infer_types, parse
from onnxq.ir.storage import residency
from onnxq.ir.storage.scratch_file import Spool, is_mapped
from onnxq.planning.planner import make_plan
from onnxq.rounding import layer_by_layer
from onnxq.rounding.block_solver import solve_blocks
from onnxq.rounding.layer_by_layer import block_jobs, can_step, round_layer_by_layer, round_on_moments
from onnxq.rounding.weights import Weights

MIXING = floats(8, 64, seed=50)


def samples(count=40, first=0):
    return [
        {"x": floats(1, 6, 8, seed=seed) @ MIXING + floats(1, 6, 64, seed=900 + seed) / 5}
        for seed in range(first, first + count)
    ]


def two_layers(**changes):
    """Two products with a Relu between them, and a third that shares the second's weight."""
    weights = {"w1": floats(64, 48, scale=0.3), "w2": floats(48, 40, scale=0.3, seed=1)}
    nodes = [node("MatMul", "x w1", "a"), node("Relu", "a", "b"), node("MatMul", "b w2", "y")]
    model = parse(build(nodes, {"x": [1, 6, 64]}, ["y"], weights, 21).SerializeToString())
    infer_types(model)
    return model, make_plan(model, recipe_of("weight-int4", **changes), with_data=True)


def test_the_first_layer_is_rounded_on_the_samples_and_the_second_on_what_the_quantized_first_gives():
    model, plan = two_layers()
    first, second = block_jobs(plan)
    found = round_layer_by_layer(model, [second, first], samples())
    layers = MeasuredLayers(model.graph.nodes)
    stats = calibrate(model, layers.values, samples(), kinds=layers.kinds)
    alone = round_on_moments([first, second], layers, stats)
    np.testing.assert_array_equal(found[first.key].codes.codes, alone[first.key].codes.codes)
    assert (found[second.key].codes.codes != alone[second.key].codes.codes).any()
    assert [found[job.key].method for job in (first, second)] == ["output error"] * 2


def test_tokens_that_go_elsewhere_in_the_quantized_prefix_are_not_held_against_those_of_the_float_model():
    """Experts read the tokens that a router sends them, which may be fewer or more behind quantized layers."""
    weights = {"w1": floats(64, 48, scale=0.3), "w2": floats(48, 40, scale=0.3, seed=1), "zero": np.float32(0)}
    nodes = [
        node("MatMul", "x w1", "a"),
        node("ReduceSum", "a last", "sums", keepdims=0),
        node("Greater", "sums zero", "hit"),
        node("NonZero", "hit", "places"),
        node("Squeeze", "places first", "own"),
        node("Gather", "a own", "read"),
        node("MatMul", "read w2", "y"),
    ]
    integers = {"last": np.array([1]), "first": np.array([0])}
    model = parse(build(nodes, {"x": [6, 64]}, ["y"], weights | integers, 21).SerializeToString())
    infer_types(model)
    plan = make_plan(model, recipe_of("weight-int2"), with_data=True)
    given = [{"x": each["x"][0]} for each in samples()]
    jobs = block_jobs(plan)
    assert all(job.corrects for job in jobs)
    found = round_layer_by_layer(model, jobs, given)
    assert [found[job.key].method for job in jobs] == ["output error"] * 2


def test_what_later_layers_read_is_of_the_weight_that_the_codes_stand_for():
    model, plan = two_layers(prefix_correction=False)
    jobs = block_jobs(plan)
    found = round_layer_by_layer(model, jobs, samples())
    quantized = found[jobs[0].key].codes.dequantized(1, 32).T
    layers = MeasuredLayers([model.graph.nodes[2]])
    hidden = [{"x": np.maximum(sample["x"] @ quantized, 0)} for sample in samples()]
    moments = next(iter(layers.kinds("b")[-1].layers.values()))  # type: ignore[attr-defined]
    for sample in hidden:
        moments.add(sample["x"].astype(np.float32))
    expected = solve_blocks(jobs[1].rows().array(), moments, 4, 32)
    differing = (expected.codes.codes != found[jobs[1].key].codes.codes).mean()
    assert differing < 0.002  # float32 sums of this test against float64


def test_a_weight_that_another_layer_reads_in_float_stays_float_for_it():
    weights = {"w1": floats(64, 64, scale=0.3)}
    nodes = [node("MatMul", "x w1", "a"), node("MatMul", "a w1", "b", name="keep"), node("Relu", "b", "y")]
    model = parse(build(nodes, {"x": [1, 6, 64]}, ["y"], weights, 21).SerializeToString())
    infer_types(model)
    plan = make_plan(model, recipe_of("weight-int4").selecting(exclude="keep"), with_data=True)
    (job,) = block_jobs(plan)
    before = job.rows().array().copy()
    round_layer_by_layer(model, [job], samples(8))
    np.testing.assert_array_equal(job.rows().array(), before)


def test_weights_to_nearest_have_no_jobs_and_operators_without_kernels_are_told():
    model, plan = two_layers(rounding="nearest")
    assert not block_jobs(plan)
    weights = {"w1": floats(64, 48, scale=0.3)}
    nodes = [node("Foreign", "x", "a", domain="com.example"), node("MatMul", "a w1", "y")]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 6, 64]) for name in ("x", "a")]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 6, 48])
    stored = [numpy_helper.from_array(weights["w1"], "w1")]
    graph = helper.make_graph(nodes, "g", values[:1], [output], stored, value_info=values[1:])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.example", 1)]
    model = parse(helper.make_model(graph, opset_imports=opsets).SerializeToString())
    infer_types(model)
    assert not can_step(model, block_jobs(make_plan(model, recipe_of("weight-int4"), with_data=True)))
    with pytest.raises(ModelError):
        round_layer_by_layer(model, block_jobs(make_plan(model, recipe_of("weight-int4"), with_data=True)), samples(2))


def test_rounding_serves_the_whole_model_better_than_the_weights_own_error():
    model, plan = two_layers()
    jobs = block_jobs(plan)
    errors = []
    for found in (
        round_layer_by_layer(model, jobs, samples()),
        {job.key: solve_blocks(job.rows().array(), None, 4, 32) for job in jobs},
    ):
        first, second = (found[job.key].codes.dequantized(1, 32).T for job in jobs)
        error = 0.0
        for sample in samples(10, first=500):
            expected = evaluate(model, sample)["y"]
            error += float(np.square(np.maximum(sample["x"] @ first, 0) @ second - expected).sum())
        errors.append(error)
    assert errors[0] < 0.5 * errors[1]


def output_error(model, plan):
    jobs = block_jobs(plan)
    found = round_layer_by_layer(model, jobs, samples())
    first, second = (found[job.key].codes.dequantized(1, 32).T for job in jobs)
    error = 0.0
    for sample in samples(10, first=500):
        expected = evaluate(model, sample)["y"]
        error += float(np.square(np.maximum(sample["x"] @ first, 0) @ second - expected).sum())
    return error


def test_the_second_layer_compensates_for_the_error_of_the_first():
    corrected, left = (output_error(*two_layers(prefix_correction=wanted)) for wanted in (True, False))
    assert corrected < 0.97 * left


def test_nothing_of_a_large_weight_stays_in_memory(tmp_path):
    """Guard of the memory: codes of all layers together are larger than the largest layer."""
    weights = {"w1": floats(1024, 1024, scale=0.3)}
    model = parse(build([node("MatMul", "x w1", "y")], {"x": [1, 2, 1024]}, ["y"], weights, 21).SerializeToString())
    infer_types(model)
    (job,) = block_jobs(make_plan(model, recipe_of("weight-int4"), with_data=True))
    with Spool(tmp_path) as spool:
        for solutions in ({}, {job.key: solve_blocks(job.rows().array(), None, 4, 32).kept(spool.keep)}):
            made = Weights(spool=spool, solutions=solutions)
            codes = made.block_codes(job.weight, job.coding, "layer").codes
            assert is_mapped(codes)
            assert is_mapped(made._solutions[job.key].codes.codes)
            np.testing.assert_array_equal(codes.T, made._solutions[job.key].codes.codes)


def in_branches(shared=True):
    """Return the two products in both branches of an `If`: behind twice the input where it is true."""
    weights = {"w1": floats(64, 48, scale=0.3), "w2": floats(48, 40, scale=0.3, seed=1), "two": np.float32(2)}
    bodies = {}
    for name in ("then", "else"):
        first = node("Mul", "x two", f"{name}_x") if name == "then" else node("Identity", "x", f"{name}_x")
        nodes = [first, node("MatMul", f"{name}_x w1", f"{name}_a"), node("Relu", f"{name}_a", f"{name}_b")]
        nodes += [node("MatMul", f"{name}_b w2", f"{name}_y"), node("Abs", f"{name}_y", f"{name}_z")]
        out = helper.make_tensor_value_info(f"{name}_z", TensorProto.FLOAT, [1, 6, 40])
        own = [] if shared or name == "then" else [numpy_helper.from_array(weights["w1"] / 2, "w1_else")]
        if own:
            nodes[1].input[1] = "w1_else"
        bodies[f"{name}_branch"] = helper.make_graph(nodes, name, [], [out], own)
    branching = helper.make_node("If", ["c"], ["z"], **bodies)
    proto = build(
        [branching, node("Neg", "z", "y")], {"x": [1, 6, 64], "c": (TensorProto.BOOL, [])}, ["y"], weights, 21
    )
    model = parse(proto.SerializeToString())
    infer_types(model)
    return model, block_jobs(make_plan(model, recipe_of("weight-int4"), with_data=True))


def test_samples_enter_the_branches_that_they_take_and_a_weight_of_both_is_chosen_on_all_of_them():
    model, jobs = in_branches()
    assert [len(job.readers) for job in jobs] == [2, 2]
    assert all(job.corrects for job in jobs)
    assert can_step(model, jobs)
    plain, plan = two_layers()
    expected_jobs = block_jobs(plan)
    mixed = [{**sample, "c": np.array(index % 3 == 0)} for index, sample in enumerate(samples())]
    read = [{"x": sample["x"] * (2 if sample["c"] else 1)} for sample in mixed]
    # A branch is entered by all samples that take it before the next is
    read = [one for one, sample in zip(read, mixed, strict=True) if sample["c"]] + [
        one for one, sample in zip(read, mixed, strict=True) if not sample["c"]
    ]
    found, expected = round_layer_by_layer(model, jobs, mixed), round_layer_by_layer(plain, expected_jobs, read)
    for job, other in zip(jobs, expected_jobs, strict=True):
        np.testing.assert_array_equal(found[job.key].codes.codes, expected[other.key].codes.codes)


def test_a_branch_that_no_sample_takes_leaves_its_weights_to_nearest():
    model, jobs = in_branches(shared=False)
    found = round_layer_by_layer(model, jobs, [{**sample, "c": np.array(True)} for sample in samples()])
    names = {job.weight.name for job in jobs if job.key in found}
    assert names == {"w1", "w2"}
    both = [{**sample, "c": np.array(index % 2 == 0)} for index, sample in enumerate(samples())]
    assert len(round_layer_by_layer(model, jobs, both)) == 3


@pytest.mark.parametrize("branches", [False, True])
def test_a_narrow_weight_of_a_large_model_compensates_by_what_its_layer_gives(monkeypatch, tmp_path, branches):
    """Guard of the time: the float model runs each layer once, and no product of what layers read is taken."""
    monkeypatch.setattr(residency, "LARGE", 0)
    whole, told = layer_by_layer.InputErrors, []
    monkeypatch.setattr(layer_by_layer, "InputErrors", lambda *given: told.append(None) or whole(*given))
    read = [{**each, **({"c": np.array(index % 3 == 0)} if branches else {})} for index, each in enumerate(samples())]
    found = []
    for by_output in (True, False):
        if not by_output:
            monkeypatch.setattr(layer_by_layer._Walk, "_pays_by_output", lambda *_: False)
        model, jobs = in_branches() if branches else (two_layers()[0], None)
        jobs = jobs or block_jobs(make_plan(model, recipe_of("weight-int4"), with_data=True))
        with Spool(tmp_path) as spool:
            codes = round_layer_by_layer(model, jobs, read, spool)[jobs[1].key].codes
            found.append(codes.dequantized(1, 32))
        assert bool(told) is not by_output
    assert np.mean(found[0] != found[1]) < 0.02
