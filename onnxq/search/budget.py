"""The loss and the size that a user allows a quantized model, and whether one keeps to them.

Tests: `tests/search/test_mixed_precision.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path

from onnxq.data.samples import Samples
from onnxq.errors import CheckFailed, RecipeError
from onnxq.ir import Model
from onnxq.ir.storage.files import data_path, needs_external_data, written_bytes
from onnxq.planning.recipe import Recipe
from onnxq.report import Report
from onnxq.runtime.memory import trim_heap
from onnxq.search.sqnr_evaluator import SqnrEvaluator
from onnxq.verification.output_records import wrong_limit
from onnxq.verification.user_metric import Metric, MetricJudge

LAST_GOAL = 30.0  # dB, above which hardly any decision changes
SEARCH = "Leave out --fast: then what loses most stays float until the limit is met."
SENSITIVE = "Leave sensitive nodes float with --exclude, or give more data."
SMALL = "Allow a larger file, or ask for less."
LESS = "Ask for less, or give more data."
RAISE = "Ask for less, give more data, or leave nodes float with --exclude."


@dataclass(frozen=True)
class Budget:
    """Limits that the user asked for.

    Attributes:
        min_sqnr: Least signal-to-quantization-noise ratio of every output in dB.
        metric: A name such as `top1`, a function, or `package.module:function`; see `onnxq.verification.user_metric`.
            Without `max_drop`, it is only measured.
        max_drop: How much worse the metric may get.
        max_size: Most bytes on disk.
        data_file: Name of the file that the weights go to, if not into the model: it takes room between them.

    """

    min_sqnr: float | None = None
    metric: str | Metric | None = None
    max_drop: float | None = None
    max_size: int | None = None
    data_file: str | None = None

    def __post_init__(self) -> None:
        """Refuse half of a limit, and one that is no number."""
        for option, limit in (("min-sqnr", self.min_sqnr), ("max-drop", self.max_drop)):
            if limit is not None and not (isinstance(limit, Real) and math.isfinite(limit)):
                raise RecipeError(f"{option} is {limit!r}, not a finite number", "Give a number.")
        if self.min_sqnr is not None and (wrong := wrong_limit("min_sqnr", self.min_sqnr)):
            said = f"min-sqnr is {self.min_sqnr:g}, and has to be {wrong[0]}"
            raise RecipeError(said, f"Write {wrong[1]:g}, or other dB: 20 is an error of a tenth, 40 of a hundredth.")
        if self.max_drop is not None and self.max_drop < 0:
            said = f"max-drop is {self.max_drop:g}, and a metric that may not get worse at all has 0"
            raise RecipeError(said, "Give how much worse it may get, such as 0.5.")
        if self.metric is None and self.max_drop is not None:
            raise RecipeError("max-drop needs a metric that could drop", "Name a metric, such as top1.")
        if self.max_size is not None and not isinstance(self.max_size, Integral):
            raise RecipeError(f"max-size is {self.max_size!r}, not a number of bytes", "Give a whole number.")
        if self.max_size is not None and self.max_size < 1:
            raise RecipeError(f"max-size is {self.max_size}, which no file meets", "Give a number of bytes above 0.")

    @property
    def is_set(self) -> bool:
        """Whether there is any limit that the plan is changed for."""
        return self.is_accuracy or self.max_size is not None

    @property
    def is_accuracy(self) -> bool:
        """Whether there is any limit to what the outputs may lose."""
        return self.min_sqnr is not None or self.max_drop is not None


def check_mixed_bits(recipe: Recipe, budget: Budget, *, fast: bool) -> None:
    """Refuse to choose bits without a limit to choose them by, with two of them, or without a search.

    Raises:
        RecipeError: The recipe leaves bits open, and one of these is so.

    """
    if not recipe.scheme.mixed_bits:
        return
    mean = recipe.scheme.mean_bits
    if mean and budget.max_size is not None:
        raise RecipeError(f"--bits {mean} sets the size itself", "Pass --bits auto with --max-size.")
    if not mean and not budget.is_set:
        hint = "Add --max-size, or --metric perplexity with --max-drop."
        raise RecipeError("--bits auto chooses bits by a limit, and there is none", hint)
    if fast:
        words = f"--bits {mean or 'auto'} searches, and --fast leaves searches out"
        raise RecipeError(words, "Pass --bits 4, or leave --fast out.")


def check_budget(report: Report, budget: Budget, target: Path, *, fast: bool) -> None:
    """Refuse a result that loses more than the caller allows, or gives NaN or infinity where float does not."""
    if report.comparison is None:
        if budget.is_accuracy:
            what = "SQNR" if budget.min_sqnr is not None else "metric"
            raise CheckFailed(f"{target} was not written: its {what} cannot be measured", report.notes[-1])
        return
    missed = report.comparison.spoilt()
    missed += report.comparison.missed(min_sqnr=budget.min_sqnr, max_drop=budget.max_drop)
    if missed:
        hint = SMALL if budget.max_size else SEARCH if fast else SENSITIVE
        raise CheckFailed(f"{target} was not written: {'; '.join(missed)}", hint)


def check_size(model: Model, encoded: bytes | None, budget: Budget, target: Path) -> None:
    """Refuse a result that takes more bytes than the caller allows."""
    most = budget.max_size
    data_file = data_path(target).name if needs_external_data(model) else budget.data_file
    size = 0 if most is None else written_bytes(model, data_file, encoded)
    if most is not None and size > most:
        raise CheckFailed(
            f"{target} was not written: it would have {size:,} bytes, {most:,} are allowed",
            "Take a recipe with fewer bits, such as weight-int4, or allow a larger file.",
        )


class BudgetCheck:
    """Whether a model meets the budget; remembers what the last one missed.

    The limit is one for the outputs. Scores in front of a Softmax, which tell clear cases from others, have to meet it,
    too. They have to meet no more than `LAST_GOAL`, above which hardly any decision changes.

    Args:
        baseline: The float model.
        samples: What models are judged on.
        budget: What they may lose.
        scratch: For large models; see `SqnrEvaluator`.

    """

    def __init__(self, baseline: Model, samples: Samples, budget: Budget, scratch: Path | None = None) -> None:
        self._budget = budget
        self._judge = SqnrEvaluator(baseline, samples, scratch=scratch) if budget.min_sqnr is not None else None
        self._metric: MetricJudge | None = None
        if budget.metric is not None and budget.max_drop is not None:
            self._metric = MetricJudge(budget.metric, baseline, samples)
        self.last = ""

    def __call__(self, model: Model) -> bool:
        """Tell, and keep the reason where not."""
        budget = self._budget
        if self._judge is not None and budget.min_sqnr is not None:
            reached, scores = self._judge.worst(model)
            enough = min(budget.min_sqnr, LAST_GOAL)
            if reached < budget.min_sqnr or scores < enough:
                behind = f", {scores:.2f} dB in front of a Softmax or Sigmoid" if scores < enough else ""
                self.last = f"{reached:.2f} dB{behind} at best, {budget.min_sqnr:g} dB asked for"
                return False
        if self._metric is not None and budget.max_drop is not None:
            found = self._metric.compare(model)
            trim_heap(model.weight_bytes)  # of sessions
            if found.missed(budget.max_drop):
                goes = "rises" if found.lower_is_better else "falls"
                values = f"from {found.float_value:.6g} to {found.quantized_value:.6g}"
                self.last = f"{found.name} {goes} {values} at best"
                return False
        return True
