"""The error of a quantized model by tensor: the part that is inherited, and the part that its own node adds.

Three runs of the evaluator go in step, node by node. They are the float model, the quantized one, and the float model's
operators on values of the quantized model. The last one gives each tensor as if its own node were exact. So it tells
the node's own error from the one of its inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onnxq.data.samples import few_samples
from onnxq.errors import DataError, ModelError
from onnxq.evaluator import Evaluator, Run, Step, arithmetic
from onnxq.ir import Model, ModelInput, Value, read_model
from onnxq.ir.passes import normalise
from onnxq.optimize.sequence_first import SWAPPED
from onnxq.optimize.sequence_rules import FEWEST_AXES
from onnxq.progress import OnSample, working
from onnxq.verification.channel_rescaling import channel_factors
from onnxq.verification.detections import find_selection
from onnxq.verification.error_stats import Difference
from onnxq.verification.records import Comparison, LayerComparison

SAMPLES = 8
LARGE_SAMPLES = 2  # each takes seconds for every gigabyte of weights
MOST_ELEMENTS = 1 << 18  # of the inputs of all samples together: they are in memory at the same time


def compare_layers(
    float_model: ModelInput,
    quantized: ModelInput,
    samples: Iterable[Mapping[str, np.ndarray]],
    *,
    limit: int = SAMPLES,
    progress: OnSample | None = None,
) -> tuple[LayerComparison, ...]:
    """Compare every float tensor of the main graph that both models hold under the same name.

    Let r be the float tensor, q the quantized model's, and f the float node's result on the quantized model's inputs.
    The signal is Σ r². The noise is Σ (r − q)² in all, Σ (f − q)² by the node itself, and Σ (r − f)² by its inputs.
    Each is summed in float64 over all samples. If the quantized model does not hold a tensor, because it has fused the
    nodes around it, f stands in for it. The error is then that of the next tensor that both hold.

    The quantized model goes on from the float model's picks, places of boxes for example.

    If channels of the quantized model are rescaled, q is multiplied by the factor of each channel that brings it
    closest to f. Outputs of the graph never are.

    Memory is that of the live tensors of three runs for each sample.

    Args:
        float_model: The float model, normalised as it was for quantizing (`onnxq.ir.passes.normalise`): node by node
            the two have to mean the same. One that is not loaded is normalised here.
        quantized: The quantized model, likewise.
        samples: `{input name: array}` with exactly the model's dtypes; shapes may differ.
        limit: Use so many samples, or fewer where they are large.
        progress: Called with the number of nodes done and their total.

    Returns:
        One for each tensor, in the order of the float model's nodes.

    Raises:
        ModelError: The evaluator cannot run one of the models.
        DataError: There are no samples, or they do not fit.

    Examples:
        >>> import numpy as np, onnxq
        >>> samples = [{"image": image[None]} for image in np.load("calibration.npz")["image"]]
        >>> layers = onnxq.compare_layers("model.onnx", "small.onnx", samples)
        >>> min(layers, key=lambda layer: layer.own).own > 20
        True

    """
    if not isinstance(float_model, Model):
        float_model = read_model(float_model)
        normalise(float_model)
    reference, result = Evaluator(float_model), Evaluator(quantized)
    feeds = few_samples(samples, limit, MOST_ELEMENTS)
    if not feeds:
        raise DataError("there are no samples to compare the models on", "Give at least one.")
    with arithmetic():
        return tuple(_SideBySide(reference, result, feeds).layers(progress))


def with_layers(
    comparison: Comparison,
    float_model: ModelInput,
    quantized: ModelInput,
    samples: Iterable[Mapping[str, np.ndarray]],
) -> Comparison:
    """Add the layers to a comparison, or the reason why the evaluator cannot run a model; see `compare_layers`."""
    limit = SAMPLES if not isinstance(float_model, Model) or float_model.residency.quick else LARGE_SAMPLES
    try:
        layers = compare_layers(float_model, quantized, samples, limit=limit)
        return replace(comparison, layers=layers)
    except ModelError as error:
        return replace(comparison, no_layers=error.message)


class _Quantized:
    """The quantized model, run as far as the tensors that are asked for.

    Attributes:
        names: Those of `wanted` that it has, be it with the first two axes swapped.

    """

    def __init__(self, evaluator: Evaluator, wanted: set[str], feeds: Sequence[Mapping[str, np.ndarray]]) -> None:
        known = evaluator.model.graph.values
        self._meant = {name + SWAPPED: name for name in wanted if name not in known and name + SWAPPED in known}
        self._meant |= {name: name for name in wanted if name in known}
        self._values = known
        self.names = set(self._meant.values())
        self._runs = [evaluator.begin(sample) for sample in feeds]
        self._steps = iter(evaluator.steps)
        self._held: dict[str, list[Any]] = {}
        made = {output for step in evaluator.steps for output in step.node.outputs}
        for name in sorted(self.names & known.keys()):
            if known[name] not in made:  # an initializer, or what a Constant node gives
                self._held[name] = [run.values[known[name]] for run in self._runs]

    def take(self, name: str) -> list[Any]:
        """Return a tensor of every sample, once."""
        while name not in self._held:
            step = next(self._steps)
            for run in self._runs:
                run.compute(step)
            for value in step.node.outputs:
                if value is not None and value.name in self._meant:
                    given, meant = [run.values[value] for run in self._runs], self._meant[value.name]
                    self._held[meant] = given if meant == value.name else list(map(_swapped, given))
            for run in self._runs:
                run.release(step)
        return self._held.pop(name)

    def put(self, name: str, arrays: Sequence[Any]) -> None:
        """Go on from other tensors than those that `take` gave."""
        for run, array in zip(self._runs, arrays, strict=True):
            run.values[self._values[name]] = array


class _SideBySide:
    """All runs of all samples."""

    def __init__(self, reference: Evaluator, result: Evaluator, feeds: Sequence[Mapping[str, np.ndarray]]) -> None:
        self.steps = reference.steps
        made = {value.name for step in self.steps for value in step.node.makes}
        self.quantized = _Quantized(result, made, feeds)
        self.picked = find_selection(reference.model).picked
        self.float_runs = [reference.begin(sample) for sample in feeds]
        self.mixed_runs = [reference.begin(sample) for sample in feeds]

    def layers(self, progress: OnSample | None) -> Iterator[LayerComparison]:
        """Run node after node, and compare what both models hold."""
        with working("layers") as advance:
            for count, step in enumerate(self.steps, 1):
                for run in (*self.float_runs, *self.mixed_runs):
                    run.compute(step)
                for value in step.node.outputs:
                    if value is not None and value.name in self.quantized.names:
                        layer = self._compare(step, value)
                        if layer is not None:
                            yield layer
                for run in (*self.float_runs, *self.mixed_runs):
                    run.release(step)
                advance(count, len(self.steps))
                if progress:
                    progress(count, len(self.steps))

    def _compare(self, step: Step, value: Value) -> LayerComparison | None:
        """Put the quantized model's tensor in place of what the float operator made of its inputs."""
        given = self.quantized.take(value.name)
        expected, exact = _arrays(self.float_runs, value), _arrays(self.mixed_runs, value)
        if value.name in self.picked:  # what follows is compared for the same boxes
            self.quantized.put(value.name, expected)
            for run, array in zip(self.mixed_runs, expected, strict=True):
                run.values[value] = array
            return None
        if not all(_alike(q, f) for q, f in zip(given, exact, strict=True)):
            return None
        factor = None if value.is_output or not _is_float(given[0]) else channel_factors(exact, given)
        if factor is not None:
            given = [(q * factor).astype(q.dtype) for q in given]
        for run, q in zip(self.mixed_runs, given, strict=True):
            run.values[value] = q
        if not all(_is_float(q) and _alike(r, q) for r, q in zip(expected, given, strict=True)):
            return None
        return _layer(step, value, (expected, exact, given), rescaled=factor is not None)


def _layer(
    step: Step, value: Value, arrays: tuple[list[Any], list[Any], list[Any]], *, rescaled: bool
) -> LayerComparison | None:
    total, own, inherited = (Difference(classes=False) for _ in range(3))
    for r, f, q in zip(*arrays, strict=True):
        total.add(r, q)
        own.add(f, q)
        inherited.add(r, f)
    if not total.elements:
        return None
    own.signal = total.signal
    node = step.node
    return LayerComparison(
        node=node.display_name,
        op_type=node.operator,
        tensor=value.name,
        sqnr=total.sqnr,
        own=own.sqnr,
        inherited=inherited.sqnr,
        max_abs=total.max_abs,
        rescaled=rescaled,
    )


def _arrays(runs: Sequence[Run], value: Value) -> list[Any]:
    return [run.values[value] for run in runs]


def _swapped(array: Any) -> Any:
    return array.swapaxes(0, 1) if isinstance(array, np.ndarray) and array.ndim >= FEWEST_AXES else array


def _is_float(array: Any) -> bool:
    return isinstance(array, np.ndarray) and (array.dtype.kind == "f" or array.dtype.name == "bfloat16")


def _alike(one: Any, other: Any) -> bool:
    """Whether both are arrays of one dtype and shape."""
    arrays = isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
    return arrays and one.dtype == other.dtype and one.shape == other.shape
