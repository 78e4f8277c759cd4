"""Every trait in the table holds for the operator's own kernel, on random tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import build, floats, node
from onnx import TensorProto

from onnxq.evaluator import Evaluator
from onnxq.ir import parse
from onnxq.ir.operator_traits import BOUNDS, TRAITS, Trait, is_nonnegative, operators_with

SHAPE = (2, 8, 4, 4)
BOOLEAN = ("And", "Not", "Or", "Xor")
# Inputs behind the first one, and attributes; operators that are not here take one tensor and nothing else
OTHERS: dict[str, tuple[dict[str, np.ndarray], dict[str, Any]]] = {
    "Clip": ({"low": np.float32(-0.5), "high": np.float32(0.5)}, {}),
    "DepthToSpace": ({}, {"blocksize": 2}),
    "Expand": ({"shape": np.array([2, 2, 8, 4, 4])}, {}),
    "Gather": ({"at": np.array([3, 0, 0])}, {"axis": 1}),
    "GatherElements": ({"at": np.full((2, 8, 4, 4), 1)}, {"axis": 1}),
    "GatherND": ({"at": np.array([[1, 3], [0, 0]])}, {}),
    "Mod": ({}, {"fmod": 1}),
    "PRelu": ({"slope": np.float32([[[0.25]]] * 8)}, {}),
    "Reshape": ({"shape": np.array([0, 2, 4, -1])}, {}),
    "ReverseSequence": ({"sizes": np.array([1, 2, 1, 2, 1, 2, 1, 2])}, {}),
    "Slice": ({"start": np.array([1]), "end": np.array([3]), "axes": np.array([1])}, {}),
    "SpaceToDepth": ({}, {"blocksize": 2}),
    "Split": ({"sizes": np.array([3, 5])}, {"axis": 1}),
    "Squeeze": ({"axes": np.array([0])}, {}),
    "Tile": ({"times": np.array([1, 2, 1, 1])}, {}),
    "Transpose": ({}, {"perm": [0, 2, 3, 1]}),
    "Unsqueeze": ({"axes": np.array([1])}, {}),
    **dict.fromkeys(("AveragePool", "MaxPool"), ({}, {"kernel_shape": [2, 2]})),
    **{name: ({"axes": np.array([1])}, {}) for name in operators_with(Trait.REDUCES)},
}


def result(name: str, x: np.ndarray, *operands: np.ndarray) -> np.ndarray:
    """Compute an operator's first output in the reference evaluator."""
    constants, attributes = OTHERS.get(name, ({}, {}))
    given = {"x": x, **{f"operand{place}": array for place, array in enumerate(operands)}}
    kinds = {key: TensorProto.BOOL if array.dtype == bool else TensorProto.FLOAT for key, array in given.items()}
    made = node(name, " ".join([*given, *constants]), "y rest" if name == "Split" else "y", **attributes)
    inputs = {key: (kind, list(given[key].shape)) for key, kind in kinds.items()}
    bools = name in BOOLEAN or name.startswith(("Is", "Equal", "Greater", "Less"))
    outputs = {"y": TensorProto.BOOL if bools else TensorProto.FLOAT}
    model = parse(build([made], inputs, outputs, constants, opset=20).SerializeToString())
    return np.asarray(Evaluator(model).run(given)["y"])


def tensor(name: str, seed: int) -> np.ndarray:
    """Make numbers that the operator takes: from the bounds of its domain, apart from zero, of both signs."""
    if name in BOOLEAN:
        return np.random.default_rng(seed).random(SHAPE) > 0.5
    values = floats(*SHAPE, seed=seed)
    if name == "Squeeze":
        values = values[:1]
    return np.abs(values) + np.float32(0.01) if name in ("Log", "Pow", "ReduceLogSum", "Sqrt") else values


def operands(name: str, seed: int) -> list[np.ndarray]:
    """Make the other operands of an operator that broadcasts."""
    if Trait.BROADCASTS not in TRAITS[name]:
        return []
    if name == "Where":
        return [tensor(name, seed + 1), tensor(name, seed + 2)]
    return [tensor(name, seed + 1)]


def first(name: str, seed: int) -> np.ndarray:
    """Make the first input, which is a condition of a Where."""
    return tensor(name, seed) > 0 if name == "Where" else tensor(name, seed)


@pytest.mark.parametrize("name", sorted(operators_with(Trait.ELEMENTWISE)))
def test_an_element_depends_on_those_at_its_place(name: str) -> None:
    x, others = first(name, 3), operands(name, 3)
    changed = x.copy()
    changed[1, 2, 3, 0] = not x[1, 2, 3, 0] if x.dtype == bool else x[1, 2, 3, 0] + 3
    before, after = result(name, x, *others), result(name, changed, *others)
    assert before.shape == x.shape
    differs = np.argwhere(before != after)
    assert len(differs) <= 1
    assert all((place == (1, 2, 3, 0)).all() for place in differs)


@pytest.mark.parametrize("name", sorted(operators_with(Trait.BROADCASTS)))
def test_operands_are_broadcast(name: str) -> None:
    x, others = first(name, 4), operands(name, 4)
    narrow = [array[:1, :, :1] for array in others]
    wide = [np.broadcast_to(array, SHAPE).copy() for array in narrow]
    np.testing.assert_array_equal(result(name, x, *narrow), result(name, x, *wide))


@pytest.mark.parametrize("name", sorted(operators_with(Trait.MOVES)))
def test_every_element_is_one_of_the_first_input(name: str) -> None:
    x = tensor(name, 5)
    found = result(name, x)
    assert np.isin(found, x).all()
    if Trait.IN_ORDER in TRAITS[name]:
        np.testing.assert_array_equal(found.ravel(), x.ravel())


@pytest.mark.parametrize("name", sorted(operators_with(Trait.SCALES)))
def test_a_positive_factor_passes_through(name: str) -> None:
    x = tensor(name, 6)
    np.testing.assert_allclose(result(name, 4 * x), 4 * result(name, x), rtol=1e-6)  # a power of two: no rounding


@pytest.mark.parametrize("name", sorted(operators_with(Trait.POOLS)))
def test_a_pool_lies_between_what_it_reads(name: str) -> None:
    x = tensor(name, 7)
    found = result(name, x)
    assert found.size < x.size
    assert x.min() <= found.min() <= found.max() <= x.max()


@pytest.mark.parametrize("name", sorted(operators_with(Trait.REDUCES)))
def test_a_reduction_leaves_one_element_of_an_axis(name: str) -> None:
    assert result(name, tensor(name, 8)).shape == (2, 1, 4, 4)


@pytest.mark.parametrize("name", sorted(BOUNDS))
def test_results_lie_within_bounds(name: str) -> None:
    found = result(name, 20 * tensor(name, 9))
    low, high = BOUNDS[name]
    assert low <= found.min() <= found.max() <= high


@pytest.mark.parametrize("name", sorted(operators_with(Trait.ELEMENTWISE) - operators_with(Trait.BROADCASTS)))
def test_what_is_not_kinked_has_a_smooth_derivative(name: str) -> None:
    """Second differences of a smooth function shrink by 4 where the step is halved; at a kink by 2."""
    if Trait.KINKED in TRAITS[name] or name in BOOLEAN or name == "Dropout":
        return
    steps = []
    for points in (2049, 4097):
        x = np.linspace(0.5 if name in ("Log", "Reciprocal", "Sqrt") else -3, 3, points, dtype=np.float32)
        wide = result(name, np.ascontiguousarray(x.reshape(1, -1))).astype(np.float64).ravel()
        steps.append(np.abs(np.diff(wide, 2)).max())
    assert steps[0] < 5e-4
    assert steps[1] < 0.7 * steps[0] or steps[1] < 2e-6


@pytest.mark.parametrize("name", sorted(operators_with(Trait.ELEMENTWISE)))
def test_only_what_jumps_gives_far_values_for_near_ones(name: str) -> None:
    """Numbers 1e-5 apart, around thresholds as well, give results that are near each other."""
    x = np.linspace(0.5 if name in ("Log", "Pow", "Reciprocal", "Sqrt") else -2, 2, 4001, dtype=np.float32)
    if name in (*BOOLEAN, "IsInf", "IsNaN", "Where") or name == "Dropout":
        return
    shifts = np.float32([0, 1e-5, -1e-5])
    given = [np.ascontiguousarray((x + shift).reshape(1, 1, 1, -1)) for shift in shifts]
    others = [np.ones_like(given[0])] if Trait.BROADCASTS in TRAITS[name] else []
    at, *near = (result(name, each, *others).astype(np.float64) for each in given)
    assert (max(np.abs(other - at).max() for other in near) > 0.5) == (Trait.JUMPS in TRAITS[name])


def nonnegative(nodes: list, **weights: np.ndarray) -> bool:
    model = parse(build(nodes, {"x": [2, 8]}, ["y"], weights).SerializeToString())
    return is_nonnegative(model.graph.values["y"])


def test_what_cannot_be_negative() -> None:
    zero, half = np.float32(0), np.float32(-0.5)
    relu, other = node("Relu", "x", "r"), node("Exp", "x", "e")
    assert nonnegative([relu, node("Transpose", "r", "y")])
    assert nonnegative([relu, other, node("Concat", "r e", "y", axis=0)])
    assert nonnegative([node("Clip", "x low", "y")], low=zero)
    assert nonnegative([node("Clip", "x low", "y")], low=zero.reshape(1))  # which onnxruntime takes as well
    assert not nonnegative([node("Clip", "x low", "y")], low=half)
    assert not nonnegative([relu, node("Concat", "r x", "y", axis=0)])
    assert not nonnegative([node("Tanh", "x", "y")])
    assert not nonnegative([relu, node("Neg", "r", "y")])
