"""Codes and scales for the weights of a plan: chosen together, several at a time, on what each layer reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from onnxq.errors import ModelError
from onnxq.ir import Node, Tensor, Value
from onnxq.ir.spool import SPOOLED, Spool
from onnxq.ops.scheme import Scheme
from onnxq.quant.chosen import ChosenWeight, chosen_weight, summary
from onnxq.quant.code_search import RoundedWeight
from onnxq.quant.layers import MeasuredLayers
from onnxq.quant.nearest import nearest_codes
from onnxq.quant.plan import Plan, node_key
from onnxq.quant.priors import prior_moments
from onnxq.quant.qparams import QParams, quantize_weight
from onnxq.quant.rounding import Coded, RoundingJob, Rows, choose_all, choose_codes
from onnxq.quant.stats import Stats
from onnxq.quant.unfold import unfolding_of

MOST_NAMES = 8  # in a note


@dataclass(frozen=True)
class Coding:
    """How a weight is to be coded.

    Attributes:
        axes: Axes that share a scale, ascending.
        bits: Width of the codes; 7 for codes of at most 63, chosen anew where those of 8 were chosen.
        block_size: So many elements along the one axis share a scale; 0 for all of them.

    """

    axes: tuple[int, ...]
    bits: int = 8
    block_size: int = 0


Key = tuple[Tensor, Coding]  # copies of a model share the tensors of their weights


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

    Attributes:
        reduced: Nodes whose weights were given 7 bits, by name, in order.

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
    ) -> None:
        self._spool, self._remark = spool, remark
        self._jobs: dict[Key, RoundingJob] = {}
        if plan is not None:
            jobs = rounding_jobs(plan, qparams or {}, stats or Stats(), layers or MeasuredLayers([]))
            self._jobs = {key: replace(job, quick=quick) for key, job in jobs.items()}
        self._rounded: dict[Key, RoundedWeight] = choose_all(self._jobs) if self._jobs else {}
        self._known: dict[Key, Coded] = {}
        self.reduced: dict[str, None] = {}

    def learn(self, plan: Plan, qparams: Mapping[Value, QParams], stats: Stats, layers: MeasuredLayers) -> None:
        """Choose codes of 4 bit that another plan asks for; those of 8 bit stay as they are."""
        jobs = rounding_jobs(plan, qparams, stats, layers)
        jobs = {key: job for key, job in jobs.items() if key[1].bits < 7 and key not in self._rounded}
        self._jobs |= jobs
        self._rounded |= choose_all(jobs) if jobs else {}
        for key in jobs:
            self._known.pop(key, None)

    def codes(self, weight: Value, coding: Coding, minimum: np.ndarray | None, reader: str) -> Coded:
        """Quantize a weight.

        Args:
            weight: A constant float32 value.
            coding: How to.
            minimum: Least scale, broadcasting against the scales; for biases that would overflow otherwise.
            reader: The node that reads it, for the message.

        Returns:
            int8 codes of the weight's shape, and float32 scales of the same rank with 1 along the shared axes, or as
            many as there are blocks.

        """
        assert weight.constant is not None
        key = (weight.constant, coding)
        if minimum is not None and coding.bits < 8:  # what is searched for with a floor could be another even above it
            return self._coded(weight, coding, minimum, reader)
        if key not in self._known:
            self._known[key] = self._coded(weight, coding, None, reader)
        coded = self._known[key]
        if minimum is None or _above(coded, minimum, coding):
            return coded
        return self._coded(weight, coding, minimum, reader)

    def _coded(self, weight: Value, coding: Coding, minimum: np.ndarray | None, reader: str) -> Coded:
        assert weight.constant is not None
        key = (weight.constant, coding)
        chosen = (weight.constant, replace(coding, bits=8)) if coding.bits == 7 else key
        large = weight.constant.nbytes >= SPOOLED and coding.bits >= 7 and not coding.block_size
        if self._spool is not None and large and chosen not in self._rounded:
            return self._spooled(weight, coding, minimum, reader, self._spool)
        rows = Rows(weight.constant.numpy(), coding.axes)
        floor = None if minimum is None else rows.floor(minimum)
        if chosen in self._rounded:
            rounded = self._rounded[chosen]
            # rare, and only channels below the floor get coarser
            if chosen != key or (floor is not None and (rounded.scales < floor).any()):
                job = replace(self._jobs[chosen], minimum_scale=floor, bits=coding.bits)
                rounded = choose_all({key: job})[key]
            coded = rows.restore(rounded.codes, rounded.scales)
        else:
            coded = rows.restore(*_nearest(_finite(rows.array(), weight, reader), floor, coding))
        weight.constant.release()
        return self.keep(coded[0]), coded[1]

    def _spooled(self, weight: Value, coding: Coding, minimum: np.ndarray | None, reader: str, spool: Spool) -> Coded:
        assert weight.constant is not None
        coded = nearest_codes(weight.constant.numpy(), coding.axes, minimum, spool, 2 ** (coding.bits - 1) - 1)
        weight.constant.release()
        if coded is None:
            raise _unsound(weight, reader)
        return coded

    def chosen(self) -> tuple[ChosenWeight, ...]:
        """Tell how the codes were chosen of every weight that had a choice."""
        return tuple(chosen_weight(job, self._rounded[key]) for key, job in self._jobs.items())

    def notes(self) -> tuple[str, ...]:
        """Say how the codes were chosen, and what the weights got other than the usual 8 bits."""
        found = summary(self.chosen()) + ((self._remark,) if self._remark else ())
        if not self.reduced:
            return found
        names = list(self.reduced)
        more = f" and {len(names) - MOST_NAMES} more nodes" if len(names) > MOST_NAMES else ""
        return (
            *found,
            f"gave the weights of {', '.join(names[:MOST_NAMES])}{more} 7 bits, so that no products saturate",
        )

    def keep(self, array: np.ndarray) -> np.ndarray:
        """Give the same array, out of memory where it is large and there is a spool."""
        return array if self._spool is None else self._spool.keep(array)


def rounding_jobs(
    plan: Plan, qparams: Mapping[Value, QParams], stats: Stats, layers: MeasuredLayers
) -> dict[Key, RoundingJob]:
    """List the weights whose codes are worth choosing: matrices and kernels with one scale for each output channel."""
    readers: dict[tuple[Value, Coding], list[Node]] = {}
    for decision in plan.decisions:
        settings, found = decision.settings, unfolding_of(decision.node)
        if decision.form is None or settings is None or found is None:
            continue
        weight = decision.node.inputs[1 - found[0]]
        if settings.rounding == "output-error" and settings.granularity == "channel" and weight is not None:
            coding = _coding(decision.node, weight, settings)
            readers.setdefault((weight, coding), []).append(decision.node)
    jobs: dict[Key, RoundingJob] = {}
    for (weight, coding), nodes in readers.items():
        assert weight.constant is not None
        moments = layers.moments(stats, *nodes)
        if moments is None and nodes[0].op_type != "Conv":  # nothing is known of its inputs that would gain anything
            continue
        rows = Rows(_finite(weight.constant.numpy(), weight, nodes[0].label), coding.axes)
        rows.release()
        noise = max(_noise(node, qparams, plan) for node in nodes)
        jobs[weight.constant, coding] = RoundingJob(
            rows,
            moments or prior_moments(nodes[0]),
            coding.bits,
            block_size=coding.block_size or None,
            noise=noise,
            readers=tuple(node.name or node_key(node) for node in nodes),
        )
    return jobs


def _coding(node: Node, weight: Value, settings: Scheme) -> Coding:
    """Tell how the node's family codes its weight."""
    axes = _shared_axes(node, weight)
    blocked = settings.name.startswith("weight-") and node.op_type in ("MatMul", "Gemm")
    return Coding(axes, settings.weight_bits, settings.block_size if blocked else 0)


def _shared_axes(node: Node, weight: Value) -> tuple[int, ...]:
    """Axes of a weight that an output channel sums over."""
    assert weight.constant is not None
    if node.op_type == "Conv":
        return tuple(range(1, len(weight.constant.shape)))
    first = node.inputs[0] is weight
    transposed = node.op_type == "Gemm" and node.attribute("transA" if first else "transB", 0)
    return (1 if first != bool(transposed) else 0,)


def _noise(node: Node, qparams: Mapping[Value, QParams], plan: Plan) -> float:
    """Variance of the rounding of a calibrated input: a uniform error over one step."""
    data = node.inputs[0]
    if data is None or data not in plan.ranges:
        return 0.0
    return float(qparams[plan.scale_owner(data)][0]) ** 2 / 12


def _finite(rows: np.ndarray, weight: Value, reader: str) -> np.ndarray:
    if not np.isfinite(rows).all():
        raise _unsound(weight, reader)
    return rows


def _unsound(weight: Value, reader: str) -> ModelError:
    return ModelError(
        f"'{weight.name}', read by {reader}: the weight holds NaN or infinity",
        "Export the model again from sound weights.",
    )


def _above(coded: Coded, minimum: np.ndarray, coding: Coding) -> bool:
    """Whether codes of 8 bit that were made without a least scale are those that are made with it.

    Channels of zeros have a scale of their own without one, the least with it.
    """
    codes, scales = coded
    if coding.block_size or not codes.any(axis=coding.axes).all():
        return False
    return bool((scales > minimum.max(axis=coding.axes, keepdims=True)).all())


def _nearest(rows: np.ndarray, floor: np.ndarray | None, coding: Coding) -> Coded:
    """Round to nearest with the scale that covers a row's largest element; with that of least error if it has few."""
    if coding.block_size or coding.bits < 7:
        found = choose_codes(rows, None, bits=coding.bits, block_size=coding.block_size or None)
        return found.codes, found.scales
    codes, scales, _ = quantize_weight(rows, 0, f"int{coding.bits}")
    if floor is not None:
        # A channel of zeros has scale 1, with which its bias would be rounded to multiples of the activation's scale.
        scales = np.where(rows.any(axis=1), np.maximum(scales, floor), floor)
        coarse = scales == floor
        codes[coarse] = np.rint(rows[coarse] / scales[coarse, None]).astype(codes.dtype)
    return codes, scales
