"""Where the search leaves no product of integers, stored weights are those before channels were divided."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from helpers import build, floats, node

from onnxq import quantize
from onnxq.pipeline import in_memory, settling
from onnxq.pipeline.untransformed import SAID
from onnxq.planning.decision import Override, Plan, node_key
from onnxq.report import Report
from onnxq.search.budget import Budget
from onnxq.search.meet_budget import SearchOutcome
from onnxq.search.variants import Variants


def quantized(folder: Path, monkeypatch: pytest.MonkeyPatch, *, transforms: int, returned: int) -> tuple[Report, int]:
    """Quantize two convolutions, of which a search returns some to float, after so many transforms of values."""
    nodes = [node("Conv", "x w0", "c"), node("Relu", "c", "r"), node("Conv", "r w1", "y")]
    weights = {"w0": floats(64, 64, 3, 3, seed=1, scale=0.1), "w1": floats(64, 64, 3, 3, seed=2, scale=0.1)}
    onnx.save(build(nodes, {"x": [1, 64, 16, 16]}, ["y"], weights), folder / "m.onnx")
    plans: list[Plan] = []

    def search(variants: Variants, budget: Budget) -> SearchOutcome:
        plans.append(variants.prepared.plan)
        keys = [node_key(each) for each in variants.prepared.model.graph.nodes if each.op_type == "Conv"]
        return SearchOutcome({key: Override("weight-int8", "too far from float") for key in keys[:returned]})

    monkeypatch.setattr(
        in_memory, "transform_values", lambda prepared, *given: replace(prepared, transforms=transforms)
    )
    monkeypatch.setattr(settling, "meet_accuracy", search)
    samples = [{"x": floats(1, 64, 16, 16, seed=seed)} for seed in range(2)]
    report = quantize(folder / "m.onnx", output=folder / "q.onnx", samples=samples)
    assert plans[0].in_integers
    assert not any(plan.in_integers for plan in plans[1:])
    return report, len(plans)


def test_a_model_that_returns_to_float_starts_again_without_transforms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, searches = quantized(tmp_path, monkeypatch, transforms=1, returned=2)
    assert searches == 2
    assert SAID in report.notes
    assert {decision.scheme for decision in report.nodes if decision.op_type == "Conv"} == {"weight-int8"}


@pytest.mark.parametrize(("transforms", "returned"), [(0, 2), (1, 1)])
def test_it_goes_on_where_nothing_was_changed_or_a_product_of_integers_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transforms: int, returned: int
) -> None:
    report, searches = quantized(tmp_path, monkeypatch, transforms=transforms, returned=returned)
    assert searches == 1
    assert SAID not in report.notes
