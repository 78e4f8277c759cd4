"""Run a schedule once, node after node, and drop each value after its last reader.

Tests: `tests/evaluator/test_evaluate.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Any

import numpy as np
import onnx

from onnxq.errors import ModelError, OnnxqError
from onnxq.evaluator.schedule import NodeSchedule, Step
from onnxq.ir import Value
from onnxq.ops.kernels.arrays import NotCovered
from onnxq.ops.kernels.control import truth
from onnxq.ops.quantized import Arithmetic, integer_arithmetic

MISSING: Any = object()
"""Stands for an output that a kernel did not give; None is the value of an empty optional."""


class Run:
    """The state of one run: every live tensor, of all scopes, by its value.

    Args:
        taps: Functions to call with tensors as they are computed.
        keep: Values that are not dropped when nothing reads them any more.
        arithmetic: How integer products are computed.

    Attributes:
        values: The tensors.

    """

    def __init__(
        self, taps: Mapping[Value, Callable[[Any], None]], keep: set[Value], arithmetic: Arithmetic = "exact"
    ) -> None:
        self.values: dict[Value, Any] = {}
        self._taps = taps
        self.keep = keep
        self._arithmetic = arithmetic

    def begin(self, schedule: NodeSchedule, inputs: Mapping[Value, Any]) -> None:
        """Put in place what a graph starts from."""
        self.values.update(schedule.constants)
        self.values.update(inputs)
        if self._taps:
            for value in dict.fromkeys((*schedule.constants, *inputs)):
                self._tap(value)

    def copy(self) -> Run:
        """Return a run that stands where this one does, with the same tensors."""
        other = Run(self._taps, self.keep, self._arithmetic)
        other.values.update(self.values)
        return other

    def step(self, step: Step) -> None:
        """Run one node and drop what nothing reads any more."""
        self.compute(step)
        self.release(step)

    def compute(self, step: Step) -> None:
        """Run one node and show the taps what it gives."""
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

    def release(self, step: Step) -> None:
        """Drop what nothing reads any more behind a node, and the pages of a large model's weights."""
        step.release_weights()
        self.drop(step)

    def drop(self, step: Step) -> None:
        """Drop what nothing reads any more behind a node."""
        for value in step.dead:
            if value not in self.keep:
                self.values.pop(value, None)

    def branch(self, step: Step) -> NodeSchedule:
        """Return the branch that an `If` takes; `begin` puts in place what it starts from."""
        condition = step.node.inputs[0]
        assert condition is not None
        return step.bodies["then_branch" if truth(self.values[condition]) else "else_branch"]

    def leave(self, step: Step, body: NodeSchedule) -> None:
        """Let what a branch gave be what its `If` gives, and drop all else of the branch."""
        results = self._results(body)
        self.values.update((value, array) for value, array in zip(step.node.outputs, results, strict=True) if value)

    def _results(self, body: NodeSchedule) -> list[Any]:
        results = [self.values[value] for value in body.graph.outputs]
        for value in body.graph.values.values():
            self.values.pop(value, None)
        return results

    def _compute(self, step: Step) -> tuple[Any, ...]:
        values = self.values
        if step.call is not None:
            bodies = {name: _Body(self, body) for name, body in step.bodies.items()}
            inputs = [None if value is None else values[value] for value in step.inputs]
            try:
                with integer_arithmetic(self._arithmetic):
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

    def run_body(self, schedule: NodeSchedule, *inputs: Any) -> list[Any]:
        """Run the body of a control flow node; give its outputs in order."""
        arrays = [np.asarray(item) if isinstance(item, np.generic) else item for item in inputs]
        self.begin(schedule, dict(zip(schedule.inputs, arrays, strict=True)))
        for step in schedule.steps:
            self.step(step)
        return self._results(schedule)

    def _tap(self, value: Value) -> None:
        function = self._taps.get(value)
        if function is not None:
            function(self.values[value])


class _Body:
    """A body as the kernels of control flow see it: see `onnxq.ops.kernels.control.Body`."""

    def __init__(self, run: Run, schedule: NodeSchedule) -> None:
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
        dtype = None if span is None else element_type(span)
        return np.empty((0, *dims), np.float32 if dtype is None else dtype)


def _at_node(error: OnnxqError, step: Step) -> OnnxqError:
    node = step.node
    prefix = f"node {node.label} ({node.operator})"
    if error.message.startswith("node "):  # a node inside a body has said which one it is
        return error
    return ModelError(f"{prefix}: {error.message}", error.hint)


def element_type(span: memoryview) -> np.dtype[Any] | None:
    """NumPy type that a ValueInfoProto states; None for sequences, optionals and text."""
    info = onnx.ValueInfoProto.FromString(bytes(span))
    element = info.type.tensor_type.elem_type
    if not info.type.HasField("tensor_type") or element in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
        return None
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element))
