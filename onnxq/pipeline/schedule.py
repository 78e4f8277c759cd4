"""The work that a run is expected to do, step by step, in seconds on a usual processor; see `onnxq.progress`.

It is estimated from the plan: the variants that each search is likely to try, their samples, and the table of kernel
times. Only how the parts compare counts, and only at first: a run soon measures what each kind of work takes. The
constants were fitted to runs of `tests/bench/bench_progress.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from onnxq.data.generated_text import text_input
from onnxq.ir import Value
from onnxq.progress import Work
from onnxq.rounding.weights import searched_weights
from onnxq.runtime.fork import can_fork
from onnxq.runtime.workers import worker_count
from onnxq.search.budget import Budget
from onnxq.search.candidates import float_time
from onnxq.search.equalization_trial import applicable
from onnxq.search.held_out import FOLDS, REST, HoldoutSplit
from onnxq.search.range_trial import LEAST_FOLDS
from onnxq.search.rescaling_trial import CHANNEL_SAMPLES, methods_to_try
from onnxq.search.sensitivity import ALL_ALONE, EXACT, PROBES, weighted_decisions
from onnxq.search.variants import read_many_rows
from onnxq.stages.measure import layers_needing_moments
from onnxq.stages.prepared import Prepared
from onnxq.verification.decoding import JUDGED, SECONDS
from onnxq.verification.metrics.greedy import CONTINUED, TEXTS

UNKNOWN = 100  # samples, if their number is not known
# Times of the float model's by the table: a session that gives tensors, the evaluator, the same for channels alone
ROUGH, FULL, CHANNELS = 2.3, 6.8, 4.5
EXTREMES = 0.6  # of the first, where no moments are measured
RUN, VARIANT_RUN = 1.7, 0.5  # of float, and of a variant, in a session of exact arithmetic
# Seconds for a node. VARIANT: to copy, plan and rewrite a model. OPEN: to open a session. TAPPED: one that gives
# tensors. EVALUATED: to evaluate it. MEASURED: to measure its outputs. ROUNDED: for an element of a weight
VARIANT, OPEN, TAPPED, EVALUATED, MEASURED, ROUNDED = 4e-4, 2e-4, 1e-3, 3e-4, 1.1e-4, 1.6e-8
# Seconds for a row of a weight by its squared length, for a weight, and the share of both that a quick search takes
ELEMENT, WEIGHT, QUICK = 2.7e-9, 1.7e-2, 0.55
# The share of the weights whose codes are chosen once more, for other kernels, when the search is over
AGAIN = 0.3
LATENCY, LATENCY_RUNS = 0.5, 10  # seconds at most for pairs of runs, and how many there are at least
FAMILY_SAMPLES, LAYER_SAMPLES, PASS_SAMPLES = 4, 8, 1
PROBABLE, POSSIBLE, RARE = 0.5, 0.3, 0.15
FLOAT32 = 4  # bytes
RESCALED = 2.0  # times of a trial's, where channels of a copy are divided first
ANOTHER = 0.8  # of what one processor does, each more adds where copies of the process share the work
ALONE = ("latency", "perplexity", "greedy", "details")  # what one process does by itself
USUALLY_FIRST, USUALLY_OPEN = 4, 3  # ways to choose ranges that run on the first folds, and on more


@dataclass(frozen=True)
class _Prices:
    """Seconds of single pieces of work for one model."""

    run: float  # of the float model on a sample
    nodes: int
    weights: int  # elements

    def rough(self, samples: int) -> float:
        return samples * (ROUGH * self.run + MEASURED * self.nodes) + TAPPED * self.nodes

    def full(self, samples: int) -> float:
        return samples * (FULL * self.run + EVALUATED * self.nodes)

    def channels(self, samples: int) -> float:
        return samples * (CHANNELS * self.run + MEASURED * self.nodes)

    def float_outputs(self, samples: int) -> float:
        return samples * RUN * self.run + OPEN * self.nodes

    def trial(self, samples: int) -> float:
        return (VARIANT + OPEN) * self.nodes + ROUNDED * self.weights + samples * VARIANT_RUN * self.run


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
        self._prices = _Prices(float_time(prepared.plan) / 1e9, len(nodes), prepared.model.weight_bytes // FLOAT32)
        self._samples = split.samples.count or UNKNOWN
        self._few = split.expected_count(1.0)
        self._half = max(self._few // 2, 1)
        self._fitted = max(min(split.expected_fitting(), self._samples) // 2, 1)  # a half that codes are chosen on
        self._shares = split.shareable
        self._tries = with_data and not prepared.fast and not split.samples.made_up and self._few > 1
        self._layers = bool(layers_needing_moments(prepared.plan).values)

    def work(self) -> Iterator[Work]:
        """List what is to be done, in order; it takes less time where copies of the process share it."""
        copies = self._shares and can_fork()
        share = 1 / (1 + ANOTHER * (worker_count(0) - 1)) if copies else 1.0
        for one in self._work(beside=copies):
            yield one if one.kind in ALONE else replace(one, seconds=one.seconds * share)

    def _work(self, *, beside: bool) -> Iterator[Work]:
        """List the same as one process does it; `beside`: ranges are tried in a copy, while codes are."""
        if not self._with_stats:
            yield from self._rescale()
        yield from self._calibrate(beside=beside)
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

        def trials(count: int, chance: float = 1.0) -> Iterator[Work]:
            for _ in range(count):
                yield Work("rescale", "judge", RESCALED * prices.trial(half), chance)

        def halves(chance: float = 1.0) -> Iterator[Work]:
            """List what is measured and computed of a half once, for all ways."""
            yield Work("rescale", "measure roughly", prices.rough(half), chance)
            yield Work("rescale", "judge", prices.float_outputs(half), chance)

        if any(node.op_type == "Softmax" for node in prepared.model.graph.nodes):
            yield from trials(2, PROBABLE)
        channels = prices.channels(min(self._samples, CHANNEL_SAMPLES))
        ways = applicable(prepared)
        if ways:
            yield from halves()
            yield from trials(1 + ways)
            yield from halves(PROBABLE)
            yield from trials(1 + ways, PROBABLE)
            yield Work("rescale", "measure", channels, POSSIBLE)
        methods = methods_to_try(prepared)
        if methods:
            yield from halves(POSSIBLE if ways else 1.0)  # again where channels have changed
            yield from trials(1 + methods, PROBABLE)
            yield from trials(2, POSSIBLE)
            yield Work("rescale", "measure", channels, POSSIBLE)

    def _calibrate(self, *, beside: bool) -> Iterator[Work]:
        prices, plan = self._prices, self._prepared.plan
        rounding = self._rounding()
        if self._tries and not self._with_stats:
            codes = list(self._codes(rounding))
            ranges = list(self._ranges()) if "auto" in plan.range_methods else []
            yield from codes
            if beside and codes and ranges:
                longer, shorter = (sum(one.seconds * one.chance for one in part) for part in (ranges, codes))
                ranges = [Work("trial", "ranges", max(longer - shorter, 0.0))]
            yield from ranges
        if self._with_data and not self._with_stats and plan.calibrated():
            yield Work("calibrate", "measure", prices.full(self._samples))
        if self._layers or plan.quantized():
            yield Work("round", "round", rounding)

    def _codes(self, rounding: float) -> Iterator[Work]:
        if self._layers and not read_many_rows(self._prepared.plan, self._split.samples.count):
            yield Work("trial", "measure roughly", self._prices.rough(self._fitted))
            yield Work("trial", "judge", self._prices.float_outputs(self._half), PROBABLE)
            yield from self._trials("trial", 2, self._half)
            yield Work("trial", "round", QUICK * rounding)

    def _ranges(self) -> Iterator[Work]:
        taken = self._split.expected_count(self._split.room)
        folds = min(FOLDS, taken)
        each, rest = taken // folds, min(max(self._samples - taken, 0), REST)
        for samples in (*[each] * folds, *([rest] if rest else [])):
            yield Work("trial", "measure roughly", EXTREMES * self._prices.rough(samples))
        for fold in range(folds):
            yield Work("trial", "judge", self._prices.float_outputs(each))
            yield from self._trials("trial", USUALLY_FIRST if fold < LEAST_FOLDS else USUALLY_OPEN, each)

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
        yield Work("search", "round", AGAIN * self._rounding())
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
            yield Work("correct", "biases", prices.full(self._half), POSSIBLE)
            yield from self._trials("correct", 2, self._half, POSSIBLE)

    def _cross_validate(self) -> Iterator[Work]:
        """List the judging of one half; codes were chosen on the other before, to see whether they serve others."""
        prices = self._prices
        half = self._fitted
        codes = self._layers and not read_many_rows(self._prepared.plan, self._split.samples.count)
        yield Work("cross-validate", "measure roughly", prices.rough(half), RARE if codes else 1.0)
        yield Work("cross-validate", "judge", prices.float_outputs(half), PROBABLE)
        yield from self._trials("cross-validate", 2, half)

    def _rounding(self) -> float:
        return sum(_rounding(weight, coding.axes) for weight, coding in searched_weights(self._prepared.plan))

    def _compare(self) -> Iterator[Work]:
        prices = self._prices
        samples = 2 if self._prepared.fast else self._samples
        yield Work("verify", "compare", samples * 2 * prices.run + 5 * OPEN * prices.nodes)
        if not self._prepared.fast:
            yield Work("verify", "latency", min(LATENCY, 1000 * prices.run) + 2 * LATENCY_RUNS * prices.run)
        if self._detailed:
            yield Work("layers", "layers", 3 * prices.full(min(LAYER_SAMPLES, self._samples)))
            yield Work("details", "details", 1.0 + 8 * prices.run)
        yield Work("families", "families", 2 * prices.full(FAMILY_SAMPLES), POSSIBLE)
        if self._budget.metric is not None:
            yield Work("metric", "metric", 4 * self._samples * prices.run)
        if self._with_data and not self._prepared.fast and text_input(self._prepared.model) is not None:
            yield Work("decoding", "latency", 2 * LATENCY)
            yield Work("decoding", "perplexity", 2 * min(JUDGED, self._samples) * prices.run)
            yield Work("decoding", "greedy", min(2 * TEXTS * CONTINUED * prices.run, 2 * SECONDS))


def _rounding(weight: Value, axes: tuple[int, ...]) -> float:
    """Estimate what choosing the codes of a weight takes: error feedback is quadratic in the length of a row."""
    shape = weight.constant.shape if weight.constant is not None else ()
    columns = math.prod(shape[axis] for axis in axes)
    return WEIGHT + ELEMENT * math.prod(shape) * columns
