"""Random numbers tell which weights need more bits, and which scales at run time are too coarse."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import build, floats, node
from onnx import numpy_helper
from test_wide_weights import schemes, some, steep_network

from onnxq import quantize
from onnxq.data.samples import input_specs
from onnxq.data.synthetic import random_samples, synthetic_samples
from onnxq.ir import load
from onnxq.ir.shape_inference.types import infer_types
from onnxq.planning.recipe import choose_recipe
from onnxq.search.candidates import Candidate
from onnxq.search.held_out import HoldoutSplit
from onnxq.search.sensitivity import quantize_only
from onnxq.search.without_data import MORE_ON_OTHERS, _more_on_others, _needed, _worthwhile
from onnxq.stages.prepare import prepare
from onnxq.verification.compare import compare


def test_weights_get_more_bits_without_data_where_outputs_are_far_from_float(tmp_path: Path) -> None:
    source = steep_network(tmp_path)
    found = {}
    for fast in (True, False):
        report = quantize(source, output=tmp_path / "q.onnx", fast=fast, force=True)
        assert ("weight-int12" in schemes(report)) is not fast
        found[fast] = compare(source, tmp_path / "q.onnx", some(16, 900), latency=False).worst_sqnr
    assert found[False] > found[True] + 3


def test_weights_get_more_bits_where_random_numbers_do_not_reach_the_output(tmp_path: Path) -> None:
    """All of the first layer is below zero, and Relu leaves nothing of it: what 8 bit loses does not show."""
    weights = {f"w{place}": floats(96, 96, seed=place) for place in range(2)}
    bias = np.full(96, -1e6, np.float32)
    nodes = [node("MatMul", "x w0", "m"), node("Add", "m b", "a"), node("Relu", "a", "r"), node("MatMul", "r w1", "y")]
    onnx.save(build(nodes, {"x": ["N", 96]}, ["y"], {**weights, "b": bias}), tmp_path / "m.onnx")
    report = quantize(tmp_path / "m.onnx", output=tmp_path / "q.onnx")
    assert {*schemes(report)} <= {"weight-int12", "weight-int8"}
    assert "weight-int12" in schemes(report)


def test_probabilities_of_random_numbers_do_not_count_and_their_scores_do_without_their_mean(tmp_path: Path) -> None:
    weights = {"w": floats(8, 8, seed=1), "b": np.full(8, -40, np.float32)}
    nodes = [node("MatMul", "x w", "m"), node("Add", "m b", "s"), node("Sigmoid", "s", "y")]
    onnx.save(build(nodes, {"x": ["N", 8]}, ["y"], weights), tmp_path / "m.onnx")
    onnx.save(build(nodes, {"x": ["N", 8]}, ["y"], {**weights, "w": weights["w"] * 1.1}), tmp_path / "q.onnx")
    model, other = load(tmp_path / "m.onnx"), load(tmp_path / "q.onnx")
    infer_types(model)
    judge = HoldoutSplit(model, random_samples(input_specs(model), 4)).ranking_evaluator
    assert 19 < judge.sqnr(other) < 21  # a tenth of the scores, whatever their mean


def test_a_single_score_keeps_its_mean_for_nothing_else_would_be_left(tmp_path: Path) -> None:
    weights = {"w": floats(8, 1, seed=1), "b": np.full(1, -40, np.float32)}
    nodes = [node("MatMul", "x w", "m"), node("Add", "m b", "s"), node("Sigmoid", "s", "y")]
    onnx.save(build(nodes, {"x": [1, 8]}, ["y"], weights), tmp_path / "m.onnx")
    onnx.save(build(nodes, {"x": [1, 8]}, ["y"], {**weights, "w": weights["w"] * 1.1}), tmp_path / "q.onnx")
    model, other = load(tmp_path / "m.onnx"), load(tmp_path / "q.onnx")
    infer_types(model)
    judge = HoldoutSplit(model, random_samples(input_specs(model), 4)).ranking_evaluator
    assert 30 < judge.sqnr(other) < 80


def test_scores_of_random_numbers_are_as_exact_as_undecided_cases_need(tmp_path: Path) -> None:
    """Scores of -1000 are 50 dB from float, and a probability of a half would be 15 dB from it."""
    proto = onnx.load(steep_network(tmp_path))
    proto.graph.node[-1].output[0] = "m5"
    proto.graph.node.extend([node("Add", "m5 b", "s"), node("Sigmoid", "s", "y")])
    weights = {"w5": floats(96, 1, seed=5, scale=0.35), "b": np.full(1, -1000, np.float32)}
    kept = [tensor for tensor in proto.graph.initializer if tensor.name not in weights]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend([*kept, *(numpy_helper.from_array(array, name) for name, array in weights.items())])
    onnx.save(proto, tmp_path / "m.onnx")
    assert "weight-int12" in schemes(quantize(tmp_path / "m.onnx", output=tmp_path / "q.onnx"))


def test_nodes_quantized_alone_keep_their_settings(tmp_path: Path) -> None:
    """A scale for every row is another form than one for all rows, which may be none at all."""
    weights = {"w": floats(256, 256, seed=1)}
    source = tmp_path / "m.onnx"
    onnx.save(build([node("MatMul", "x w", "y")], {"x": [1, 64, 256]}, ["y"], weights), source)
    prepared = prepare(load(source), choose_recipe("auto"), with_data=False)
    (decision,) = [one for one in prepared.plan.decisions if one.node.op_type == "MatMul"]
    assert decision.settings is not None
    assert decision.settings.activation_granularity == "row"
    (choice,) = quantize_only(prepared.plan, [decision]).values()
    assert dict(choice.settings)["activation_granularity"] == "row"


@pytest.mark.parametrize("looked_up", [True, False])
def test_token_ids_need_no_margin_and_floats_do(tmp_path: Path, looked_up: bool) -> None:
    weights = {"table": floats(64, 256, seed=1), "w": floats(256, 256, seed=2)}
    nodes = (
        [node("Gather", "table x", "rows"), node("MatMul", "rows w", "y")]
        if looked_up
        else [node("MatMul", "x w", "y")]
    )
    made = build(nodes, {"x": [1, 16] if looked_up else [1, 16, 256]}, ["y"], weights)
    if looked_up:
        made.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    onnx.save(made, tmp_path / "m.onnx")
    prepared = prepare(load(tmp_path / "m.onnx"), choose_recipe("auto"), with_data=False)
    samples = synthetic_samples(prepared.model, input_specs(prepared.model), 4)
    assert _more_on_others(prepared.model, samples) == (0 if looked_up else MORE_ON_OTHERS)


def test_as_many_nodes_go_as_leave_no_more_error_than_a_goal_allows() -> None:
    moves = [Candidate(str(place), noise, 0.0, 0.0, computes=True) for place, noise in enumerate((0.1, 0.01, 0.001))]
    assert [_needed(moves, goal) for goal in (5, 15, 25, 35)] == [0, 1, 2, 3]


def test_a_goal_is_not_reached_for_where_its_nodes_take_too_much_time() -> None:
    moves = [Candidate(str(place), noise, 0.0, 0.1, computes=True) for place, noise in enumerate((0.1, 0.01, 0.001))]
    assert _worthwhile(moves, [(15, math.inf), (25, 0.2), (35, 0.2)]) == 2
    assert _worthwhile(moves, [(15, math.inf), (25, 0.1), (35, 0.9)]) == 1
    assert _worthwhile(moves, [(5, math.inf), (15, 0.0)]) == 0
