"""The work that a run is expected to do, step by step, in seconds on a usual processor; see `onnxq.progress`.

It is estimated from the plan: the variants that each search is likely to try, their samples, and the table of kernel
times. Only how the parts compare counts, and only at first: a run soon measures what each kind of work takes. The
constants were fitted to runs of `tests/bench/bench_progress.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from onnxq.ir import Value
from onnxq.progress import Work
from onnxq.rounding.weights import searched_weights
from onnxq.search.budget import Budget
from onnxq.search.candidates import float_time
from onnxq.search.equalization_trial import applicable
from onnxq.search.held_out import FOLDS, REST, HoldoutSplit
from onnxq.search.range_trial import CANDIDATES, LEAST_FOLDS
from onnxq.search.rescaling_trial import methods_to_try
from onnxq.search.sensitivity import ALL_ALONE, EXACT, PROBES, weighted_decisions
from onnxq.search.variants import read_many_rows
from onnxq.stages.measure import layers_needing_moments
from onnxq.stages.prepared import Prepared

UNKNOWN = 100  # samples, if their number is not known
# Times of the float model's by the table: a session that gives tensors, the evaluator, the same for channels alone
ROUGH, FULL, CHANNELS = 2.3, 10.0, 5.5
RUN = 1.7  # of a variant in a session of exact arithmetic
# Seconds for a node: to copy, plan and rewrite a model, to open a session, to evaluate it, to measure what it gives
VARIANT, OPEN, EVALUATED, MEASURED = 1.3e-3, 2e-4, 2.5e-4, 6e-5
# Seconds for a row of a weight by its squared length, for a weight, and the share of both that a quick search takes
ELEMENT, WEIGHT, QUICK = 3.2e-9, 2e-2, 0.62
LATENCY, LATENCY_RUNS = 0.5, 10  # seconds at most for pairs of runs, and how many there are at least
FAMILY_SAMPLES, LAYER_SAMPLES, PASS_SAMPLES = 4, 8, 1
PROBABLE, POSSIBLE = 0.5, 0.3
USUALLY_OPEN = 3  # ways to choose ranges that are tried on more than two folds


@dataclass(frozen=True)
class _Prices:
    """Seconds of single pieces of work for one model."""

    run: float  # of the float model on a sample
    nodes: int

    def rough(self, samples: int) -> float:
        return samples * (ROUGH * self.run + MEASURED * self.nodes) + OPEN * self.nodes

    def full(self, samples: int) -> float:
        return samples * (FULL * self.run + EVALUATED * self.nodes)

    def channels(self, samples: int) -> float:
        return samples * (CHANNELS * self.run + MEASURED * self.nodes)

    def float_outputs(self, samples: int) -> float:
        return samples * RUN * self.run + OPEN * self.nodes

    def trial(self, samples: int) -> float:
        return VARIANT * self.nodes + self.float_outputs(samples)


class Schedule:
    """The expected work of carrying out a plan.

    Args:
        prepared: The model and its plan.
        split: Samples to judge on; they are not read.
        budget: What is searched for.
        with_data: Whether there are samples to calibrate with.
        with_stats: Whether statistics are there already.
        detailed: Whether layers are compared, too.

    """

    def __init__(
        self,
        prepared: Prepared,
        split: HoldoutSplit,
        budget: Budget,
        *,
        with_data: bool,
        with_stats: bool,
        detailed: bool,
    ) -> None:
        self._prepared, self._split, self._budget = prepared, split, budget
        self._with_data, self._with_stats, self._detailed = with_data, with_stats, detailed
        nodes = prepared.model.graph.nodes
        self._prices = _Prices(float_time(prepared.plan) / 1e9, len(nodes))
        self._samples = split.samples.count or UNKNOWN
        self._few = split.expected_count(1.0)
        self._half = max(self._few // 2, 1)
        self._tries = with_data and not prepared.fast and not split.samples.made_up and self._few > 1
        self._layers = bool(layers_needing_moments(prepared.plan).values)

    def work(self) -> Iterator[Work]:
        """List what is to be done, in order."""
        if not self._with_stats:
            yield from self._rescale()
        yield from self._calibrate()
        if self._with_data or self._budget.is_set:
            yield from self._search()
        yield from self._compare()

    def _trials(self, step: str, count: int, samples: int, chance: float = 1.0) -> Iterator[Work]:
        for _ in range(count):
            yield Work(step, "judge", self._prices.trial(samples), chance)

    def _rescale(self) -> Iterator[Work]:
        prices, prepared, half = self._prices, self._prepared, self._half
        if not self._tries:
            return

        def fitted(count: int, chance: float = 1.0) -> Iterator[Work]:
            for _ in range(count):
                yield Work("rescale", "measure roughly", prices.rough(half), chance)
                yield Work("rescale", "judge", prices.trial(half), chance)

        if any(node.op_type == "Softmax" for node in prepared.model.graph.nodes):
            yield from self._trials("rescale", 2, half, PROBABLE)
        everything = Work("rescale", "measure", prices.channels(self._samples), POSSIBLE)
        ways = applicable(prepared)
        if ways:
            yield Work("rescale", "judge", prices.float_outputs(half))
            yield from (Work("rescale", "measure roughly", prices.rough(half)) for _ in range(2))
            yield from fitted(2)
            yield from fitted(2 * ways, PROBABLE)
            yield everything
        ways = methods_to_try(prepared)
        if ways:
            yield Work("rescale", "measure roughly", prices.rough(half))
            yield Work("rescale", "judge", prices.float_outputs(half), PROBABLE)
            yield from fitted(1 + ways, PROBABLE)
            yield from fitted(2, POSSIBLE)
            yield everything

    def _calibrate(self) -> Iterator[Work]:
        prices, plan = self._prices, self._prepared.plan
        rounding = sum(_rounding(weight, coding.axes) for weight, coding in searched_weights(plan))
        if self._tries and not self._with_stats:
            if self._layers and not read_many_rows(plan, self._split.samples.count):
                yield Work("trial", "measure roughly", prices.rough(self._half))
                yield Work("trial", "judge", prices.float_outputs(self._half), PROBABLE)
                yield from self._trials("trial", 2, self._half)
                yield Work("trial", "round", QUICK * rounding)
            if "auto" in plan.range_methods:
                yield from self._ranges()
        if self._with_data and not self._with_stats and plan.calibrated():
            yield Work("calibrate", "measure", prices.full(self._samples))
        if self._layers or plan.quantized():
            yield Work("round", "round", rounding)

    def _ranges(self) -> Iterator[Work]:
        taken = self._split.expected_count(self._split.room)
        folds = min(FOLDS, taken)
        each, rest = taken // folds, min(max(self._samples - taken, 0), REST)
        for samples in (*[each] * folds, *([rest] if rest else [])):
            yield Work("trial", "measure roughly", self._prices.rough(samples))
        for fold in range(folds):
            yield Work("trial", "judge", self._prices.float_outputs(each))
            yield from self._trials("trial", len(CANDIDATES) if fold < LEAST_FOLDS else USUALLY_OPEN, each)

    def _search(self) -> Iterator[Work]:
        prices, quick = self._prices, self._split.searched
        nodes = len(weighted_decisions(self._prepared.plan))
        strict = self._budget.is_accuracy
        yield Work("search", "judge", prices.float_outputs(quick))
        if nodes > ALL_ALONE:
            yield Work("search", "layers", 3 * prices.full(PASS_SAMPLES))
        alone = nodes if nodes <= ALL_ALONE else PROBES + (EXACT if strict else 3)
        yield from self._trials("search", alone + 1, quick)
        yield from self._trials("search", 4, quick, POSSIBLE)
        halvings = math.ceil(math.log2(nodes + 1))
        if strict:
            yield from self._trials("search", 1, self._samples)
            yield from self._trials("search", 2 * halvings, self._samples, PROBABLE)
        else:
            yield Work("search", "judge", prices.float_outputs(self._few), PROBABLE)
            yield from self._trials("search", halvings, self._few, POSSIBLE)
        if self._budget.max_size is not None:
            yield from self._trials("search", halvings, quick, PROBABLE)
        if self._tries and not self._with_stats:
            yield from self._cross_validate()
        if self._tries and any(d.settings and d.settings.bias_correction for d in self._prepared.plan.decisions):
            yield Work("correct", "biases", prices.full(self._half))
            yield from self._trials("correct", 2, self._half)

    def _cross_validate(self) -> Iterator[Work]:
        plan, prices = self._prepared.plan, self._prices
        half = max(min(self._split.expected_fitting(), self._samples) // 2, 1)
        rounding = sum(_rounding(weight, coding.axes) for weight, coding in searched_weights(plan))
        for _ in range(2):
            yield Work("cross-validate", "measure roughly", prices.rough(half))
            yield Work("cross-validate", "round", QUICK * rounding)
            yield Work("cross-validate", "judge", prices.float_outputs(half))
            yield from self._trials("cross-validate", 1, half)

    def _compare(self) -> Iterator[Work]:
        prices = self._prices
        samples = 2 if self._prepared.fast else self._samples
        yield Work("verify", "compare", samples * 2 * prices.run + 5 * OPEN * prices.nodes)
        if not self._prepared.fast:
            yield Work("verify", "latency", min(LATENCY, 1000 * prices.run) + 2 * LATENCY_RUNS * prices.run)
        if self._detailed:
            yield Work("layers", "layers", 3 * prices.full(min(LAYER_SAMPLES, self._samples)))
            yield Work("details", "details", 1.0 + 8 * prices.run)
        yield Work("families", "families", 2 * prices.full(FAMILY_SAMPLES), PROBABLE)
        if self._budget.metric is not None:
            yield Work("metric", "metric", 4 * self._samples * prices.run)


def _rounding(weight: Value, axes: tuple[int, ...]) -> float:
    """Estimate what choosing the codes of a weight takes: error feedback is quadratic in the length of a row."""
    shape = weight.constant.shape if weight.constant is not None else ()
    columns = math.prod(shape[axis] for axis in axes)
    return WEIGHT + ELEMENT * math.prod(shape) * columns
