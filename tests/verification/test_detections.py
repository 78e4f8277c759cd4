"""Detectors are judged by the boxes that the float model picks, and by what it picks them from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import build, floats, node
from onnx import TensorProto, helper, numpy_helper

from onnxq.data.samples import input_specs, wrap_samples
from onnxq.ir import Model, load, parse
from onnxq.pipeline.quantize import quantize
from onnxq.report import comparison_dict
from onnxq.report.markdown import markdown
from onnxq.runtime.session import InMemory, open_session, run_session
from onnxq.search.budget import Budget, BudgetCheck
from onnxq.search.sqnr_evaluator import SqnrEvaluator
from onnxq.verification.compare import compare
from onnxq.verification.detections import NOTHING, agreement, find_selection, replay_selections
from onnxq.verification.layerwise import compare_layers

F, FLOAT, INT64 = np.float32, TensorProto.FLOAT, TensorProto.INT64
COUNT, CLASSES = 40, 3
LIMITS = {
    "most": np.int64([5]),
    "overlap": F([0.5]),
    "least": F([0.5]),
    "two": np.int64(2),
    "swap": np.int64([1, 0, 2]),
}
COLUMNS = {
    "zero": np.int64([0]),
    "four": np.int64([4]),
    "seven": np.int64([7]),
    "axis": np.int64([2]),
    "no": np.int64([]),
}
PICKED_BY_SUPPRESSION = [
    node("NonMaxSuppression", "boxes by_class most overlap least", "picked"),
    node("Gather", "picked two", "places", axis=1),
    node("Squeeze", "boxes zero", "all_boxes"),
    node("Gather", "all_boxes places", "kept", axis=0),
    node("GatherND", "by_class picked", "kept_scores"),
    node("Shape", "places", "size"),
    node("Cast", "size", "count", to=FLOAT),
]
DETECTED = {"kept": FLOAT, "kept_scores": FLOAT, "count": FLOAT}


def network(noise: float = 0.0) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    """Boxes and scores of forty places, all boxes apart from one another, scores a little off."""
    weights = {"w": np.eye(4 + CLASSES, dtype=F) + floats(7, 7, seed=3, scale=noise), **LIMITS, **COLUMNS}
    nodes = [
        node("MatMul", "x w", "y"),
        node("Slice", "y zero four axis", "boxes"),
        node("Slice", "y four seven axis", "logits"),
        node("Sigmoid", "logits", "scores"),
        node("Transpose", "scores", "by_class", perm=[0, 2, 1]),
    ]
    return nodes, weights


def detector(noise: float = 0.0, outputs: dict[str, int] | None = None) -> Model:
    """A detector that ends in NonMaxSuppression, made a little worse by noise in its weights."""
    nodes, weights = network(noise)
    model = build([*nodes, *PICKED_BY_SUPPRESSION], {"x": [1, COUNT, 7]}, outputs or DETECTED, weights)
    return parse(model.SerializeToString())


def picture(seed: int = 0, shift: float = 0.0) -> dict[str, np.ndarray]:
    """An input of which the network makes boxes in a row, and scores so near to one another that their order flips."""
    corner = np.arange(COUNT, dtype=F)[:, None] * 3
    boxes = np.hstack([corner, corner, corner + 1, corner + 1])
    scores = 1 + floats(COUNT, CLASSES, seed=seed, scale=0.01) + F(shift)
    return {"x": np.hstack([boxes, scores]).astype(F)[None]}


def judged(model: Model, samples: Sequence[dict[str, np.ndarray]] = ()) -> SqnrEvaluator:
    return SqnrEvaluator(model, wrap_samples(list(samples) or [picture(0), picture(1)], input_specs(model)))


def test_what_a_detector_picks_and_from_what() -> None:
    found = find_selection(detector())
    assert found.picked == {"picked": "NonMaxSuppression"}
    assert list(found.read) == ["boxes", "by_class"]
    assert list(found.outputs) == ["kept", "kept_scores", "count"]


def test_boxes_in_another_order_are_no_noise() -> None:
    float_model, other = detector(), detector(1e-4)
    samples = [picture(0), picture(1)]
    kept = [run_session(open_session(InMemory(model)), ["kept"], samples[0])[0] for model in (float_model, other)]
    assert np.abs(kept[0] - kept[1]).max() > 1, "another order: without the selection, an output of 0 dB"
    judge = judged(float_model)
    noise = judge.noise(other)
    assert len(noise) == 3 + 2 + 1  # outputs, what is picked from, and scores in front of the Sigmoid
    assert judge.sqnr(other) > 30
    assert judge.sqnr(float_model) == float("inf")
    assert judge.sqnr(detector(1e-2)) < 20, "what is worse is still seen"


def test_scores_count_of_which_nothing_is_picked() -> None:
    """Boxes that the quantized model would pick besides show in the scores alone."""
    unsure = [picture(0, shift=-1.5)]
    judge = judged(detector(), unsure)
    assert not run_session(open_session(InMemory(detector())), ["kept"], unsure[0])[0].size
    assert judge.sqnr(detector(1e-2)) < 30


def test_a_limit_is_one_for_what_is_picked_from() -> None:
    samples = wrap_samples([picture(0)], input_specs(detector()))
    meets = BudgetCheck(detector(), samples, Budget(min_sqnr=40))
    assert meets(detector(1e-4))
    assert not meets(detector(1e-2))


def two_stages(noise: float = 0.0) -> Model:
    """The best places go on to a second network, and what that finds is picked from again."""
    nodes, weights = network(noise)
    weights |= {"k": np.int64([9]), "v": floats(4, 5, seed=5), "score_axis": np.int64([0, 1]), "last": np.int64([4])}
    weights |= {"five": np.int64([5]), "one": np.int64([1]), "nine": np.int64([1, 9, 4])}
    nodes += [
        node("ReduceMax", "scores", "best", axes=[2], keepdims=1),
        node("TopK", "best k", "top order", axis=1),
        node("Expand", "order nine", "wide"),
        node("GatherElements", "boxes wide", "proposals", axis=1),
        node("MatMul", "proposals v", "second"),
        node("Slice", "second zero four axis", "moved"),
        node("Slice", "second four five axis", "raw"),
        node("Transpose", "raw", "ranked", perm=[0, 2, 1]),
        node("NonMaxSuppression", "moved ranked most overlap least", "picked"),
        node("Gather", "picked two", "places", axis=1),
        node("Squeeze", "moved zero", "all_boxes"),
        node("Gather", "all_boxes places", "kept", axis=0),
    ]
    return parse(build(nodes, {"x": [1, COUNT, 7]}, ["kept"], weights).SerializeToString())


def test_a_second_stage_goes_on_from_the_proposals_of_the_float_model() -> None:
    assert find_selection(two_stages()).picked == {"order": "TopK", "picked": "NonMaxSuppression"}
    assert judged(two_stages()).sqnr(two_stages(1e-4)) > 40


def test_layers_behind_proposals_are_compared_for_the_same_ones() -> None:
    float_model, other = two_stages(), two_stages(1e-4)
    layers = {layer.tensor: layer for layer in compare_layers(float_model, other, [picture(0), picture(1)])}
    assert layers["second"].sqnr > 40
    assert layers["kept"].sqnr > 40
    assert layers["kept"].own == float("inf")


def gathered(*nodes: onnx.NodeProto, outputs: dict[str, int], **weights: np.ndarray) -> Model:
    """A MatMul of x, and what follows."""
    constants = {"w": floats(8, 8), "k": np.int64([2]), **weights}
    model = build([node("MatMul", "x w", "y"), *nodes], {"x": [4, 8], "ids": (INT64, [4, 8])}, outputs, constants)
    return parse(model.SerializeToString())


TOP = node("TopK", "y k", "v i", axis=1)


@pytest.mark.parametrize(
    ("model", "picked"),
    [
        (gathered(TOP, outputs={"v": FLOAT, "i": INT64}), {}),
        (gathered(node("ArgMax", "y", "i", axis=1), outputs={"i": INT64, "y": FLOAT}), {}),
        (gathered(TOP, node("GatherElements", "y i", "z", axis=1), outputs={"z": FLOAT}), {"i": "TopK"}),
        (gathered(TOP, node("Gather", "table i", "z"), outputs={"z": FLOAT}, table=floats(8, 3)), {}),
        (
            gathered(
                node("Greater", "y half", "high"),
                node("NonZero", "high", "p"),
                node("Transpose", "p", "i", perm=[1, 0]),
                node("GatherND", "y i", "z"),
                outputs={"z": FLOAT},
                half=F(0.5),
            ),
            {"high": "Greater", "p": "NonZero"},
        ),
        (
            gathered(
                node("ReduceMax", "y", "m", axes=[1], keepdims=0),
                node("Greater", "m half", "high"),
                node("Compress", "y high", "z", axis=0),
                outputs={"z": FLOAT},
                half=F(0.5),
            ),
            {"high": "Greater"},
        ),
        # The last word, by its number, and not by what is computed
        (
            gathered(
                node("ArgMax", "ids", "i", axis=1, keepdims=0), node("Gather", "y i", "z", axis=1), outputs={"z": FLOAT}
            ),
            {},
        ),
        # Experts: words of each are gathered, and put back in their places
        (
            gathered(
                TOP,
                node("GatherElements", "y i", "z", axis=1),
                node("MatMul", "z u", "q"),
                node("ScatterElements", "y i q", "out", axis=1),
                outputs={"out": FLOAT},
                u=floats(2, 2),
            ),
            {},
        ),
    ],
)
def test_which_picks_count(model: Model, picked: dict[str, str]) -> None:
    found = find_selection(model)
    assert found.picked == picked
    assert bool(found) == bool(picked)
    assert picked or found is NOTHING


def test_a_copy_picks_what_it_is_told() -> None:
    model = detector(outputs={**DETECTED, "picked": INT64})
    told = np.int64([[0, 1, 7], [0, 0, 3]])
    copy, fed = replay_selections(model, {"picked": told, "unknown": told}, ["picked", "boxes"])
    assert fed == {"picked": "picked_picked"}
    session = open_session(InMemory(copy))
    assert [output.name for output in session.get_outputs()] == ["kept", "kept_scores", "count", "picked", "boxes"]
    kept, _, count, picked, boxes = run_session(session, None, {**picture(), "picked_picked": told})
    np.testing.assert_array_equal(kept, boxes[0][[7, 3]])
    assert count == 2
    assert len(picked) > 2, "it still says what it would pick"
    assert [value.name for value in model.graph.inputs] == ["x"]


def in_a_body() -> Model:
    """NonMaxSuppression in a branch, as exporters write it where there may be no box; its bodies read outer values."""
    nodes, weights = network()
    then = helper.make_graph(
        [node("NonMaxSuppression", "boxes by_class most overlap least", "inner")],
        "then",
        [],
        [helper.make_tensor_value_info("inner", INT64, ["n", 3])],
    )
    empty = helper.make_node("Constant", [], ["none"], value=numpy_helper.from_array(np.zeros((0, 3), np.int64)))
    otherwise = helper.make_graph([empty], "else", [], [helper.make_tensor_value_info("none", INT64, ["m", 3])])
    nodes += [
        node("ReduceMax", "scores", "best", keepdims=0),
        node("Greater", "best half", "any"),
        node("If", "any", "picked", then_branch=then, else_branch=otherwise),
        *PICKED_BY_SUPPRESSION[1:],
    ]
    model = build(nodes, {"x": [1, COUNT, 7]}, DETECTED, {**weights, "half": F(0.5)})
    return parse(model.SerializeToString())


def test_a_suppression_in_a_body_counts() -> None:
    found = find_selection(in_a_body())
    assert found.picked == {"any": "Greater", "picked": "NonMaxSuppression"}
    assert set(found.read) == {"best", "boxes", "by_class"}
    assert judged(in_a_body()).sqnr(in_a_body()) == float("inf")


@pytest.mark.parametrize(
    ("operator", "expected", "got", "counts"),
    [
        ("NonMaxSuppression", [[0, 1, 7], [0, 0, 3]], [[0, 0, 3], [0, 1, 8], [0, 1, 9]], (1, 3)),
        ("NonMaxSuppression", np.zeros((0, 3)), np.zeros((0, 3)), (0, 0)),
        ("TopK", [[1, 2, 3], [4, 5, 6]], [[3, 2, 1], [4, 5, 7]], (5, 6)),
        ("NonZero", [[0, 1], [5, 6]], [[1, 2], [6, 7]], (1, 2)),
        ("ArgMax", [1, 2, 3], [1, 2, 4], (2, 3)),
        ("ArgMax", [1, 2, 3], [1, 2], (0, 3)),
    ],
)
def test_agreement_knows_no_order(operator, expected, got, counts) -> None:
    assert agreement(operator, np.array(expected), np.array(got)) == counts


def test_figures_of_a_detector_mean_something() -> None:
    float_model, other = detector(), detector(1e-4)
    samples = [picture(0), picture(1)]
    found = compare(float_model.serialize(), other.serialize(), samples, latency=False)
    assert found.selection is not None
    assert [output.sqnr > 40 for output in found.outputs] == [True, True, True]
    assert all(output.agreement == found.selection.agreement for output in found.outputs)
    assert 0 < found.selection.agreement < 100
    assert [read.name for read in found.selection.read] == ["boxes", "by_class"]
    first, second = found.selected()
    assert first.startswith("'kept', 'kept_scores' and 'count' hold what NonMaxSuppression picks, ")
    assert first.endswith("; SQNR and largest error are those of what the float model picks")
    assert second.startswith("of what it is picked from, 'by_class' has the lowest SQNR: ")
    assert found.missed(min_sqnr=40) == []
    assert comparison_dict(found, None)["selection"]["operators"] == ("NonMaxSuppression",)
    worse = compare(float_model.serialize(), detector(1e-2).serialize(), [picture(0, shift=-1.5)], latency=False)
    assert any("'by_class', from which outputs are picked, has " in missed for missed in worse.missed(min_sqnr=60))


def test_places_alone_are_held_to_what_they_are_picked_from() -> None:
    only = {"picked": INT64}
    found = compare(detector(outputs=only).serialize(), detector(1e-4, only).serialize(), [picture(0)], latency=False)
    assert found.selection is not None
    assert found.selection.picks == ("picked",)
    assert found.missed(min_sqnr=40) == []
    assert found.selected()[0].endswith("; SQNR and largest error say nothing of it")
    assert replace(found, selection=None).missed(min_sqnr=40) != []


def test_what_no_output_needs_is_not_picked() -> None:
    """Simplifying has removed it from the quantized model."""
    unread = [node("ReduceMax", "y", "m", axes=[1], keepdims=1), node("TopK", "m one", "u us", axis=1)]
    takes = node("GatherElements", "y i", "z", axis=1)
    model = gathered(TOP, takes, *unread, outputs={"z": FLOAT}, one=np.int64([1]))
    found = find_selection(model)
    assert (dict(found.picked), list(found.read)) == ({"i": "TopK"}, ["y"])
    plain = gathered(TOP, takes, outputs={"z": FLOAT})
    sample = {"x": floats(4, 8, seed=4), "ids": np.zeros((4, 8), np.int64)}
    assert compare(model.serialize(), plain.serialize(), [sample], latency=False).selection is not None


def test_models_that_pick_by_other_names_are_compared_as_they_are() -> None:
    nodes, weights = network()
    renamed = [onnx.NodeProto.FromString(each.SerializeToString()) for each in PICKED_BY_SUPPRESSION]
    for each in renamed:
        for names in (each.input, each.output):
            names[:] = ["chosen" if name == "picked" else name for name in names]
    model = build([*nodes, *renamed], {"x": [1, COUNT, 7]}, DETECTED, weights).SerializeToString()
    found = compare(detector().serialize(), model, [picture()], latency=False)
    assert found.selection is None
    assert found.selected() == []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A detector with layers that are worth 8 bit, in a file."""
    nodes, weights = network()
    weights |= {"u": floats(7, 256, seed=6, scale=0.3), "t": floats(256, 256, seed=7, scale=0.06)}
    weights |= {"w": floats(256, 7, seed=8, scale=0.1)}
    hidden = [node("MatMul", "x u", "a"), node("Relu", "a", "b"), node("MatMul", "b t", "c"), node("Relu", "c", "d")]
    nodes = [*hidden, node("MatMul", "d w", "y"), *nodes[1:]]
    model = build([*nodes, *PICKED_BY_SUPPRESSION], {"x": [1, COUNT, 7]}, DETECTED, weights)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    return tmp_path / "m.onnx"


@pytest.mark.parametrize("given", ["some", "fast", "none"])
def test_a_detector_is_quantized(path: Path, tmp_path: Path, given: str) -> None:
    samples = None if given == "none" else [{"x": floats(1, COUNT, 7, seed=i)} for i in range(8)]
    target = tmp_path / "q.onnx"
    report = quantize(path, output=target, samples=samples, fast=given == "fast", budget=Budget(min_sqnr=15))
    assert report.comparison is not None
    assert report.comparison.selection is not None
    assert report.comparison.worst_sqnr >= 15
    assert "what NonMaxSuppression picks" in markdown(report)
    made = load(target)
    (suppression,) = [node for node in made.graph.nodes if node.op_type == "NonMaxSuppression"]
    for value in suppression.inputs[:2]:
        assert value is not None
        assert value.producer is not None
        assert value.producer.op_type not in ("DequantizeLinear", "QuantizeLinear")
