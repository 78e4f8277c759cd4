"""Range methods: each is written once, and recipes, statistics and docs know it."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from onnxq.calibration.activation_qparams import scheme_qparams
from onnxq.calibration.ranges import METHODS, Needs, RangeRequest, choose_range, needs_of, range_method
from onnxq.calibration.stats import TensorStats
from onnxq.ops.forms.scheme import RangesSetting, Scheme
from onnxq.planning.recipe import parse_recipe

DOCS = Path(__file__).parents[2] / "docs"


def test_recipes_take_the_methods_that_there_are() -> None:
    assert set(METHODS) == set(get_args(RangesSetting))
    assert all(parse_recipe(f'ranges = "{name}"', "r").scheme.ranges == name for name in METHODS)


def test_the_docs_describe_every_method() -> None:
    reference = (DOCS / "reference" / "recipes.md").read_text("utf-8")
    (row,) = (line for line in reference.splitlines() if line.startswith("| `ranges` |"))
    explained = (DOCS / "explanation" / "methods.md").read_text("utf-8")
    for name, method in METHODS.items():
        assert f"`{name}`" in row
        assert name == "auto" or f"* `{name}`: {method.summary}" in explained


def test_what_is_measured_follows_from_the_methods() -> None:
    assert needs_of(["minmax", "auto"]) == {Needs.EXTREMES}
    assert needs_of(["minmax", "auto"], trial=True) == {Needs.EXTREMES, Needs.WEIGHTED_HISTOGRAM}
    assert needs_of([]) == set()


def test_a_method_registered_at_run_time_chooses_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxq.calibration.ranges.METHODS", found := dict(METHODS))
    monkeypatch.setattr("onnxq.calibration.activation_qparams.METHODS", found)

    @range_method("half", "half of what was seen", Needs.EXTREMES)  # type: ignore[arg-type]
    def _half(request: RangeRequest) -> tuple[float, float]:
        return request.low / 2, request.high / 2

    stats = TensorStats.of(np.linspace(-2, 6, 100, dtype=np.float32))
    assert choose_range(stats, "half") == (-1, 3)
    assert choose_range(stats, "half", symmetric=True) == (-3, 3)
    scale, _ = scheme_qparams(stats, Scheme(ranges="half"))  # type: ignore[arg-type]
    assert scale == pytest.approx(4 / 255, rel=1e-5)
    assert needs_of(["half"]) == {Needs.EXTREMES}
