"""What samples say about a mask in front of a Softmax."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers import build, floats, node, typed
from mask_support import LOWEST

from onnxq.ir import Model
from onnxq.rescaling.attention_masks import DEEPEST, MaskedSoftmax, ScoreRange, find_masked, is_masked

ADD = [node("Add", "s m", "x")]
SOFTMAX = node("Softmax", "x", "p", axis=-1)
MORE = [node("Add", f"x{index or ''} m{index}", f"x{index + 1}") for index in range(6)]
INPUTS = {"s": [2, 3, 4], "m": [3, 4]}


def found(
    nodes, inputs=INPUTS, outputs=("y",), weights=None, opset: int = 17, besides=()
) -> tuple[Model, list[MaskedSoftmax]]:
    """What may be masked in a model that ends with an Identity."""
    model = typed(build([*nodes, node("Identity", "p", "y")], inputs, outputs, weights, opset))

    def known(value):
        return None if value.constant is None else value.constant.numpy()

    return model, find_masked(model.graph, model.opset, known, [model.graph.values[name] for name in besides])


def seen(mask: np.ndarray, scores: np.ndarray) -> MaskedSoftmax:
    """A sum that was looked at."""
    model, (masked,) = found([*ADD, SOFTMAX])
    masked.look({model.graph.values["s"]: scores.astype(np.float32), model.graph.values["m"]: mask.astype(np.float32)})
    return masked


def test_it_is_measured_how_scores_lie_around_the_best_that_is_not_masked() -> None:
    scores = np.zeros((2, 3, 4))
    scores[0, 0] = [1, 5, 9, -3]
    mask = np.zeros((3, 4))
    mask[0, 2:] = -1e9
    masked = seen(mask, scores)
    assert (masked.spread.below, masked.spread.above) == (8, 4)
    assert (masked.denormals, masked.elements, masked.rows, masked.samples) == (4, 24, 6, 1)
    assert (masked.spread.elements, masked.spread.rows) == (12, 3)
    assert masked.limit() == math.floor(1.1 * 8 - DEEPEST)


@pytest.mark.parametrize("depth", [-1e4, -1e9, LOWEST, -np.inf])
def test_rows_that_are_masked_as_a_whole_say_nothing(depth: float) -> None:
    mask = np.zeros((3, 4))
    mask[0, 2:], mask[1] = depth, depth
    scores = floats(2, 3, 4)
    masked = seen(mask, scores)
    assert masked.spread.below < 10
    assert masked.spread.above < 10
    assert masked.limit() is not None


@pytest.mark.parametrize(
    "spread",
    [ScoreRange(*ends) for ends in ((70, 0), (10, 30), (math.nan, 0), (0, math.inf))] + [ScoreRange(undefined=True)],
)
def test_there_is_no_limit_without_room_for_other_inputs(spread: ScoreRange) -> None:
    assert spread.limit() is None


def test_scores_that_are_not_numbers_leave_a_mask_alone() -> None:
    mask = np.zeros((3, 4))
    mask[:, 3] = -np.inf
    scores = np.full((2, 3, 4), np.nan)
    assert seen(mask, scores).denormals == 0
    assert seen(mask, scores).limit() is None


def test_scores_of_no_elements_say_nothing() -> None:
    masked = seen(np.zeros((3, 0)), np.zeros((2, 3, 0)))
    assert masked.samples == 0
    assert masked.limit() is None


def test_a_mask_that_hides_nothing_gets_no_limit() -> None:
    assert seen(np.zeros((3, 4)), floats(2, 3, 4)).limit() is None
    assert seen(np.full((3, 4), -1e9), floats(2, 3, 4)).limit() is None


def test_either_side_may_be_the_mask_and_both_sides_are_none() -> None:
    deep, flat = np.zeros((3, 4)), np.zeros((2, 3, 4))
    deep[:, 3] = -1e9
    masked = seen(deep, flat)
    assert masked.mask is not None
    assert masked.mask.name == "m"
    masked = seen(np.zeros((3, 4)), flat + deep)
    assert masked.mask is not None
    assert masked.mask.name == "s"
    masked = seen(deep, flat + deep[:, ::-1])
    assert masked.mask is None
    assert masked.denormals == 12


def test_samples_may_show_the_mask_late() -> None:
    model, (masked,) = found([*ADD, SOFTMAX])
    values = model.graph.values
    hidden = np.zeros((3, 4), np.float32)
    for count in range(3):
        masked.look({values["s"]: floats(2, 3, 4, seed=count), values["m"]: hidden.copy()})
        hidden[:, count + 1] = -np.inf
    assert masked.spread.elements == 36
    assert masked.path() == [(values["x"].producer, 1)]


def test_two_masks_that_are_added_up_first_are_one() -> None:
    nodes = [node("Add", "m n", "both"), node("Add", "both s", "x"), SOFTMAX]
    model, (masked,) = found(nodes, INPUTS | {"n": [3, 4]})
    left, right = np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32)
    left[:, 0] = right[:, 3] = -1e9
    masked.look(
        {model.graph.values[name]: array for name, array in {"m": left, "n": right, "s": floats(2, 3, 4)}.items()}
    )
    assert masked.mask is model.graph.values["both"]
    assert len(masked.path()) == 1
    assert masked.limit() is not None


def test_a_negative_row_is_limited_twice_as_deep() -> None:
    np.testing.assert_array_equal(is_masked(np.array([3, 0, -2, -np.inf])), [3, 0, -4, -np.inf])


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([*ADD, node("Softmax", "x", "p", axis=1)], "another axis"),
        ([*ADD, node("LogSoftmax", "x", "p", axis=-1)], "another operator"),
        ([node("Add", "s s", "x"), SOFTMAX], "twice the same"),
        ([*ADD, SOFTMAX, node("Neg", "x", "z")], "the sum is read twice"),
        ([node("Mul", "s m", "x"), SOFTMAX], "a product"),
        ([node("Where", "b s m", "x"), SOFTMAX], "no number"),
        ([*ADD, *MORE, node("Softmax", "x6", "p", axis=-1)], "too many terms"),
    ],
)  # fmt: skip
def test_what_is_no_masked_softmax(nodes, why: str) -> None:
    more = {"b": (9, [3, 4])} | {f"m{i}": [3, 4] for i in range(6)}
    outputs = ["y", "z"] if why == "the sum is read twice" else ["y"]
    read = {name for each in nodes for name in each.input}
    _, masked = found(nodes, {name: shape for name, shape in (INPUTS | more).items() if name in read}, outputs)
    assert not masked, why


def test_what_has_to_stay_is_passed_over() -> None:
    assert len(found([*ADD, SOFTMAX])[1]) == 1
    assert not found([*ADD, SOFTMAX], besides=["x"])[1]
    assert not found([*ADD, SOFTMAX], outputs=["y", "x"])[1]


def test_the_axis_is_the_last_one_by_whatever_name() -> None:
    assert len(found([*ADD, node("Softmax", "x", "p", axis=2)])[1]) == 1
    assert len(found([*ADD, node("Softmax", "x", "p")])[1]) == 1
    assert not found([*ADD, node("Softmax", "x", "p")], opset=12)[1]


def test_codes_reach_no_deeper_than_they_have_to() -> None:
    assert ScoreRange(below=9.0, above=4.0).limit() == -71
    assert ScoreRange(below=9.0, above=4.0).limit(coded=True) == -33
    assert ScoreRange(below=9.0, above=np.inf).limit(coded=True) is None
