"""Bias correction: each output channel's mean error, with everything before it quantized, taken out of its bias.

Rounding shifts the means of a layer's outputs, and every layer behind sees shifted inputs. The float and the quantized
model run in step, node by node. The mean difference of a layer's output channels goes into its bias. The following
layers see the corrected output, so one run over the samples corrects all layers in order. This is sequential bias
correction (Nagel 2019, https://arxiv.org/abs/1906.04721, section 4.2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from onnxq.data.samples import Sample, Samples, few_samples
from onnxq.errors import ModelError
from onnxq.evaluator import Evaluator, arithmetic
from onnxq.evaluator.several_runs import several_runs
from onnxq.ir import Model, Node, Patch, Value, commit
from onnxq.ir.shape_inference.types import infer_types
from onnxq.planning.decision import Choices, Plan
from onnxq.planning.planner import node_key
from onnxq.progress import working
from onnxq.runtime.fork import ahead_in_copy
from onnxq.search.held_out import TRIAL_SAMPLES
from onnxq.search.mixed_precision import decibels_without
from onnxq.search.resolution import gained, round_to_resolution
from onnxq.search.sqnr_evaluator import ENOUGH
from onnxq.search.trials.rescaling_trial import LEAST_GAIN
from onnxq.search.variants import Variants
from onnxq.stages.prepared import Prepared
from onnxq.targets.assumed_shapes import TensorBytes

Shifts = Mapping[str, np.ndarray]  # what to add to a bias, by the first output of the node that adds it

CORRECTED = "corrected biases of {} nodes by their mean output error"
MOST_BYTES = 1 << 29  # of the tensors of all samples together: they are in memory at the same time, in both models
STREAMED_BYTES = 1 << 27  # of those of large models


@dataclass(frozen=True)
class BiasSite:
    """A bias that can be corrected.

    Attributes:
        key: First output of the node that adds the bias.
        exact: The float tensor behind it.
        given: The same in the quantized model, before it is quantized.
        axis: Its channels.

    """

    key: str
    exact: str
    given: str
    axis: int


def correct_biases(prepared: Prepared, variants: Variants, choices: Choices) -> Prepared:
    """Correct the biases of a model that is about to be quantized, if that gains anything."""
    found = correct(variants, choices)
    if not found:
        return prepared
    shift_biases(prepared.model, found)
    return replace(prepared, notes=(*prepared.notes, CORRECTED.format(len(found))))


def correct(variants: Variants, choices: Choices) -> Shifts:
    """Find what to add to the biases on half of the samples, if that gains on the other half.

    A mean over a dozen samples is known well enough, and shrunk otherwise. To find them once more on all samples would
    take two to four times as long. Codes were chosen on these samples as well. From `ENOUGH`
    on, nothing is corrected: the little error that is left of these samples is not that of others.

    Corrected biases take away what is the same in all samples. The shifts are only computed where that is so much of
    the error of the worst output that it can gain `LEAST_GAIN`.

    Args:
        variants: The quantized model.
        choices: What was settled for single nodes.

    Returns:
        The shifts; empty where they gain nothing, or where the evaluator does not know an operator.

    """
    wanted = any(d.settings and d.settings.bias_correction for d in variants.prepared.plan.decisions)
    halves = variants.split.halves if wanted else None
    if halves is None:
        return {}

    fitted: dict[str, np.ndarray] = {}

    def candidates() -> Iterator[Model]:
        """Make the model as it is, and then corrected, if there is anything to correct."""
        quantized = variants.model(choices)
        yield quantized
        possible = decibels_without(variants.split.judge.constant_share(quantized))
        if round_to_resolution(possible) < LEAST_GAIN:
            return
        fitted.update(shifts(variants, choices, quantized, halves[0]))
        if fitted:
            yield variants.model(choices, partial(shift_biases, shifts=fitted))

    try:
        reached = variants.split.judge.sqnrs(candidates(), least=LEAST_GAIN)
        before = next(reached)
        gains = before < ENOUGH and gained(before, next(reached, -math.inf)) >= LEAST_GAIN
    except ModelError:
        return {}
    return fitted if gains else {}


def shifts(variants: Variants, choices: Choices, quantized: Model, samples: Samples) -> dict[str, np.ndarray]:
    """Find what to add to the biases so that the means over the samples are right.

    Args:
        variants: Where the quantized model is from.
        choices: What was settled for single nodes.
        quantized: The model with these choices; it may be changed.
        samples: What to run.

    """
    prepared, _ = variants.replan(choices)
    found = {place.given: place for place in bias_sites(prepared.plan, quantized)}
    both = Evaluator(prepared.model.copy(), wide=True), Evaluator(quantized, wide=True)
    most = STREAMED_BYTES if variants.split.streamed else MOST_BYTES
    feeds = paired_samples(both, samples, prepared.plan.costs.shapes, most)
    reference, result = both
    with arithmetic(), ahead_in_copy(partial(_expected_means, reference, feeds, list(found.values()))) as expected:
        return _Corrected(result, feeds, found, expected).run()


def paired_samples(
    both: Sequence[Evaluator],
    samples: Samples,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    most: int | None = None,
) -> list[Sample]:
    """Take as many samples as fit into memory together, judged by the first of them; one at least.

    Models may leave sizes inside open, such as numbers of words. They are known only after a run.

    Args:
        both: The float model and the quantized one, which will run side by side.
        samples: Where to take them from.
        shapes: Of values whose sizes the float model leaves open, for one of the samples.
        most: Bytes of the tensors of all of them, `MOST_BYTES` by default.

    """
    first = next(iter(samples))
    sizes = TensorBytes(both[0].model, first, shapes or {})
    taken = sum(_peak_bytes(evaluator, first, sizes) for evaluator in both)
    share = (most or MOST_BYTES) / max(taken, 1)  # how many of this size
    return few_samples(samples, TRIAL_SAMPLES, share * sum(array.size for array in first.values()))


def _peak_bytes(evaluator: Evaluator, sample: Sample, sizes: TensorBytes) -> int:
    """Return how many bytes a run takes, by a run only where sizes alone do not say it."""
    try:
        infer_types(evaluator.model)
        known = evaluator.expected_peak_bytes(sample, sizes.of)
    except ModelError:
        known = None
    return evaluator.peak_bytes(sample) if known is None else known


def bias_sites(plan: Plan, quantized: Model) -> list[BiasSite]:
    """List the biases of quantized layers of the main graph that are constants, or that a Conv or Gemm can be given."""
    made = []
    for decision in plan.decisions:
        node = decision.node
        settings = decision.settings
        if decision.form is None or decision.form.passive or settings is None or not settings.bias_correction:
            continue
        if node.graph.parent is not None:
            continue
        adder = bias_adder(node)
        output = adder.outputs[0] if adder is not None else None
        if adder is None or output is None or output.shape is None:
            continue
        exact, read = output, plan.outputs.get(node, output)
        given = quantize_input(quantized.graph.values.get(read.name))
        if given is None:
            continue
        if read is not output and (given.producer is None or given.producer.op_type != node.op_type):
            exact = read  # a clamp stands between the layer and its quantized output
        made.append(
            BiasSite(node_key(adder), exact.name, given.name, 1 if node.op_type == "Conv" else len(output.shape) - 1)
        )
    return made


def bias_adder(node: Node) -> Node | None:
    """Return the node that adds a layer's bias: itself, or the Add of a constant vector behind a MatMul."""
    if node.domain or not node.outputs or node.outputs[0] is None:
        return None
    if node.op_type == "MatMul":
        return _vector_add(node, node.outputs[0])
    bias = node.input(2)
    may_lack_one = node.op_type == "Conv"
    if may_lack_one or (node.op_type == "Gemm" and node.attribute("beta", 1.0) == 1.0):
        adds = may_lack_one if bias is None else _is_vector(bias, _channels(node))
        return node if adds else None
    return None


def _vector_add(node: Node, output: Value) -> Node | None:
    """Return the Add of a constant vector, one element for each channel, that alone reads a product."""
    if len(output.uses) != 1 or output.is_output:
        return None
    after = next(iter(output.uses)).node
    if after.op_type != "Add" or after.domain or after.graph is not node.graph:
        return None
    return after if any(v is not None and _is_vector(v, _channels(node)) for v in after.inputs) else None


def quantize_input(value: Value | None) -> Value | None:
    """Step back over a Q/DQ pair to what the layer gives."""
    if value is None or value.producer is None or value.producer.op_type != "DequantizeLinear":
        return value
    codes = value.producer.inputs[0]
    if codes is None or codes.producer is None or codes.producer.op_type != "QuantizeLinear":
        return value
    return codes.producer.inputs[0]


def shift_biases(model: Model, shifts: Shifts) -> None:
    """Add to the biases of a float model."""
    patches = []
    for node in model.graph.nodes:
        shift = shifts.get(node_key(node)) if shifts else None
        if shift is None:
            continue
        patch = Patch(model.graph, node, f"correct the bias of {node.label}")
        slot = _bias_slot(node)
        old = node.input(slot)
        known = np.zeros(len(shift), np.float32) if old is None or old.constant is None else old.constant.numpy()
        hint = f"{old.name if old is not None else node_key(node)}_corrected"
        patch.rewire(node, slot, patch.constant(known + shift.astype(known.dtype), hint))
        patches.append(patch)
    commit(patches)


def _bias_slot(node: Node) -> int:
    if node.op_type in ("Conv", "Gemm"):
        return 2
    return next(slot for slot, value in enumerate(node.inputs) if value is not None and value.constant is not None)


def _expected_means(
    reference: Evaluator, feeds: Sequence[Mapping[str, Any]], found: Iterable[BiasSite]
) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Run the float model on all samples, node by node; yields each tensor behind a site and its means by sample."""
    axes: dict[str, int] = {}
    for site in found:
        axes.setdefault(site.exact, site.axis)
    runs = [reference.begin(feed) for feed in feeds]
    with several_runs() as compute:
        for step in reference.steps:
            compute(runs, step)
            for value in step.node.outputs:
                if value is not None and value.name in axes:
                    yield value.name, [channel_means(run.values[value], axes[value.name]) for run in runs]
            for run in runs:
                run.release(step)


class _Corrected:
    """The quantized model on all samples, node by node, each bias corrected before what follows is computed.

    Args:
        result: The quantized model.
        feeds: The samples.
        found: Its biases, by the tensor that shows their error.
        expected: Tensors of the float model in its order, with their means by sample.

    """

    def __init__(
        self,
        result: Evaluator,
        feeds: Sequence[Mapping[str, Any]],
        found: Mapping[str, BiasSite],
        expected: Iterator[tuple[str, list[np.ndarray]]],
    ) -> None:
        self._steps, self._runs = result.steps, [result.begin(feed) for feed in feeds]
        self._places, self._expected = found, expected
        self._means: dict[str, list[np.ndarray]] = {}

    def run(self) -> dict[str, np.ndarray]:
        """Run it once; gives what to add to each bias, float64 by channel, by the key of its place."""
        shifts: dict[str, np.ndarray] = {}
        with working("biases") as advance, several_runs() as compute:
            for count, step in enumerate(self._steps, 1):
                compute(self._runs, step)
                for value in step.node.outputs:
                    place = self._places.get(value.name) if value is not None else None
                    if value is not None and place is not None:
                        shift = self._shift(place, value)
                        if shift is not None:
                            shifts[place.key] = shift
                for run in self._runs:
                    run.release(step)
                advance(count, len(self._steps))
        return shifts

    def _shift(self, place: BiasSite, value: Value) -> np.ndarray | None:
        """Find the shift of a place, and let what follows see the corrected tensor."""
        expected = self._means_of(place.exact)
        given = [run.values[value] for run in self._runs]
        if expected is None or any(array.size == 0 for array in given):
            return None
        off = np.stack([e - channel_means(q, place.axis) for e, q in zip(expected, given, strict=True)])
        shift = shrink_to_zero(off)
        spread = shift.astype(np.float32).reshape([-1 if axis == place.axis else 1 for axis in range(given[0].ndim)])
        for run, array in zip(self._runs, given, strict=True):
            run.values[value] = array + spread
        return shift

    def _means_of(self, name: str) -> list[np.ndarray] | None:
        """Wait until the float model has made a tensor; None where it never does."""
        while name not in self._means:
            found = next(self._expected, None)
            if found is None:
                return None
            self._means[found[0]] = found[1]
        return self._means[name]


def channel_means(array: np.ndarray, axis: int) -> np.ndarray:
    """Return the mean of every channel, float64; zero where there is nothing."""
    if not array.size:
        return np.zeros(array.shape[axis])
    others = tuple(other for other in range(array.ndim) if other != axis)
    return np.asarray(array.mean(axis=others, dtype=np.float64))


def shrink_to_zero(off: np.ndarray) -> np.ndarray:
    """Return the mean of `[samples, channels]`, shrunk as far as it may be chance: by m² / (m² + variance of m)."""
    mean = off.mean(axis=0)
    variance = off.var(axis=0, ddof=1) / len(off) if len(off) > 1 else np.square(mean)
    squared = np.square(mean)
    return np.asarray(mean * np.divide(squared, squared + variance, out=np.zeros_like(mean), where=squared > 0))


def _channels(node: Node) -> int:
    weight = node.constant(1)
    if weight is None:
        return -1
    if node.op_type == "Conv":
        return weight.shape[0]
    return weight.shape[0 if node.op_type == "Gemm" and node.attribute("transB", 0) else -1]


def _is_vector(value: Value, size: int) -> bool:
    return value.constant is not None and value.constant.shape == (size,)
