"""The work that a run is expected to do, step by step, in seconds on a usual processor; see `onnxq.progress`.

It is estimated from the plan: the variants that each search is likely to try, their samples, and the table of kernel
times. Only how the parts compare counts, and only at first: a run soon measures what each kind of work takes. The
constants were fitted to runs of `tests/bench/bench_progress.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from onnxq.calibration.im2col import unfolding_of
from onnxq.calibration.layer_moments import NO_LAYERS, LayerWork, MeasuredLayers, rows_read
from onnxq.calibration.thinning import Thinning
from onnxq.data.generated_text import text_input
from onnxq.ir import Node, Value
from onnxq.ir.operator_traits import Trait, operators_with
from onnxq.planning.decision import Decision
from onnxq.progress import Work
from onnxq.rounding.weights import searched_weights
from onnxq.runtime.fork import can_fork
from onnxq.runtime.workers import worker_count
from onnxq.search.budget import LAST_GOAL, Budget
from onnxq.search.candidates import between_forms, float_time, is_priced, predicted_time, searchable
from onnxq.search.held_out import FOLDS, REST, HoldoutSplit
from onnxq.search.meet_budget import FEW_SPLITS, goals_of
from onnxq.search.mixed_precision import FREE_TRIALS
from onnxq.search.range_trial import LEAST_FOLDS
from onnxq.search.sensitivity import ALL_ALONE, GROUPS, PASS_SAMPLES, SPLITS, weighted_decisions
from onnxq.search.trials.equalization_trial import applicable
from onnxq.search.trials.rescaling_trial import CHANNEL_SAMPLES, methods_to_try
from onnxq.search.variants import layers_in_doubt
from onnxq.stages.measure import layers_needing_moments
from onnxq.stages.prepared import Prepared
from onnxq.targets.assumed_shapes import assumed_shape, count
from onnxq.verification.decoding import PROMPT, SECONDS
from onnxq.verification.metrics.greedy import CONTINUED, TEXTS

UNKNOWN = 100  # samples, if their number is not known
# Seconds. MEASURED: for the statistics of a value of a sample. COUNTED: for one of its elements. EVALUATED: for an
# element that the evaluator makes. COPIED: for one of a window. UNFOLDED: for one of a row whose second moments are
# taken. MULTIPLIED: for a product of two of these
MEASURED, EVALUATED, COPIED, COUNTED, UNFOLDED, MULTIPLIED = 3.5e-4, 3e-9, 2e-9, 7e-9, 6e-9, 4.5e-11
# Times of the float model's by the table: a session that gives tensors, the evaluator, a session of exact arithmetic.
# And times of the quantized model's in the last
ROUGH, FULL, RUN, VARIANT_RUN = 1.2, 2.0, 1.7, 1.3
# Seconds for a node. VARIANT: to rewrite one that is quantized. OPEN: to copy it and open a session. TAPPED: for one
# that gives tensors. CALLED: to evaluate it. For an element of a weight, ROUNDED: to quantize it. LOADED: to open it
VARIANT, OPEN, TAPPED, CALLED, ROUNDED, LOADED = 8e-4, 1e-4, 2e-4, 6e-5, 1.6e-8, 5e-9
# Seconds for a row of a weight by its squared length, for a weight, and the share of both that a quick search takes
ELEMENT, WEIGHT, QUICK = 1.6e-9, 1.7e-2, 0.6
OPENED = 1e-3  # seconds for a node of two models that are made ready to be compared
COMPARED = 1.5  # times of both models' runs: their outputs are compared, too
LATENCY, LATENCY_RUNS = 0.2, 7  # seconds that pairs of runs mostly take, and how many there are at least
FAMILY_SAMPLES, LAYER_SAMPLES = 4, 8
LIKELY, PROBABLE, POSSIBLE, RARE = 0.8, 0.5, 0.3, 0.15
FLOAT32 = 4  # bytes
# Times of a trial's: where channels of a copy are divided first, and where a plan is made for it. IN_PART: the share of
# that where it runs from its first change on
RESCALED, SEARCHED, IN_PART = 2.0, 1.2, 0.7
CORRECTED = 0.15  # times of a trial's where biases alone change
ANOTHER = 0.8  # of what one processor does, each more adds where copies of the process share the work
AT_ONCE = 1.25  # times of what a process takes alone, where another one works as well
ALONE = ("compare", "latency", "greedy", "details")  # what one process does by itself
# Trials for a goal that is missed, and for all of them along minimum cuts. In dB: how far the first result is above the
# trials before, whose codes are chosen quickly
GOAL_TRIALS, CUT_TRIALS, ABOVE_TRIALS = 3, 8, 2.0
# The share of weights without other forms whose codes are chosen once more, as what a node reads is coded otherwise
AGAIN = 0.3
RECURRENT = ("LSTM", "GRU", "RNN")
VIEWS = operators_with(Trait.IN_ORDER) | {"Transpose", "Slice", "Split"}  # NumPy copies nothing
USUALLY_FIRST, USUALLY_OPEN = 4, 3  # ways to choose ranges that run on the first folds, and on more


@dataclass(frozen=True)
class _Prices:
    """Seconds of single pieces of work for one model, in one process.

    Attributes:
        run: Of the float model on a sample.
        quantized: The same of the quantized model.
        nodes: How many nodes it has.
        rewritten: How many of them are quantized.
        weights: Elements of its weights.
        made: Elements of all tensors that it computes of a sample; views of others do not count.
        windows: Elements of all windows that a Conv reads of a sample.
        calls: How often the evaluator calls NumPy about: for a node, or for each step of a recurrent one.
        measured: Values whose statistics are taken, and their elements.

    """

    run: float
    quantized: float
    nodes: int
    rewritten: int
    weights: int
    made: int
    windows: int
    calls: int
    measured: tuple[int, int]

    @classmethod
    def of(cls, prepared: Prepared) -> _Prices:
        """Count the work of a plan, with the shapes of the first sample."""
        plan, model = prepared.plan, prepared.model
        nodes, values, shapes = model.graph.nodes, plan.calibrated(), plan.costs.shapes
        return cls(
            float_time(plan) / 1e9,
            predicted_time(plan, plan.costs) / 1e9,
            len(nodes),
            len(plan.quantized()),
            model.weight_bytes // FLOAT32,
            sum(count(value, shapes) for node in nodes if node.op_type not in VIEWS for value in node.makes),
            sum(_windows(node, shapes) for node in nodes),
            sum(_calls(node, shapes) for node in nodes),
            (len(values), sum(count(value, shapes) for value in values)),
        )

    def rough(self, samples: int, layers: LayerWork = NO_LAYERS) -> float:
        """Measure tensors of onnxruntime, and what layers read."""
        values, elements = self.measured
        each = ROUGH * self.run + MEASURED * values + COUNTED * elements + _moments(layers)
        return samples * each + TAPPED * self.nodes + LOADED * self.weights

    def evaluate(self, samples: int) -> float:
        return samples * (FULL * self.run + CALLED * self.calls + EVALUATED * self.made + COPIED * self.windows)

    def full(self, samples: int, layers: LayerWork) -> float:
        """Measure tensors of the evaluator, and what layers read."""
        return self.evaluate(samples) + samples * (MEASURED * self.measured[0] + _moments(layers))

    def float_outputs(self, samples: int) -> float:
        return samples * RUN * self.run + OPEN * self.nodes + LOADED * self.weights

    def trial(self, samples: int) -> float:
        written = VARIANT * self.rewritten + OPEN * self.nodes + ROUNDED * self.weights
        return written + samples * VARIANT_RUN * self.quantized

    def pair(self, samples: int) -> float:
        """Run both models."""
        return samples * (self.run + self.quantized)


def _windows(node: Node, shapes: Mapping[str, tuple[int, ...]]) -> int:
    found = unfolding_of(node) if node.op_type == "Conv" else None
    value = node.input(0)
    if found is None or value is None or found[1].positions == 1:
        return 0
    return rows_read(node, value, found[1], shapes) * found[1].columns


def _calls(node: Node, shapes: Mapping[str, tuple[int, ...]]) -> int:
    read = node.input(0) if node.op_type in RECURRENT else None
    shape = assumed_shape(read, shapes) if read is not None else None
    directions = 2 if node.attribute("direction", "forward") == "bidirectional" else 1
    return shape[0] * directions if shape else 1


def _moments(layers: LayerWork) -> float:
    return UNFOLDED * layers.elements + MULTIPLIED * layers.products


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
        self._prices = _Prices.of(prepared)
        self._samples = split.samples.count or UNKNOWN
        self._few = split.expected_count(1.0)
        self._half = max(self._few // 2, 1)
        self._fitted = max(min(split.expected_fitting(), self._samples) // 2, 1)  # a half that codes are chosen on
        self._shares = split.shareable
        self._tries = with_data and not prepared.fast and not split.samples.made_up and self._few > 1
        self._layers = layers_needing_moments(prepared.plan)

    def work(self) -> Iterator[Work]:
        """List what is to be done, in order; it takes less time where copies of the process share it."""
        copies = self._shares and can_fork()
        share = 1 / (1 + ANOTHER * (worker_count(0) - 1)) if copies else 1.0
        if not self._with_stats:
            yield from _shared(self._rescale(), share)
            yield from self._holdout(share, beside=copies)
        yield from _shared(self._calibrate(), share)
        if self._with_data or self._budget.is_set:
            yield from _shared(self._search(), share)
        elif not self._with_stats and not self._prepared.fast:
            yield from _shared(self._contributions(), share)
        yield from _shared(self._compare(), share)

    def _trials(
        self, step: str, count: int, samples: int, chance: float = 1.0, *, share: float = 1.0
    ) -> Iterator[Work]:
        each = self._prices.trial(samples) * (SEARCHED if step == "search" else 1.0) * share
        for _ in range(count):
            yield Work(step, "judge", each, chance)

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
        channels = prices.evaluate(min(self._samples, CHANNEL_SAMPLES))
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
            yield from trials(1 + methods, LIKELY)
            yield from halves(POSSIBLE)  # of which each is judged on the other
            yield from trials(2, POSSIBLE)
            yield Work("rescale", "measure", channels, POSSIBLE)

    def _holdout(self, share: float, *, beside: bool) -> Iterator[Work]:
        """List what held-out samples choose; `beside`: measured ranges are tried in a copy, while codes are.

        Each of the two has a processor then. Copies share what is left of the codes once the ranges are found.
        """
        if not self._tries:
            return
        codes = list(self._codes())
        ranges = list(self._ranges()) if "auto" in self._prepared.plan.range_methods else []
        if not beside or not codes or not ranges:
            yield from _shared((*codes, *ranges), share)
            return
        yield from _shared((work for work in ranges if work.kind == "measure roughly"), share)
        ranges = [work for work in ranges if work.kind != "measure roughly"]
        one, other = (sum(work.seconds * work.chance for work in part) for part in (codes, ranges))
        alone = min(other / one, 1.0)
        yield from _shared(codes, alone * AT_ONCE + (1 - alone) * share)
        yield Work("trial", "ranges", max(other - one, 0.0), PROBABLE)

    def _calibrate(self) -> Iterator[Work]:
        plan = self._prepared.plan
        if self._with_data and not self._with_stats and (plan.calibrated() or self._layers.values):
            layers = self._layers.work(plan.costs.shapes)
            yield Work("calibrate", "measure", self._prices.full(self._samples, layers))
        if self._layers.values or plan.quantized():
            yield Work("round", "round", self._rounding())

    def _codes(self) -> Iterator[Work]:
        layers = self._in_doubt
        if layers.values:
            taken = layers.work(self._prepared.plan.costs.shapes, Thinning.of(self._fitted))
            yield Work("trial", "measure roughly", self._prices.rough(self._fitted, taken))
            yield Work("trial", "judge", self._prices.float_outputs(self._half), PROBABLE)
            yield from self._trials("trial", 2, self._half)
            yield Work("trial", "round", QUICK * self._rounding(layers))

    def _ranges(self) -> Iterator[Work]:
        taken = self._split.expected_count(self._split.room)
        folds = min(FOLDS, taken)
        each, rest = taken // folds, min(max(self._samples - taken, 0), REST)
        parts = (*[each] * folds, *([rest] if rest else []))
        yield Work("trial", "measure roughly", sum(self._prices.rough(samples) for samples in parts))
        for fold in range(folds):
            yield Work("trial", "judge", self._prices.float_outputs(each), PROBABLE)  # half of them have run before
            yield from self._trials("trial", USUALLY_FIRST if fold < LEAST_FOLDS else USUALLY_OPEN, each)

    def _search(self) -> Iterator[Work]:
        prices, quick = self._prices, self._split.searched
        nodes = len(weighted_decisions(self._prepared.plan))
        strict = self._budget.is_accuracy
        yield from self._contributions()
        yield from self._trials("search", 1, quick)
        yield from self._trials("search", FREE_TRIALS, quick, PROBABLE)
        yield from self._trials("search", 4, quick, POSSIBLE)
        yield Work("search", "measure", prices.evaluate(self._samples), RARE)  # values that other forms ask for
        yield Work("search", "round", self._rounding_again(), PROBABLE, LAST_GOAL)
        halvings = math.ceil(math.log2(nodes + 1))
        if strict:
            yield from self._trials("search", 1, self._samples)
            yield from self._trials("search", 2 * halvings, self._samples, PROBABLE)
        else:
            yield Work("search", "judge", prices.float_outputs(self._few), PROBABLE)
            yield from self._goals()
        if self._budget.max_size is not None:
            yield from self._trials("search", halvings, quick, PROBABLE)
        if self._tries and not self._with_stats:
            yield from self._cross_validate()
        if self._tries and any(d.settings and d.settings.bias_correction for d in self._prepared.plan.decisions):
            yield Work("correct", "biases", 2 * prices.evaluate(self._half), RARE)
            yield from self._trials("correct", 2, self._half, POSSIBLE, share=CORRECTED)

    def _contributions(self) -> Iterator[Work]:
        """List the runs that show what each node adds to the error."""
        prices, quick = self._prices, self._split.searched
        nodes = len(weighted_decisions(self._prepared.plan))
        yield Work("search", "judge", prices.float_outputs(quick))
        if nodes > ALL_ALONE:
            yield Work("search", "layers", 3 * prices.evaluate(PASS_SAMPLES))
        groups = GROUPS + 2 * (SPLITS if self._budget.is_accuracy else FEW_SPLITS)
        alone = (nodes, quick) if nodes <= ALL_ALONE else (groups, self._split.grouped)
        yield from self._trials("search", *alone, share=IN_PART)

    def _goals(self) -> Iterator[Work]:
        """List the trials of nodes to compute in float, which only results of low SQNR ask for."""
        each, goals = SEARCHED * self._prices.trial(self._few), goals_of(self._prepared.plan)
        computing = sum(one.scheme != "weight-int8" for one in self._open_ones)
        along_cuts = is_priced(self._prepared.plan) and 2 * len(self._in_other_forms) < computing
        for goal, _ in goals[-1:] if along_cuts else goals:
            for _ in range(CUT_TRIALS if along_cuts else GOAL_TRIALS):
                yield Work("search", "judge", each, RARE, goal - ABOVE_TRIALS)

    def _cross_validate(self) -> Iterator[Work]:
        """List the judging of one half; codes were chosen on the other before, to see whether they serve others."""
        prices = self._prices
        half = self._fitted
        codes = self._in_doubt.values
        yield Work("cross-validate", "measure roughly", prices.rough(half), RARE if codes else 1.0)
        yield Work("cross-validate", "judge", prices.float_outputs(half))
        yield from self._trials("cross-validate", 4, half)

    def _rounding(self, layers: MeasuredLayers | None = None) -> float:
        """Estimate what choosing the codes of all weights takes, or of those of some layers."""
        searched = searched_weights(self._prepared.plan).items()
        wanted = [key for key, nodes in searched if layers is None or not layers.inputs.keys().isdisjoint(nodes)]
        return sum(_rounding(weight, coding.axes) for weight, coding in wanted)

    def _rounding_again(self) -> float:
        """Return the time for codes of those weights that a search for goals tries in other forms, and of some more."""
        return sum(
            _rounding(weight, coding.axes) * (AGAIN if self._in_other_forms.isdisjoint(readers) else 1.0)
            for (weight, coding), readers in searched_weights(self._prepared.plan).items()
        )

    @cached_property
    def _in_doubt(self) -> MeasuredLayers:
        """Layers whose codes are tried on held-out samples."""
        return layers_in_doubt(self._prepared.plan, self._split.samples.count)

    @cached_property
    def _open_ones(self) -> list[Decision]:
        """Nodes that a search may return to float."""
        plan = self._prepared.plan
        return [one for one in weighted_decisions(plan) if searchable(plan, one)]

    @cached_property
    def _in_other_forms(self) -> set[Node]:
        """Nodes that have a form between 8 bit and float."""
        plan, opset = self._prepared.plan, self._prepared.model.opset
        return {one.node for one in self._open_ones if between_forms(plan, one, opset)}

    def _compare(self) -> Iterator[Work]:
        prices = self._prices
        samples = 2 if self._prepared.fast else self._samples
        yield Work("verify", "compare", COMPARED * prices.pair(samples) + OPENED * prices.nodes)
        if not self._prepared.fast:
            yield Work("verify", "latency", min(LATENCY, 1000 * prices.run) + prices.pair(LATENCY_RUNS))
        if self._detailed:
            yield Work("layers", "layers", 3 * prices.evaluate(min(LAYER_SAMPLES, self._samples)))
            yield Work("details", "details", 1.0 + 8 * prices.run)
        yield Work("families", "families", 2 * prices.evaluate(FAMILY_SAMPLES), PROBABLE)
        if self._budget.metric is not None:
            yield Work("metric", "metric", 2 * prices.pair(self._samples))
        if self._with_data and not self._prepared.fast and text_input(self._prepared.model) is not None:
            texts = min(TEXTS, self._samples)
            yield Work("decoding", "latency", LATENCY + min(LATENCY, 1000 * prices.run / PROMPT))
            yield Work("decoding", "greedy", min(texts * CONTINUED * prices.run, SECONDS) + prices.pair(texts))


def _shared(work: Iterable[Work], share: float) -> Iterator[Work]:
    """Yield work in the time that it takes where copies of the process share what one does not do alone."""
    for one in work:
        yield one if one.kind in ALONE else replace(one, seconds=one.seconds * share)


def _rounding(weight: Value, axes: tuple[int, ...]) -> float:
    """Estimate what choosing the codes of a weight takes: error feedback is quadratic in the length of a row."""
    shape = weight.constant.shape if weight.constant is not None else ()
    columns = math.prod(shape[axis] for axis in axes)
    return WEIGHT + ELEMENT * math.prod(shape) * columns
