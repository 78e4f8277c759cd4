"""Run a model in NumPy, one node after the other: read any tensor at any depth.

Tests: `tests/verification/test_layerwise.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxq.errors import DataError, ModelError
from onnxq.evaluator.run import Run, element_type
from onnxq.evaluator.schedule import NodeSchedule, Step, schedule_nodes
from onnxq.ir import Graph, Model, ModelInput, Value, load, parse
from onnxq.ops.quantized import Arithmetic
from onnxq.runtime.blas_threads import single_threaded_blas

Taps = Mapping[str | Value, Callable[[Any], None]]
"""Observed tensors of a run: a tensor's name or value, and the function that receives its array."""


@contextmanager
def arithmetic() -> Iterator[None]:
    """Set up what kernels need: one thread, and no warnings: 1/0 and overflow are values in ONNX."""
    with np.errstate(all="ignore"), single_threaded_blas():
        yield


def wide_evaluator(model: Model, values: Collection[str | Value]) -> Evaluator | None:
    """Return what computes values of a float model in float64; see `onnxq.evaluator.wide`.

    Args:
        model: The model; it must not change as long as the evaluator is in use.
        values: Names of values, or values of any graph.

    Returns:
        None if onnxruntime has to run the model: its weights stay in their files, its functions cannot be inlined, or
        an operator in front of the values has no kernel here.

    """
    if not model.residency.copies:
        return None
    try:
        evaluator = Evaluator(model, wide=True)
    except ModelError:
        return None
    return evaluator if evaluator.has_kernels(values) else None


class Evaluator:
    """A model made ready to run any number of times.

    Model-local functions are inlined, weights are mapped, attributes are decoded and every node is given its kernel.
    Operators without one run in `onnx.reference`. Runs share nothing that changes, so threads may run one evaluator.

    Args:
        model: Path of an ONNX file, a loaded `Model`, or a `ModelProto` with its weights inside.
        arithmetic: How products of uint8 and int8 are computed: exactly, or as x86 processors without VNNI do.
        wide: Compute sums and functions in float64 and round them once, so that results are the same on every
            processor; see `onnxq.evaluator.wide`.
        changing: Initializers that the caller of `begin` puts others in place of.

    Raises:
        ModelError: The file is no valid model, or a function cannot be inlined.

    """

    def __init__(
        self,
        model: ModelInput,
        arithmetic: Arithmetic = "exact",
        *,
        wide: bool = False,
        changing: Collection[Value] = (),
    ) -> None:
        self.arithmetic = arithmetic
        self.model = _inlined(_read(model))
        self._schedule = schedule_nodes(self.model.graph, self.model, wide=wide, changing=changing)
        self._scopes = set(_scopes(self._schedule))
        self._types = {name: element_type(info) for name, info in self.model.graph.infos.items()}

    def run(
        self, feeds: Mapping[str, Any], outputs: Sequence[str] | None = None, taps: Taps | None = None
    ) -> dict[str, Any]:
        """Run the model.

        Args:
            feeds: An array for each input of the graph (a list of arrays where the input is a sequence, None for an
                empty optional). An input that has an initializer may be left out.
            outputs: Names of the tensors to return, any of the main graph; the graph's outputs when None. Given names,
                only the nodes that they and the taps depend on run.
            taps: Functions to call with tensors as they are computed, inputs and constants excluded from bodies that do
                not run. A name that several scopes define (both branches of an `If`) stands for all of them; a `Value`
                for just one. Inside a body the function is called once for each time the body runs. The array is the
                evaluator's own: copy it to keep it beyond the call and change it, never write to it.

        Returns:
            The tensors by name, in the order of `outputs`. Sequences are lists. An array can be one of the feeds, a
            view of one, or a read-only weight.

        Raises:
            DataError: An input is missing, unknown, or of the wrong element type, or a tensor that is asked for
                does not exist.
            ModelError: An operator is unknown, or a node cannot do with its inputs what it should.

        """
        graph = self.model.graph
        wanted = [value.name for value in graph.outputs] if outputs is None else list(outputs)
        for name in wanted:
            if name not in graph.values:
                raise DataError(
                    f"{self.model.name} has no tensor '{name}' in its main graph", "Check the names in `outputs`."
                )
        found = self._find_taps(taps or {})
        run = Run(found, {graph.values[name] for name in wanted}, self.arithmetic)
        arrays = self._check_feeds(feeds)
        steps = self._schedule.steps if outputs is None else self._needed({*run.keep, *map(_in_main_graph, found)})
        with arithmetic():
            run.begin(self._schedule, arrays)
            for step in steps:
                run.step(step)
        return {name: run.values[graph.values[name]] for name in wanted}

    def has_kernels(self, values: Iterable[str | Value]) -> bool:
        """Tell whether every node that these values depend on, of the model at any depth, has a kernel of ours."""
        try:
            own = self._find_taps(dict.fromkeys(values, _ignore))
        except DataError:  # inside a body that runs in `onnx.reference`
            return False
        return all(step.has_kernel for step in self._needed(set(map(_in_main_graph, own))))

    @property
    def steps(self) -> Sequence[Step]:
        """The nodes of the main graph in order, each ready to run."""
        return self._schedule.steps

    def begin(self, feeds: Mapping[str, Any] | None = None) -> Run:
        """Put in place what the model starts from; the caller runs the steps, inside `arithmetic`.

        Args:
            feeds: As `run` takes them; None leaves the inputs to the caller.

        Raises:
            DataError: As `run`.

        """
        run = Run({}, set(), self.arithmetic)
        run.begin(self._schedule, {} if feeds is None else self._check_feeds(feeds))
        return run

    def peak_bytes(self, feeds: Mapping[str, Any]) -> int:
        """Run the model once to see how many bytes its live tensors take at most, constants left out.

        Args:
            feeds: As `run` takes them.

        Raises:
            DataError: As `run`.
            ModelError: As `run`.

        """
        most, constants = 0, self._schedule.constants
        with arithmetic():
            run = self.begin(feeds)
            for step in self.steps:
                run.compute(step)
                live = (array for value, array in run.values.items() if value not in constants)
                most = max(most, sum(getattr(array, "nbytes", 0) for array in live))
                run.release(step)
        return most

    def expected_peak_bytes(self, feeds: Mapping[str, Any], size: Callable[[Value], int | None]) -> int | None:
        """Tell what `peak_bytes` would see, without a run; None where the size of a tensor is not known beforehand.

        Args:
            feeds: As `run` takes them.
            size: Gives the bytes of a tensor; None where they are not known.

        """
        constants = {value.name for value in self._schedule.constants}
        live, most = dict[Value, int](), 0
        fed = sum(getattr(array, "nbytes", 0) for name, array in feeds.items() if name not in constants)
        for step in self.steps:
            for value in step.node.outputs:
                known = None if step.bodies else size(value) if value is not None else 0
                if known is None:
                    return None
                if value is not None:
                    live[value] = known
            most = max(most, fed + sum(live.values()))
            for value in step.dead:
                live.pop(value, None)
        return most

    def _needed(self, targets: set[Value]) -> list[Step]:
        """Return the steps that the targets, values of the main graph, depend on."""
        chosen = []
        for step in reversed(self._schedule.steps):
            if not targets.isdisjoint(step.node.outputs):
                targets.update(step.reads)
                chosen.append(step)
        return chosen[::-1]

    def _check_feeds(self, feeds: Mapping[str, Any]) -> dict[Value, Any]:
        names = {value.name: value for value in self.model.graph.inputs}
        arrays: dict[Value, Any] = {}
        for name, data in feeds.items():
            if name not in names:
                raise DataError(f"{self.model.name} has no input '{name}'", f"Its inputs are: {', '.join(names)}.")
            array = np.asarray(data) if isinstance(data, (np.generic, int, float, bool)) else data
            expected = self._types.get(name)
            if expected is not None and not isinstance(array, np.ndarray):
                raise DataError(
                    f"input '{name}' of {self.model.name} is a tensor, not a {type(array).__name__}",
                    f"Make an array of {expected} of it.",
                )
            if expected is not None and array.dtype != expected:
                raise DataError(
                    f"input '{name}' of {self.model.name} is {expected}, not {array.dtype}",
                    f"Convert the array to {expected}.",
                )
            arrays[names[name]] = array
        for name, value in names.items():
            if value not in arrays and value.tensor is None:
                raise DataError(f"input '{name}' of {self.model.name} is missing", "Give an array for every input.")
        return arrays

    def _find_taps(self, taps: Taps) -> dict[Value, Callable[[Any], None]]:
        found: dict[Value, Callable[[Any], None]] = {}
        graphs = list(self.model.graph.graphs())
        for key, function in taps.items():
            name = key if isinstance(key, str) else key.name
            scopes = [scope for scope in graphs if name in scope.values]
            values = [scope.values[name] for scope in scopes]
            if isinstance(key, Value):
                values = [key] if key in values else values[:1]
            if not values:
                raise DataError(f"{self.model.name} has no tensor '{name}'", "Check the names in `taps`.")
            for value in values:
                self._check_reachable(value)
            found.update(dict.fromkeys(values, function))
        return found

    def _check_reachable(self, value: Value) -> None:
        if value.graph not in self._scopes:
            owner = value.graph.owner
            assert owner is not None  # the main graph always has a schedule
            raise DataError(
                f"tensor '{value.name}' cannot be tapped: node {owner.label} ({owner.op_type}) runs in onnx.reference",
                "Tap the node's outputs instead.",
            )


def _ignore(array: Any) -> None:
    """Take a tensor that nothing is to be done with."""


def _in_main_graph(value: Value) -> Value:
    """Return the value itself, or for one inside a body the first output of the outermost node around it."""
    while value.graph.owner is not None:
        value = value.graph.owner.makes[0]
    return value


def _scopes(schedule: NodeSchedule) -> Iterator[Graph]:
    """Visit the graphs that run here, not in `onnx.reference`."""
    yield schedule.graph
    for step in schedule.steps:
        for body in step.bodies.values():
            yield from _scopes(body)


def _read(model: str | Path | Model | onnx.ModelProto) -> Model:
    if isinstance(model, Model):
        return model
    if isinstance(model, onnx.ModelProto):
        return parse(model.SerializeToString())
    return load(model)


def _inlined(model: Model) -> Model:
    """Return the model without model-local functions; one whose operator set differs is converted by onnx."""
    if not model.has_functions:
        return model
    from onnx import inliner

    proto = onnx.ModelProto.FromString(model.serialize())
    inlined = inliner.inline_local_functions(proto, convert_version=True)
    if inlined.functions:
        names = ", ".join(f"{f.domain}.{f.name}" for f in inlined.functions)
        raise ModelError(f"{model.name}: functions cannot be inlined: {names}", "Inline them when exporting the model.")
    return parse(inlined.SerializeToString(), model.path)
