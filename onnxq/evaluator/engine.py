"""Run a model in NumPy: read any tensor at any depth, one node after the other, nothing kept longer than it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxq.errors import DataError, ModelError, OnnxqError
from onnxq.evaluator.blas import one_blas_thread
from onnxq.evaluator.schedule import Schedule, Step, prepare
from onnxq.ir import Graph, Model, Value, load, parse
from onnxq.ops.arrays import NotCovered

Taps = Mapping[str | Value, Callable[[Any], None]]
"""What to look at while a model runs: a tensor's name, or its value, and the function that is given its array."""

MISSING: Any = object()
"""Stands for an output that a kernel did not give; None is the value of an empty optional."""


def evaluate(
    model: str | Path | Model | onnx.ModelProto,
    feeds: Mapping[str, Any],
    outputs: Sequence[str] | None = None,
    taps: Taps | None = None,
) -> dict[str, Any]:
    """Run a model once; see `Evaluator` and `Evaluator.run`."""
    return Evaluator(model).run(feeds, outputs, taps)


class Evaluator:
    """A model made ready to run any number of times.

    Model-local functions are inlined, weights are mapped, attributes are decoded and every node is given its kernel.
    Operators without one run in `onnx.reference`. Runs share nothing that changes, so threads may run one evaluator.

    Args:
        model: Path of an ONNX file, a loaded `Model`, or a `ModelProto` with its weights inside.

    Raises:
        ModelError: The file is no valid model, or a function cannot be inlined.

    """

    def __init__(self, model: str | Path | Model | onnx.ModelProto) -> None:
        self.model = _inlined(_read(model))
        self._schedule = prepare(self.model.graph, self.model)
        self._scopes = set(_scopes(self._schedule))
        self._types = {name: _element_type(info) for name, info in self.model.graph.infos.items()}

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
        run = _Run(found, {graph.values[name] for name in wanted})
        arrays = self._check_feeds(feeds)
        steps = self._schedule.steps if outputs is None else self._needed({*run.keep, *map(_in_main_graph, found)})
        # 1/0 and overflow are values in ONNX, not mistakes.
        with np.errstate(all="ignore"), one_blas_thread():
            run.begin(self._schedule, arrays)
            for step in steps:
                run.step(step)
        return {name: run.values[graph.values[name]] for name in wanted}

    def _needed(self, targets: set[Value]) -> list[Step]:
        """Give the steps that the targets, values of the main graph, depend on."""
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
            if isinstance(array, np.ndarray) and expected is not None and array.dtype != expected:
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
        for key, function in taps.items():
            name = key if isinstance(key, str) else key.name
            scopes = [scope for scope in self.model.graph.graphs() if name in scope.values]
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


def _in_main_graph(value: Value) -> Value:
    """Give the value itself, or for one inside a body the first output of the outermost node around it."""
    while value.graph.owner is not None:
        value = next(output for output in value.graph.owner.outputs if output is not None)
    return value


def _scopes(schedule: Schedule) -> Iterator[Graph]:
    """Visit the graphs that run here, not in `onnx.reference`."""
    yield schedule.graph
    for step in schedule.steps:
        for body in step.bodies.values():
            yield from _scopes(body)


class _Run:
    """The state of one run: every live tensor, of all scopes, by its value."""

    def __init__(self, taps: Mapping[Value, Callable[[Any], None]], keep: set[Value]) -> None:
        self.values: dict[Value, Any] = {}
        self._taps = taps
        self.keep = keep

    def begin(self, schedule: Schedule, inputs: Mapping[Value, Any]) -> None:
        """Put in place what a graph starts from."""
        self.values.update(schedule.constants)
        self.values.update(inputs)
        if self._taps:
            for value in dict.fromkeys((*schedule.constants, *inputs)):
                self._tap(value)

    def step(self, step: Step) -> None:
        """Run one node and drop what nothing reads any more."""
        values = self.values
        try:
            results = self._compute(step)
        except OnnxqError as error:
            raise _at_node(error, step) from error
        for value, result in zip_longest(step.node.outputs, results[: len(step.node.outputs)], fillvalue=MISSING):
            if result is MISSING:
                raise _at_node(ModelError("it gives fewer outputs than the node names", "Check its attributes."), step)
            if value is not None:
                values[value] = np.asarray(result) if isinstance(result, np.generic) else result
                if value in self._taps:
                    self._tap(value)
        for value in step.dead:
            if value not in self.keep:
                values.pop(value, None)

    def _compute(self, step: Step) -> tuple[Any, ...]:
        values = self.values
        if step.call is not None:
            bodies = {name: _Body(self, body) for name, body in step.bodies.items()}
            inputs = [None if value is None else values[value] for value in step.node.inputs]
            try:
                results = step.call(*inputs, **bodies)
                return results if isinstance(results, tuple) else (results,)
            except NotCovered:
                pass  # the kernel leaves this case to the fallback below
            except (ValueError, TypeError, IndexError, ArithmeticError, AttributeError) as error:
                raise ModelError(f"it failed: {error}", "Check the number, shapes and types of its inputs.") from error
        try:
            return step.fallback.run(values)
        except Exception as error:  # onnx.reference raises errors of every kind, and runs foreign code
            reason = str(error).strip().splitlines()
            raise ModelError(
                f"onnxq has no kernel for it, and onnx.reference says: {reason[0] if reason else type(error).__name__}",
                "Run the model in onnxruntime, or replace the operator.",
            ) from error

    def run_body(self, schedule: Schedule, *inputs: Any) -> list[Any]:
        """Run the body of a control flow node; give its outputs in order."""
        arrays = [np.asarray(item) if isinstance(item, np.generic) else item for item in inputs]
        self.begin(schedule, dict(zip(schedule.inputs, arrays, strict=True)))
        for step in schedule.steps:
            self.step(step)
        results = [self.values[value] for value in schedule.graph.outputs]
        for value in schedule.graph.values.values():
            self.values.pop(value, None)
        return results

    def _tap(self, value: Value) -> None:
        function = self._taps.get(value)
        if function is not None:
            function(self.values[value])


class _Body:
    """A body as the kernels of control flow see it: see `onnxq.ops.control.Body`."""

    def __init__(self, run: _Run, schedule: Schedule) -> None:
        self._run = run
        self._schedule = schedule
        self.count = len(schedule.graph.outputs)

    def __call__(self, *inputs: Any) -> list[Any]:
        return self._run.run_body(self._schedule, *inputs)

    def empty_output(self, index: int) -> Any:
        graph = self._schedule.graph
        span = graph.infos.get(graph.outputs[index].name)
        info = onnx.ValueInfoProto() if span is None else onnx.ValueInfoProto.FromString(bytes(span))
        dims = [max(d.dim_value, 0) for d in info.type.tensor_type.shape.dim]
        dtype = None if span is None else _element_type(span)
        return np.empty((0, *dims), np.float32 if dtype is None else dtype)


def _at_node(error: OnnxqError, step: Step) -> OnnxqError:
    node = step.node
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    prefix = f"node {node.label} ({operator})"
    if error.message.startswith("node "):  # a node inside a body has said which one it is
        return error
    return ModelError(f"{prefix}: {error.message}", error.hint)


def _read(model: str | Path | Model | onnx.ModelProto) -> Model:
    if isinstance(model, Model):
        return model
    if isinstance(model, onnx.ModelProto):
        return parse(model.SerializeToString())
    return load(model)


def _inlined(model: Model) -> Model:
    """Give the model without model-local functions; one whose operator set differs is converted by onnx."""
    if not model.has_functions:
        return model
    from onnx import inliner

    proto = onnx.ModelProto.FromString(model.serialize())
    inlined = inliner.inline_local_functions(proto, convert_version=True)
    if inlined.functions:
        names = ", ".join(f"{f.domain}.{f.name}" for f in inlined.functions)
        raise ModelError(f"{model.name}: functions cannot be inlined: {names}", "Inline them when exporting the model.")
    return parse(inlined.SerializeToString(), model.path)


def _element_type(span: memoryview) -> np.dtype[Any] | None:
    """NumPy type that a ValueInfoProto states; None for sequences, optionals and text."""
    info = onnx.ValueInfoProto.FromString(bytes(span))
    element = info.type.tensor_type.elem_type
    if not info.type.HasField("tensor_type") or element in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
        return None
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element))
