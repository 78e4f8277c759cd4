"""Codes and scales for the weights of a plan: chosen together, several at a time, on what each layer reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np

from onnxq.calibration.data_free_moments import prior_moments
from onnxq.calibration.im2col import unfolding_of
from onnxq.calibration.layer_moments import MeasuredLayers
from onnxq.calibration.qparams import QParams
from onnxq.calibration.second_moments import LayerMoments
from onnxq.calibration.stats import Stats
from onnxq.errors import ModelError
from onnxq.ir import Node, Tensor, Value
from onnxq.ir.storage.scratch_file import SPOOLED, Spool
from onnxq.ir.storage.shelf import release_array
from onnxq.ops.forms.block_codes import BlockCodes
from onnxq.ops.forms.saturating_pairs import SAFE_BITS
from onnxq.ops.forms.scheme import Scheme
from onnxq.planning.planner import Plan, node_key
from onnxq.rounding.block_solver import BlockSolution, solve_blocks
from onnxq.rounding.gptq import RoundedWeight
from onnxq.rounding.jobs import RoundingJob, RoundingResult, WeightRows, solve, solve_all, solve_in_parts
from onnxq.rounding.round_to_nearest import nearest_codes, nearest_rows
from onnxq.rounding.saturation_cures import SaturationCure, merged, pair_cure, seven_bits
from onnxq.rounding.saturation_limits import (
    FULL,
    PairLimits,
    SummationOrder,
    full_pair_limits,
    largest_codes,
    largest_row_codes,
    pair_limits,
    summed_pairs,
)
from onnxq.rounding.summary import RoundingSummary, chosen_blocks, chosen_weight, summary
from onnxq.runtime.blas_threads import single_threaded_blas
from onnxq.runtime.memory import trim_heap

MOST_NAMES = 8  # in a note
CHECKED = 1 << 22  # elements of a weight that are checked at a time
LIMITED = "limited {} that would saturate on x86 processors without VNNI"


@dataclass(frozen=True)
class WeightSpec:
    """How a weight is to be coded.

    Attributes:
        axes: Axes that share a scale, ascending.
        bits: Width of the codes; 7 for codes of at most 63, chosen again where those of 8 were chosen.
        block_size: So many elements along the one axis share a scale; 0 for all of them.
        zero_points: Whether each block has a zero point, too; codes are unsigned then.
        summed: How an integer kernel sums over it whose products of two neighbours must not leave 16 bits; None where
            nothing limits the codes of neighbours.

    """

    axes: tuple[int, ...]
    bits: int = 8
    block_size: int = 0
    summed: SummationOrder | None = None
    zero_points: bool = False


MOST_FLOORED = 64  # weights whose codes with a least scale are kept
WeightKey = tuple[Tensor, WeightSpec]  # copies of a model share the tensors of their weights
# Squared errors of weights rounded to nearest, which hang on nothing else: each trial of a model asks for the same
_errors_to_nearest: WeakKeyDictionary[Tensor, dict[WeightSpec, float]] = WeakKeyDictionary()


class Weights:
    """Symmetric codes of every weight that a rewrite asks for.

    Args:
        plan: The decisions; without one, every weight is rounded to nearest.
        qparams: Scale and zero point of the activations that are quantized with calibrated ranges.
        stats: Statistics of a calibration; empty without data.
        layers: What the calibration measured of layers.
        spool: Where to keep codes of large weights; in memory without it.
        remark: What there is to say about all of them.
        quick: Leave out most of the search for codes, where only a trial is made.
        solutions: Codes of weights in blocks that have been chosen before.
        exact: Let codes be such that products of neighbours saturate on some processors, where a trial runs on exact
            arithmetic and is about something else.

    Raises:
        ModelError: A weight holds NaN or infinity.

    """

    def __init__(
        self,
        plan: Plan | None = None,
        qparams: Mapping[Value, QParams] | None = None,
        stats: Stats | None = None,
        layers: MeasuredLayers | None = None,
        spool: Spool | None = None,
        remark: str = "",
        quick: bool = False,
        exact: bool = False,
        solutions: Mapping[WeightKey, BlockSolution] | None = None,
    ) -> None:
        self._spool, self._remark, self._exact = spool, remark, exact
        self._solutions: dict[WeightKey, BlockSolution] = dict(solutions or {})
        self._blocks: dict[WeightKey, BlockCodes] = {}
        self._block_readers: dict[WeightKey, dict[str, None]] = {}
        self._jobs: dict[WeightKey, RoundingJob] = {}
        if plan is not None:
            jobs = rounding_jobs(plan, qparams or {}, stats or Stats(), layers or MeasuredLayers([]))
            self._jobs = {key: replace(job, quick=quick) for key, job in jobs.items()}
        self._rounded: dict[WeightKey, RoundedWeight] = {}
        self._summaries: list[RoundingSummary] = []  # of weights whose second moments are gone
        self._without_limits: dict[WeightKey, WeightKey] = {}  # the first of those that differ in limits alone
        self._take(solve_all(self._jobs) if self._jobs else {})
        self._known: dict[WeightKey, RoundingResult] = {}
        self._errors: dict[WeightKey, tuple[RoundingResult, float]] = {}
        self._relimited: dict[WeightKey, RoundedWeight] = {}  # for other limits, not asked for yet
        self._above_floors: dict[tuple[WeightKey, bytes], RoundingResult] = {}
        self._borrowed: set[WeightKey] | None = set()  # None once choices are settled
        self._within: dict[WeightKey, WeightKey] = {}  # codes that keep to limits which other readers need
        self._cures: dict[tuple[str, Tensor], SaturationCure] = {}
        self._saturating: dict[WeightKey, tuple[int, bool]] = {}  # pairs that could, and whether samples tell

    @property
    def fitted(self) -> bool:
        """Whether any codes were chosen by the layers' inputs."""
        return bool(self._jobs or self._summaries)

    def settle(self) -> bool:
        """Choose codes for kernels with other limits than those they were chosen for; tells whether there are any.

        Before, such a weight has the codes that are there if its kernel lets neighbours be larger, and else those of a
        quick search. They are almost as good, and of the variants that are tried, few are kept.
        """
        borrowed, self._borrowed = self._borrowed, None
        for key in borrowed or ():
            self._known.pop(key, None)
        self._relimited.clear()
        self._above_floors.clear()
        return bool(borrowed)

    def begin_notes(self) -> None:
        """Forget which nodes asked for codes so far: variants that were tried are not to be reported."""
        self._cures.clear()

    def forget_inputs(self) -> None:
        """Release second moments. Codes that would be chosen again stay as they are, or are nearest ones."""
        self._jobs = {}

    def completed(self, others: Weights) -> Weights:
        """Return the codes that were chosen here, and those of others for weights that none were chosen for."""
        made, known = Weights(solutions=others._solutions), {tensor for tensor, _ in self._rounded}
        made._take(self._rounded | {key: found for key, found in others._rounded.items() if key[0] not in known})
        return made

    def _take(self, rounded: Mapping[WeightKey, RoundedWeight]) -> None:
        """Take in codes that were searched for."""
        self._rounded |= rounded
        for key in rounded:
            self._without_limits.setdefault((key[0], replace(key[1], summed=None)), key)

    def learn(self, plan: Plan, qparams: Mapping[Value, QParams], stats: Stats, layers: MeasuredLayers) -> None:
        """Choose codes of 4 bit that another plan asks for; those of 8 bit stay as they are."""
        jobs = rounding_jobs(plan, qparams, stats, layers)
        jobs = {key: job for key, job in jobs.items() if key[1].bits < 7 and key not in self._rounded}
        self._jobs |= jobs
        self._take(solve_all(jobs) if jobs else {})
        for key in jobs:
            self._known.pop(key, None)
        if jobs:
            self._above_floors.clear()

    def choose(self, plan: Plan, qparams: Mapping[Value, QParams], stats: Stats, layers: MeasuredLayers) -> None:
        """Choose codes for some of the layers by a short search; this keeps no second moments of theirs.

        Args:
            plan: The decisions for these layers.
            qparams: Scale and zero point of activations.
            stats: What was measured of what the layers read.
            layers: What was measured of layers.

        """
        jobs = rounding_jobs(plan, qparams, stats, layers)
        for key, found in solve_in_parts({key: replace(job, quick=True) for key, job in jobs.items()}):
            self._summaries.append(chosen_weight(jobs[key], found))
            self._take({key: replace(found, codes=self.keep(found.codes))})
            key[0].release()

    def prepare(self, plan: Plan) -> None:
        """Choose the codes that a plan asks for with other limits than before, several weights at a time.

        `codes` would choose the same, one weight after the other. For a weight of several nodes it keeps to the limits
        of all of them, so that the file holds the weight once.
        """
        wanted = [(weight.constant, self._as_run(coding)) for weight, coding in searched_weights(plan)]
        keys = [(tensor, coding) for tensor, coding in wanted if tensor is not None]
        self._within = _limits_for_all(keys)
        keys = [key for key in keys if key not in self._within] if self._jobs else []
        jobs = {
            key: self._with_own_limits(key, chosen, None)
            for key in keys
            if key not in self._known and key not in self._relimited
            for chosen in [self._chosen_as(key)]
            if chosen != key and chosen in self._jobs and (self._borrowed is None or not _looser(key[1], chosen[1]))
        }
        self._relimited |= solve_all(jobs) if jobs else {}
        if self._borrowed is not None:
            self._borrowed |= jobs.keys()

    def codes(
        self, weight: Value, coding: WeightSpec, minimum: np.ndarray | None, reader: str, name: str = ""
    ) -> RoundingResult:
        """Quantize a weight.

        Args:
            weight: A constant float32 value.
            coding: How to.
            minimum: Least scale, broadcasting against the scales; for biases that would overflow otherwise.
            reader: The node that reads it, for the message.
            name: What lists call the node; `reader` by default.

        Returns:
            int8 codes of the weight's shape, int16 for 12 bits, and float32 scales of the same rank with 1 along the
            shared axes, or as many as there are blocks.

        """
        asked = weight.elements, self._as_run(coding)
        key = self._within.get(asked, asked)
        coding = key[1]
        if minimum is not None and coding.bits < 8:  # what is searched for with a floor could be another even above it
            return self._floored(weight, coding, minimum, reader)
        if key not in self._known:
            self._known[key] = self._choose(weight, coding, None, reader)
        coded = self._known[key]
        if minimum is not None and not _above(coded, minimum, coding):
            coded = self._floored(weight, coding, minimum, reader)
        if key in self._saturating and asked[1].summed is not None:
            pairs, measured = self._saturating[key]
            self._cures[name or reader, weight.elements] = pair_cure(name or reader, pairs, measured=measured)
        return coded

    def error(self, weight: Value, coding: WeightSpec, reader: str) -> float:
        """Return the squared error of all codes of a weight: found once, for it takes longer than a model to run.

        Args:
            weight: A constant float32 value.
            coding: How it is quantized.
            reader: The node that reads it, for the message.

        """
        key = weight.elements, self._as_run(coding)
        if key not in self._within and self._chosen_as(key) not in self._rounded:
            known_here = _errors_to_nearest.setdefault(weight.elements, {})
            if key[1] not in known_here:
                known_here[key[1]] = _squared_error(weight, self.codes(weight, coding, None, reader))
            return known_here[key[1]]
        coded, known = self.codes(weight, coding, None, reader), self._errors.get(key)
        if known is None or known[0] is not coded:
            known = coded, _squared_error(weight, coded)
            self._errors[key] = known
        return known[1]

    def _floored(self, weight: Value, coding: WeightSpec, minimum: np.ndarray, reader: str) -> RoundingResult:
        """Return codes with a least scale: found once, for variants of a model ask for the same again and again."""
        key = (weight.elements, coding), minimum.tobytes()
        if key not in self._above_floors:
            while len(self._above_floors) >= MOST_FLOORED:
                del self._above_floors[next(iter(self._above_floors))]
            self._above_floors[key] = self._choose(weight, coding, minimum, reader)
        return self._above_floors[key]

    def reduce(
        self, weight: Value, coding: WeightSpec, minimum: np.ndarray | None, reader: str, name: str = ""
    ) -> RoundingResult:
        """Quantize a weight with 7 bits, as `codes` does with 8; the report names the node."""
        self._cures[name or reader, weight.elements] = seven_bits(name or reader)
        return self.codes(weight, replace(coding, bits=SAFE_BITS), minimum, reader)

    def cures(self) -> tuple[SaturationCure, ...]:
        """Return what keeps products of each node's weights within 16 bits, in the order of their first question."""
        return merged(self._cures.values())

    def block_codes(self, weight: Value, coding: WeightSpec, reader: str) -> BlockCodes:
        """Quantize a weight in blocks with a scale and a zero point each.

        Args:
            weight: A constant float32 value.
            coding: How to, with one axis.
            reader: The node that reads it.

        Returns:
            Codes of the weight's shape; scales and zero points along the axis for each block.

        """
        key = (weight.elements, coding)
        self._block_readers.setdefault(key, {})[reader] = None
        if key not in self._blocks:
            rows = WeightRows(weight.elements.view(), coding.axes)
            if key not in self._solutions:
                found = solve_blocks(_finite(rows.array(), weight, reader), None, coding.bits, coding.block_size)
                self._solutions[key] = found.kept(self.keep)
                del found
            solved = self._solutions[key].codes
            codes, scales = rows.restore(solved.codes, solved.scales)
            zeros = rows.restore(solved.codes, solved.zeros)[1]
            weight.elements.release()
            release_array(solved.codes)
            release_array(solved.scales)
            self._blocks[key] = BlockCodes(codes, scales, zeros).kept(self.keep)
            del codes, scales, zeros
            if self._spool is not None:
                trim_heap(weight.elements.nbytes)
        return self._blocks[key]

    def _choose(self, weight: Value, coding: WeightSpec, minimum: np.ndarray | None, reader: str) -> RoundingResult:
        """Choose the codes of a weight: those that were searched for, or else to nearest."""
        key = (weight.elements, coding)
        chosen = self._chosen_as(key)
        large = weight.elements.nbytes >= SPOOLED and 7 <= coding.bits <= 8 and not coding.block_size
        if self._spool is not None and large and chosen not in self._rounded:
            return self._spooled(weight, coding, minimum, reader, self._spool)
        rows = WeightRows(weight.elements.numpy(), coding.axes)
        floor = None if minimum is None else rows.floor(minimum)
        job = self._jobs.get(key)
        pairs = _pairs(weight.elements, coding) if job is None else job.pairs
        plain: np.ndarray | None = None
        if pairs is not None and key not in self._saturating:
            plain = finite_rows(rows, weight, reader)
            self._saturating[key] = pairs.limited(plain), bool((pairs.largest < FULL).any())
        rounded = self._searched(key, chosen, floor)
        if rounded is None:
            plain = finite_rows(rows, weight, reader) if plain is None else plain
            codes, scales = rows.restore(*_nearest(plain, floor, coding, pairs))
        else:
            codes, scales = rows.restore(rounded.codes, rounded.scales)
            release_array(rounded.codes)
        weight.elements.release()
        return self.keep(codes), scales

    def _searched(self, key: WeightKey, chosen: WeightKey, floor: np.ndarray | None) -> RoundedWeight | None:
        """Return codes that were searched for, as `chosen`; search again if `floor` or other limits ask for that.

        None without such codes, or if they do not fit and their second moments are gone.
        """
        rounded, job, coding = self._rounded.get(chosen), self._jobs.get(chosen), key[1]
        if rounded is not None and self._summaries and chosen != key and not _looser(coding, chosen[1]):
            return None  # it has other limits
        low = rounded is not None and floor is not None and bool((rounded.scales < floor).any())
        if rounded is None or (job is None and (low or coding.bits != chosen[1].bits)):
            return None
        if self._borrowed is not None and not low and _looser(coding, chosen[1]):
            self._borrowed.add(key)
            return rounded
        if not low and key in self._relimited:
            return self._relimited.pop(key)
        if job is None or (chosen == key and not low):
            return rounded
        # rare, and only channels below the floor get coarser
        return solve_all({key: self._with_own_limits(key, chosen, floor)})[key]

    def _as_run(self, coding: WeightSpec) -> WeightSpec:
        """Return a coding as asked for, or without limits to neighbours where a trial runs on exact arithmetic."""
        return replace(coding, summed=None) if self._exact else coding

    def _with_own_limits(self, key: WeightKey, chosen: WeightKey, floor: np.ndarray | None) -> RoundingJob:
        """Return the job of a weight whose codes were chosen for another coding, with its own limits."""
        tensor, coding = key
        known = self._jobs[chosen]
        quick = known.quick or self._borrowed is not None
        job = replace(known, minimum_scale=floor, bits=coding.bits, quick=quick)
        if chosen[1].summed == coding.summed:
            return job
        return replace(job, pairs=_pairs(tensor, coding, self._largest(key, job.moments)))

    def _largest(self, key: WeightKey, moments: LayerMoments | None) -> np.ndarray | None:
        """Return the largest activation codes for limits that a plan did not have; None where samples do not tell."""
        tensor, coding = key
        in_rows = _largest_in_rows(moments, coding)
        if coding.summed is None or not coding.summed.calibrated or in_rows is None:
            return in_rows
        ranges = self._jobs.get((tensor, replace(coding, summed=coding.summed._replace(steps=0))))
        return None if ranges is None or ranges.pairs is None else np.maximum(in_rows, ranges.pairs.largest)

    def _chosen_as(self, key: WeightKey) -> WeightKey:
        """Find the coding for which the codes of a weight were searched, if not the one that is asked for."""
        if not self._rounded or key in self._rounded:
            return key
        tensor, coding = key
        plain = replace(coding, bits=8 if coding.bits == 7 else coding.bits, summed=None)
        return self._without_limits.get((tensor, plain), key)

    def _spooled(
        self, weight: Value, coding: WeightSpec, minimum: np.ndarray | None, reader: str, spool: Spool
    ) -> RoundingResult:
        summed = coding.summed if coding.bits == 8 else None
        limit = 2 ** (coding.bits - 1) - 1
        coded = nearest_codes(weight.elements.numpy(), coding.axes, minimum, spool, limit, summed)
        weight.elements.release()
        if coded is None:
            raise _unsound(weight, reader)
        return coded

    def chosen(self) -> tuple[RoundingSummary, ...]:
        """Tell how the codes were chosen of every weight that had a choice."""
        found = [*self._summaries, *(chosen_weight(job, self._rounded[key]) for key, job in self._jobs.items())]
        for key, readers in self._block_readers.items():
            columns = WeightRows(key[0].view(), key[1].axes).shape[1]
            found.append(chosen_blocks(tuple(readers), key[1].bits, self._solutions[key], columns))
        return tuple(found)

    def notes(self) -> tuple[str, ...]:
        """Say how the codes were chosen, and what the weights got other than the usual 8 bits."""
        found = summary(self.chosen()) + ((self._remark,) if self._remark else ())
        count = sum(cure.cure == "pair limits" for cure in self._cures.values())
        if count:
            found = (*found, LIMITED.format("1 weight" if count == 1 else f"{count} weights"))
        names = [cure.node for cure in self.cures() if cure.cure == "7 bits"]
        if not names:
            return found
        more = f" and {len(names) - MOST_NAMES} more nodes" if len(names) > MOST_NAMES else ""
        return (
            *found,
            f"gave the weights of {', '.join(names[:MOST_NAMES])}{more} 7 bits, so that no products saturate",
        )

    def keep(self, array: np.ndarray) -> np.ndarray:
        """Return the same array, out of memory where it is large and there is a spool."""
        return array if self._spool is None else self._spool.keep(array)


def searched_weights(plan: Plan) -> dict[tuple[Value, WeightSpec], list[Node]]:
    """List the weights that a search for codes is asked for, and the nodes that read each."""
    readers: dict[tuple[Value, WeightSpec], list[Node]] = {}
    for decision in plan.decisions:
        settings, found = decision.settings, unfolding_of(decision.node)
        if decision.form is None or settings is None or found is None:
            continue
        weight = decision.node.inputs[1 - found[0]]
        if settings.weight_bits > 8:  # to nearest: that is far below the error of others
            continue
        if settings.rounding == "output-error" and settings.granularity == "channel" and weight is not None:
            coding = _coding(decision.node, weight, settings)
            readers.setdefault((weight, coding), []).append(decision.node)
    return readers


def rounding_jobs(
    plan: Plan, qparams: Mapping[Value, QParams], stats: Stats, layers: MeasuredLayers
) -> dict[WeightKey, RoundingJob]:
    """List the weights whose codes are worth choosing: matrices and kernels with one scale for each output channel."""
    jobs: dict[WeightKey, RoundingJob] = {}
    for (weight, coding), nodes in searched_weights(plan).items():
        if coding.zero_points:
            continue
        moments = layers.moments(stats, *nodes)
        if moments is None and nodes[0].op_type != "Conv":  # nothing is known of its inputs that would gain anything
            continue
        rows = WeightRows(_finite(weight.elements.numpy(), weight, nodes[0].label), coding.axes)
        rows.release()
        noise = max(_noise(node, qparams, plan) for node in nodes)
        jobs[weight.elements, coding] = RoundingJob(
            rows,
            moments or prior_moments(nodes[0]),
            coding.bits,
            block_size=coding.block_size or None,
            noise=noise,
            readers=tuple(node.name or node_key(node) for node in nodes),
            pairs=_pairs(weight.elements, coding, _largest(nodes, moments, qparams, plan, coding)),
        )
    return jobs


def _coding(node: Node, weight: Value, settings: Scheme) -> WeightSpec:
    """Tell how the node's family codes its weight."""
    axes = _shared_axes(node, weight)
    blocked = settings.name.startswith("weight-") and node.op_type in ("MatMul", "Gemm")
    if blocked and settings.zero_points:
        return WeightSpec(axes, settings.weight_bits, settings.block_size, zero_points=True)
    block_size = settings.block_size if blocked else 0
    return WeightSpec(axes, settings.weight_bits, block_size, summed_pairs(node, weight, settings))


def _largest(
    nodes: Sequence[Node],
    moments: LayerMoments | None,
    qparams: Mapping[Value, QParams],
    plan: Plan,
    coding: WeightSpec,
) -> np.ndarray | None:
    """Return the largest activation codes that samples show in each column; None where they are not known."""
    if coding.summed is None or not coding.summed.calibrated or moments is None or moments.assumed:
        return _largest_in_rows(moments, coding)
    found = []
    for node in nodes:
        data = node.inputs[0]
        if data is None or data not in plan.ranges:
            return None
        scale, zero_point = qparams[plan.scale_owner(data)]
        raised = 128 if zero_point.dtype == np.int8 else 0  # onnxruntime makes uint8 of int8
        found.append(largest_codes(moments.high, float(scale), int(zero_point) + raised))
    return np.asarray(np.max(found, axis=0))


def _largest_in_rows(moments: LayerMoments | None, coding: WeightSpec) -> np.ndarray | None:
    """Return the largest codes that samples show where each row has a scale of its own; None where not known."""
    if coding.summed is None or not coding.summed.steps or moments is None or moments.assumed:
        return None
    return largest_row_codes(moments.share, coding.summed.steps)


def _shared_axes(node: Node, weight: Value) -> tuple[int, ...]:
    """Axes of a weight that an output channel sums over."""
    if node.op_type == "Conv":
        return tuple(range(1, len(weight.elements.shape)))
    first = node.inputs[0] is weight
    transposed = node.op_type == "Gemm" and node.attribute("transA" if first else "transB", 0)
    return (1 if first != bool(transposed) else 0,)


def _noise(node: Node, qparams: Mapping[Value, QParams], plan: Plan) -> float:
    """Variance of the rounding of a calibrated input: a uniform error over one step."""
    data = node.inputs[0]
    if data is None or data not in plan.ranges:
        return 0.0
    return float(qparams[plan.scale_owner(data)][0]) ** 2 / 12


def finite_rows(rows: WeightRows, weight: Value, reader: str) -> np.ndarray:
    """Return a weight as rows; raises ModelError where it holds NaN or infinity."""
    return _finite(rows.array(), weight, reader)


def _finite(rows: np.ndarray, weight: Value, reader: str) -> np.ndarray:
    height = max(CHECKED * len(rows) // max(rows.size, 1), 1)
    for start in range(0, len(rows), height):
        part = rows[start : start + height]
        if not np.isfinite(part).all():
            raise _unsound(weight, reader)
        release_array(part)
    return rows


def _unsound(weight: Value, reader: str) -> ModelError:
    return ModelError(
        f"'{weight.name}', read by {reader}: the weight holds NaN or infinity",
        "Export the model again from sound weights.",
    )


def _limits_for_all(keys: Sequence[WeightKey]) -> dict[WeightKey, WeightKey]:
    """Return for codings of one weight that differ in limits to neighbours alone the coding with all of their limits.

    Layers that share a weight, as those of ALBERT, would else store it once for each form that they have.
    """
    orders: dict[WeightKey, list[SummationOrder]] = {}
    for tensor, coding in keys:
        if coding.summed is not None:
            orders.setdefault((tensor, replace(coding, summed=None)), []).append(coding.summed)
    strictest = {key: _with_all_limits(found) for key, found in orders.items()}
    together = {}
    for key in keys:
        tensor, plain = key[0], replace(key[1], summed=None)
        summed = strictest.get((tensor, plain))
        if summed is not None and summed != key[1].summed:
            together[key] = tensor, replace(plain, summed=summed)
    return together


def _with_all_limits(orders: Sequence[SummationOrder]) -> SummationOrder | None:
    """Return what kernels with these orders need together; None where they have other neighbours or rows."""
    steps = {order.steps for order in orders if order.steps}
    if len(steps) > 1 or len({order._replace(calibrated=False, steps=0) for order in orders}) > 1:
        return None
    calibrated = any(order.calibrated for order in orders)
    return orders[0]._replace(calibrated=calibrated, steps=next(iter(steps), 0))


def _looser(coding: WeightSpec, chosen: WeightSpec) -> bool:
    """Whether codes are asked for that were chosen before with limits to the codes of neighbours, and need none."""
    return coding != chosen and coding == replace(chosen, summed=None)


def _above(coded: RoundingResult, minimum: np.ndarray, coding: WeightSpec) -> bool:
    """Whether codes of 8 bit that were made without a least scale are those that are made with it.

    Channels of zeros have a scale of their own without one, the least with it.
    """
    codes, scales = coded
    if coding.block_size or not codes.any(axis=coding.axes).all():
        return False
    return bool((scales > minimum.max(axis=coding.axes, keepdims=True)).all())


def _pairs(weight: Tensor, coding: WeightSpec, largest: np.ndarray | None = None) -> PairLimits | None:
    """Find the neighbours whose products must not leave 16 bits; None where any may."""
    if coding.summed is None or coding.bits < 8:
        return None
    if largest is None:
        return full_pair_limits(weight.shape, coding.axes, coding.summed)
    return pair_limits(weight.shape, coding.axes, coding.summed, largest)


def _squared_error(weight: Value, coded: RoundingResult) -> float:
    codes, scales = coded
    change = codes * scales - weight.elements.numpy()
    with np.errstate(over="ignore"):
        error = float(np.square(change).sum(dtype=np.float64))
    return error if np.isfinite(error) else float(np.square(change, dtype=np.float64).sum())


def _nearest(
    rows: np.ndarray, floor: np.ndarray | None, coding: WeightSpec, pairs: PairLimits | None = None
) -> RoundingResult:
    """Round to nearest with the scale that covers a row's largest element; with that of least error if it has few."""
    if coding.block_size or coding.bits < 7:
        with single_threaded_blas():
            found = solve(RoundingJob(rows, bits=coding.bits, block_size=coding.block_size or None))
        return found.codes, found.scales
    codes, scales = nearest_rows(rows, 2 ** (coding.bits - 1) - 1)
    least = scales
    if pairs is not None:
        least = np.maximum(scales, pairs.covering(rows).astype(np.float32))
    if floor is not None:
        # A channel of zeros has scale 1, with which its bias would be rounded to multiples of the activation's scale.
        least = np.where(rows.any(axis=1), np.maximum(least, floor), floor)
    coarse = least > scales
    codes[coarse] = np.rint(rows[coarse] / least[coarse, None]).astype(codes.dtype)
    return codes, least
