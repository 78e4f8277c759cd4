"""Transpositions written as moves of single axes: which, and never an element in another place."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from helpers import ALL, F, applied, build, changed_alike, count_ops, floats, node, session, typed
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from onnxq.optimize import row_transposes
from onnxq.optimize.optimize import optimize_for_target
from onnxq.optimize.row_transposes import move_single_axes

PIXELS = (0, 1, 4, 2, 5, 3)


def transposed(shape: list[Any], perm: tuple[int, ...], *sizes: int, kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """A Transpose and a Reshape behind it."""
    nodes = [node("Transpose", "x", "t", perm=perm), node("Reshape", "t s", "y")]
    return build(nodes, {"x": (kind, shape)}, {"y": kind}, {"s": np.array(sizes)}, 13)


def depth_to_space(shape: list[Any], mode: str, block: int = 2) -> onnx.ModelProto:
    return build([node("DepthToSpace", "x", "y", blocksize=block, mode=mode)], {"x": shape}, ["y"], {}, 13)


def moved(proto: onnx.ModelProto, shape: tuple[int, ...]) -> int:
    kind = onnx.helper.tensor_dtype_to_np_dtype(proto.graph.input[0].type.tensor_type.elem_type)
    return changed_alike(proto, move_single_axes, {"x": floats(*shape, scale=50.0).astype(kind)})[1]


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.UINT8])
def test_pixels_of_a_picture_are_moved_by_two_axes(kind: int) -> None:
    proto = transposed([1, 3, 2, 2, 32, 32], PIXELS, 1, 3, 64, 64, kind=kind)
    feeds = {"x": floats(1, 3, 2, 2, 32, 32, scale=50.0).astype(np.uint8 if kind == TensorProto.UINT8 else F)}
    made, changed = changed_alike(proto, move_single_axes, feeds)
    assert changed == 1
    orders = [list(step.attribute[0].ints) for step in made.graph.node if step.op_type == "Transpose"]
    assert orders == [[0, 1, 3, 4, 2], [0, 2, 1, 3]]
    assert [step.op_type for step in made.graph.node] == [*["Reshape", "Transpose"] * 2, "Reshape"]


def test_what_a_body_takes_apart_stays() -> None:
    apart = onnx.helper.make_graph([node("Reshape", "t s", "a")], "then", [], [typed_output("a")])
    other = onnx.helper.make_graph([node("Reshape", "x s", "e")], "other", [], [typed_output("e")])
    choice = node("If", "taken", "y", then_branch=apart, else_branch=other)
    inputs = {"x": [1, 3, 2, 2, 32, 32], "taken": (TensorProto.BOOL, [])}
    weights = {"s": np.array([1, 3, 64, 64])}
    proto = build([node("Transpose", "x", "t", perm=PIXELS), choice], inputs, ["y"], weights, 13)
    assert applied(move_single_axes, typed(proto)) == 0


def typed_output(name: str) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4)


def test_onnxruntime_does_not_join_them_again(tmp_path: Any) -> None:
    model = typed(transposed([1, 3, 2, 2, 32, 32], PIXELS, 1, 3, 64, 64))
    assert applied(move_single_axes, model) == 1
    session(model.serialize(), ALL, keep=str(tmp_path / "o.onnx"))
    assert count_ops(onnx.load(tmp_path / "o.onnx"))["Transpose"] == 2


@pytest.mark.parametrize("mode", ["CRD", "DCR"])
@pytest.mark.parametrize("block", [2, 3])
def test_depth_to_space_is_as_well(mode: str, block: int) -> None:
    shape = (2, 4 * block * block, 16, 12)
    assert moved(depth_to_space([*shape], mode, block), shape) == 1
    assert moved(depth_to_space(["batch", *shape[1:]], mode, block), shape) == 1


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        (["n", 3, 2, 2, 32, 32], (-1, 3, 64, 64)),
        (["n", 3, 2, 2, 32, 32], (0, 3, 64, 64)),
        ([1, 3, 2, 2, "h", 32], (1, 3, -1, 64)),
        ([1, 3, 2, 2, 32, 32], (0, 0, -1, 64)),
    ],
)
def test_a_length_may_be_open(shape: list[Any], sizes: tuple[int, ...]) -> None:
    assert moved(transposed(shape, PIXELS, *sizes), (1, 3, 2, 2, 32, 32)) == 1


@pytest.mark.parametrize(
    ("shape", "perm", "sizes"),
    [
        ([8, 16, 32, 4], (0, 2, 1, 3), (8, -1)),  # one axis moves
        ([8, 16, 32, 4], (0, 3, 1, 2), (8, -1)),
        ([8, 16, 32, 4], (2, 3, 0, 1), (8, -1)),  # one after joining
        ([4, 16, 3, 8, 32], (2, 0, 3, 1, 4), (3, -1)),  # rows stay rows
        ([2, 3, 2, 2, 4, 4], PIXELS, (2, 3, 8, 8)),  # few elements
        ([16, 4, 8, 16], (3, 2, 1, 0), (16, -1)),  # takes three moves
        (["n", 3, 2, 2, "h", "w"], PIXELS, (-1, 3, 64, 64)),  # which length is which?
        (["n", 3, 2, 2, 32, 32], PIXELS, (0, 3, -1, 64)),
    ],
)
def test_others_stay(shape: list[Any], perm: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    assert applied(move_single_axes, typed(transposed(shape, perm, *sizes))) == 0


def test_a_transpose_whose_axes_are_seen_stays() -> None:
    proto = build([node("Transpose", "x", "y", perm=PIXELS)], {"x": [1, 3, 2, 2, 32, 32]}, ["y"], {}, 13)
    assert applied(move_single_axes, typed(proto)) == 0


def test_it_is_part_of_tuning_where_kernels_are_known() -> None:
    proto = depth_to_space([1, 16, 32, 32], "DCR")
    for target, kinds in (
        ("cpu", ["Reshape", "Transpose", "Reshape", "Transpose", "Reshape"]),
        ("qnn", ["DepthToSpace"]),
    ):
        assert [step.op_type for step in optimize_for_target(typed(proto), target).graph.nodes] == kinds


@settings(max_examples=100, deadline=None)
@given(data=st.data(), rank=st.integers(3, 6))
def test_every_element_gets_where_it_belongs(data: st.DataObject, rank: int) -> None:
    """Whatever the order and the lengths, axes of length 1 and open ones among them."""
    shape = data.draw(st.lists(st.integers(1, 4), min_size=rank, max_size=rank), label="shape")
    perm = data.draw(st.permutations(range(rank)), label="perm")
    is_open = data.draw(st.sets(st.integers(0, rank - 1), max_size=2), label="open")
    stated = [f"n{axis}" if axis in is_open else size for axis, size in enumerate(shape)]
    copied = data.draw(st.booleans(), label="copied")
    proto = transposed(stated, tuple(perm), 0 if copied else shape[perm[0]], -1)
    before = row_transposes.LEAST_ELEMENTS, row_transposes.ROW
    row_transposes.LEAST_ELEMENTS, row_transposes.ROW = 1, 10**6
    try:
        moved(proto, tuple(shape))
    finally:
        row_transposes.LEAST_ELEMENTS, row_transposes.ROW = before
