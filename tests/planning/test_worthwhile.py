"""A model that would hardly be faster in integers computes in float, with weights stored in 8 bit, and says so."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import build, floats, node, recipe_of, typed

from onnxq import quantize
from onnxq.planning.decision import Override
from onnxq.planning.latency import predicted_latency
from onnxq.planning.planner import NOT_WORTHWHILE, make_plan
from onnxq.planning.recipe import load_recipe
from onnxq.planning.worthwhile import WORTHWHILE, worthwhile
from onnxq.search.mixed_precision import SearchResult


def small_network() -> onnx.ModelProto:
    """Six products of one row, of which the first is just large enough for an integer kernel."""
    sizes = [256, *[122] * 5, 126]
    nodes, weights, read = [], {}, "x"
    for index, (inner, outer) in enumerate(pairwise(sizes)):
        weights |= {f"w{index}": floats(inner, outer, seed=index, scale=0.1), f"b{index}": floats(outer, seed=index)}
        last = "y" if index == 5 else f"a{index}"
        nodes += [node("MatMul", f"{read} w{index}", f"m{index}"), node("Add", f"m{index} b{index}", last)]
        nodes += [node("Tanh", f"a{index}", f"t{index}")] if index < 5 else []
        read = f"t{index}"
    return build(nodes, {"x": [1, 256]}, ["y"], weights)


def large_product() -> onnx.ModelProto:
    return build([node("MatMul", "x w", "y")], {"x": [64, 512]}, ["y"], {"w": floats(512, 512)})


@pytest.mark.parametrize(("target", "expected"), [("cpu", False), ("cpu-vnni", False), ("openvino", True)])
def test_few_small_products_are_not_worth_their_conversions(target: str, expected: bool) -> None:
    plan = make_plan(typed(small_network()), recipe_of("auto", target=target), with_data=True)
    assert worthwhile(plan) is expected or not plan.in_integers


def test_a_share_of_a_run_of_some_microseconds_is_not() -> None:
    """Two products of a step of an LSTM save 3 % and more by the table for AVX2, which is 1 or 2 microseconds."""
    nodes = [node("Gemm", "x u a", "p"), node("Gemm", "h v b", "q"), node("Add", "p q", "y")]
    weights = {name: floats(128, 512, seed=place) for place, name in enumerate("uv")}
    weights |= {name: floats(512, seed=place) for place, name in enumerate("ab")}
    step = typed(build(nodes, {"x": [1, 128], "h": [1, 128]}, ["y"], weights))
    plan = make_plan(step, recipe_of("auto", target="cpu-avx2"), with_data=True)
    assert plan.in_integers
    assert predicted_latency(plan, "cpu-avx2") < WORTHWHILE
    assert not worthwhile(plan)


def test_a_large_product_is() -> None:
    assert worthwhile(make_plan(typed(large_product()), load_recipe("auto"), with_data=True))


def test_a_family_whose_times_are_estimated_counts_where_it_was_asked_for() -> None:
    plan = make_plan(typed(large_product()), recipe_of("auto", target="cpu-armv8"), with_data=True)
    assert worthwhile(plan)


@pytest.mark.parametrize("recipe", ["auto", "static-int8"])
def test_it_is_stored_in_8_bit_unless_integers_were_asked_for(tmp_path: Path, recipe: str) -> None:
    source = tmp_path / "m.onnx"
    source.write_bytes(small_network().SerializeToString())
    samples = [{"x": floats(1, 256, seed=seed)} for seed in range(8)]
    report = quantize(source, recipe, output=tmp_path / "q.onnx", samples=samples)
    products = [decision for decision in report.nodes if decision.op_type == "MatMul"]
    assert {decision.scheme for decision in products} == {"weight-int8" if recipe == "auto" else recipe}
    assert all(decision.reason.endswith(NOT_WORTHWHILE) for decision in products) == (recipe == "auto")
    assert (tmp_path / "q.onnx").stat().st_size < 0.4 * source.stat().st_size
    assert np.isfinite(report.comparison.worst_sqnr)


def test_what_a_search_leaves_in_integers_has_to_be_worth_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the search returns most products to float, the others follow."""
    source = tmp_path / "m.onnx"
    source.write_bytes(large_product().SerializeToString())
    left = SearchResult({"another": Override("float", "")}, met=True)
    monkeypatch.setattr("onnxq.search.meet_budget.cheap_wins", lambda *_: left)
    monkeypatch.setattr("onnxq.search.meet_budget.worthwhile", lambda plan: False)
    report = quantize(source, output=tmp_path / "q.onnx", samples=[{"x": floats(64, 512)}] * 4)
    (product,) = [decision for decision in report.nodes if decision.op_type == "MatMul"]
    assert product.scheme == "weight-int8"
    assert product.reason.endswith(NOT_WORTHWHILE)
