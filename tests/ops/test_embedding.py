"""Gather from a table in 8 bit: small, and within half a rounding step of the float table."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import ALL, F, build, floats, node, quantize_in_memory
from onnx import TensorProto

ROWS, COLUMNS = 50, 16


def table(spread: str) -> np.ndarray:
    """Normal numbers whose magnitude differs by row or by column."""
    values = floats(ROWS, COLUMNS)
    if spread == "rows":
        values *= np.exp(2 * floats(ROWS, 1, seed=1))
    if spread == "columns":
        values *= np.exp(2 * floats(1, COLUMNS, seed=1))
    return values


def lookup(values: np.ndarray, shape: list, kind: int = TensorProto.INT64, recipe: str = "weight-int8", **settings):
    proto = build([node("Gather", "t i", "y")], {"i": (kind, shape)}, ["y"], {"t": values})
    return quantize_in_memory(proto, recipe, **settings)


def test_one_row_of_huge_numbers_leaves_the_others_theirs() -> None:
    values = floats(ROWS, COLUMNS)
    values[3] = 1e37
    assert lookup(values, [3]).sqnr({"i": np.arange(3)}) > 40


@pytest.mark.parametrize(("spread", "axis"), [("rows", 1), ("columns", 0)])
def test_the_scales_follow_rows_or_columns_whichever_rounds_less(spread, axis):
    values = table(spread)
    made = lookup(values, [ROWS])
    scale = np.abs(values).max(axis=axis, keepdims=True) / F(127)
    assert made.weights["t_scale"].size == scale.size
    np.testing.assert_array_equal(made.weights["t_scale"].reshape(scale.shape), scale)
    (y,) = made.run({"i": np.arange(ROWS)})
    np.testing.assert_array_equal(y, np.rint(values / scale) * scale)
    assert (np.abs(y - values) <= scale / 2 * 1.0001).all(), "half a step, and the float rounding of the product"


@pytest.mark.parametrize("spread", ["rows", "columns"])
@pytest.mark.parametrize("kind", [TensorProto.INT32, TensorProto.INT64])
@pytest.mark.parametrize("shape", [[], [1], [7], [2, 3], [2, 1, 3], [0], [2, 0]])
def test_indices_of_any_rank_and_type(shape, kind, spread):
    values = table(spread)
    made = lookup(values, [None] * len(shape), kind)
    dtype = np.int32 if kind == TensorProto.INT32 else np.int64
    indices = np.random.default_rng(2).integers(-ROWS, ROWS, shape).astype(dtype)
    (y,) = made.run({"i": indices})
    assert y.shape == (*shape, COLUMNS)
    (rows,) = made.run({"i": np.arange(ROWS).astype(dtype).reshape(-1)}) if len(shape) == 1 else (None,)
    expected = values[indices]
    steps = np.broadcast_to(np.abs(values).max(axis=1 if spread == "rows" else 0, keepdims=True) / 127, values.shape)[
        indices
    ]
    assert (np.abs(y - expected) <= steps / 2 * 1.0001).all()
    if rows is not None:
        np.testing.assert_array_equal(y, rows[indices], "negative indices count from the end")
    np.testing.assert_array_equal(made.run({"i": indices}, ALL)[0], y)


@pytest.mark.parametrize("recipe", ["weight-int8", "dynamic-int8", "auto"])
def test_the_file_is_a_quarter_of_the_size(recipe):
    proto = build([node("Gather", "t i", "y")], {"i": (TensorProto.INT64, [3])}, ["y"], {"t": floats(1000, 64)})
    made = quantize_in_memory(proto, recipe)
    assert len(made.data) < 0.27 * len(made.source)  # codes, a scale for each column or row, half a kB of graph
    assert made.sqnr({"i": np.array([1, 500, 999])}) > 35


def test_one_scale_for_the_whole_table():
    values = table("rows")
    made = lookup(values, [ROWS], granularity="tensor")
    assert made.weights["t_scale"].size == 1
    np.testing.assert_allclose(
        made.run({"i": np.arange(ROWS)})[0], values, atol=float(np.abs(values).max() / 254) * 1.0001
    )


def test_a_table_of_zeros():
    made = lookup(np.zeros((ROWS, COLUMNS), F), [ROWS])
    np.testing.assert_array_equal(made.run({"i": np.arange(ROWS)})[0], 0)


def test_two_lookups_in_one_table_store_it_once():
    nodes = [node("Gather", "t i", "a"), node("Gather", "t j", "b"), node("Add", "a b", "y")]
    inputs = {"i": (TensorProto.INT64, [4]), "j": (TensorProto.INT64, [4])}
    made = quantize_in_memory(build(nodes, inputs, ["y"], {"t": table("rows")}), "weight-int8")
    assert sum(array.shape == (ROWS, COLUMNS) for array in made.weights.values()) == 1


def test_a_table_that_is_the_weight_of_the_head_too():
    """Language models tie the two; the head's rows are its output channels, and so have the lookup's scales."""
    nodes = [node("Gather", "t i", "h"), node("Gemm", "h t", "y", transB=1)]
    values = floats(200, 64) * np.exp(2 * floats(200, 1, seed=1))
    proto = build(nodes, {"i": (TensorProto.INT64, [4])}, ["y"], {"t": values})
    for recipe in ("weight-int8", "dynamic-int8"):
        made = quantize_in_memory(proto, recipe)
        assert made.decision("n_h").scheme == "weight-int8"
        assert made.sqnr({"i": np.array([0, 3, 9, 49])}) > 30
        assert len(made.data) < 0.6 * len(made.source)
    made = quantize_in_memory(proto, "weight-int8")
    assert sum(array.size == values.size for array in made.weights.values()) == 1
    assert len(made.data) < 0.3 * len(made.source)


def sliced(values: np.ndarray, axis: int, readers: int = 1, recipe: str = "weight-int8", **settings):
    nodes = [node("Slice", f"t s{index} e a", f"y{index}") for index in range(readers)]
    ends = {f"s{index}": np.array([0]) for index in range(readers)}
    inputs = {"e": (TensorProto.INT64, [1])}
    outputs = [f"y{index}" for index in range(readers)]
    return quantize_in_memory(
        build(nodes, inputs, outputs, {"t": values, "a": np.array([axis]), **ends}), recipe, **settings
    )


@pytest.mark.parametrize("recipe", ["weight-int8", "auto"])
@pytest.mark.parametrize("axis", [1, -2])
def test_positions_that_a_slice_takes_are_stored_in_8_bit(axis, recipe):
    values = floats(1, 400, 32) * np.exp(2 * floats(1, 1, 32, seed=1))
    made = sliced(values, axis, readers=2, recipe=recipe)
    assert len(made.data) < 0.28 * len(made.source), "both Slices read one table"
    scale = np.abs(values).max(axis=1, keepdims=True) / F(127)
    for level in (None, ALL):
        first, second = made.run({"e": np.array([7])}) if level is None else made.run({"e": np.array([7])}, level)
        np.testing.assert_array_equal(first, (np.rint(values / scale) * scale)[:, :7])
        np.testing.assert_array_equal(second, first)


def test_a_slice_of_columns_or_of_a_table_that_others_read_stays_float():
    values = floats(400, 32)
    assert not sliced(values, 1).ops["Cast"]
    nodes = [node("Slice", "t s e a", "y0", name="n"), node("Add", "t y0", "y1")]
    weights = {"t": values, "s": np.array([0]), "a": np.array([0])}
    made = quantize_in_memory(build(nodes, {"e": (TensorProto.INT64, [1])}, ["y1"], weights), "weight-int8")
    assert made.decision("n").reason == "others read its table in float"


def test_a_table_that_takes_a_small_share_of_all_weights_stays_float():
    weights = {"t": floats(64, 80, seed=1), "s": np.array([0]), "a": np.array([0]), "w": floats(80, 2000, seed=2)}
    nodes = [node("Slice", "t s e a", "h", name="n"), node("MatMul", "h w", "y")]
    made = quantize_in_memory(build(nodes, {"e": (TensorProto.INT64, [1])}, ["y"], weights), "weight-int8")
    reason = "its table takes a small share of all weights, and its error is in everything behind"
    assert made.decision("n").reason == reason


@pytest.mark.parametrize("least", [-np.inf, np.finfo(F).min, np.finfo(np.float16).min])
def test_a_table_that_is_a_mask_stays_float(least):
    mask = np.triu(np.full((64, 80), least, F), 1)
    weights = {"t": mask, "s": np.array([0]), "a": np.array([0])}
    made = quantize_in_memory(
        build([node("Slice", "t s e a", "y", name="n")], {"e": (TensorProto.INT64, [1])}, ["y"], weights), "weight-int8"
    )
    assert made.decision("n").reason == "its table is a mask"


def test_a_table_that_is_sliced_twice_may_be_a_mask():
    mask = np.triu(np.full((1, 1, 64, 80), -np.inf, F), 1)
    nodes = [node("Slice", "t s e a", "m", name="n"), node("Slice", "m s e b", "y")]
    weights = {"t": mask, "s": np.array([0]), "a": np.array([2]), "b": np.array([3])}
    made = quantize_in_memory(build(nodes, {"e": (TensorProto.INT64, [1])}, ["y"], weights), "weight-int8")
    assert made.decision("n").reason == "its table may be a mask"
