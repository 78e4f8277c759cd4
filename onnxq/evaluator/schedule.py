"""The schedule of an evaluation: for every node its function, its inputs, and the values that end after it.

Tests: `tests/cli/test_cli_looking.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import onnx

from onnxq.evaluator.fallback import Fallback
from onnxq.evaluator.wide import is_the_same, keeps_widened, wide_call
from onnxq.ir import Graph, Model, Node, Tensor, Value
from onnxq.ir.graph import GRAPH_SPARSE
from onnxq.ir.storage.residency import Residency
from onnxq.ir.topological_order import reads
from onnxq.ir.wire import fields
from onnxq.ops.kernels.registry import Kernel, find_kernel

OUTPUT_COUNT = "output_count"
"""Keyword by which a kernel asks how many outputs the node has; no ONNX attribute has this name."""


@dataclass(eq=False)
class Step:
    """One node, ready to run.

    Attributes:
        node: The node.
        call: Its kernel with the attributes bound, or None when only the fallback can do it.
        fallback: Runs the node in `onnx.reference`.
        bodies: Schedules of the node's bodies by attribute name, for kernels of control flow.
        reads: Every value that has to be there: the inputs and what the bodies read from the scopes around them.
        dead: Values of this graph that nothing reads after this node.
        mapped: Of a large model: weights that it reads, whose pages are let go of behind it.
        fixed: Whether it reads constants alone, so that all runs give the same: codes of a weight made real, say.

    """

    node: Node
    call: Callable[..., Any] | None
    fallback: Fallback
    bodies: dict[str, NodeSchedule]
    reads: list[Value]
    dead: list[Value] = field(default_factory=list)
    mapped: list[Tensor] = field(default_factory=list)
    fixed: bool = False

    @cached_property
    def inputs(self) -> list[Value | None]:
        """The inputs of the node; absent ones at the end are as good as left out."""
        given = list(self.node.inputs)
        while given and given[-1] is None:
            given.pop()
        return given

    def release_weights(self) -> None:
        """Release the pages of a large model's weights that the node reads."""
        for tensor in self.mapped:
            tensor.release()

    @property
    def has_kernel(self) -> bool:
        """Whether the node has a kernel of ours, and every node of its bodies."""
        inner = (step for body in self.bodies.values() for step in body.steps)
        return self.call is not None and all(step.has_kernel for step in inner)


@dataclass(eq=False)
class NodeSchedule:
    """The steps of one graph, in the order of its nodes.

    Attributes:
        graph: The graph.
        constants: Initializers, and outputs of Constant nodes, which are evaluated here once.
        steps: The other nodes.
        inputs: Values of the graph's inputs, in order.

    """

    graph: Graph
    constants: dict[Value, Any]
    steps: list[Step]
    inputs: list[Value]


def schedule_nodes(graph: Graph, model: Model, *, wide: bool = False, changing: Collection[Value] = ()) -> NodeSchedule:
    """Work out the schedule of a graph and of every body inside it; its nodes are in topological order.

    Args:
        graph: The graph.
        model: The model it belongs to.
        wide: Whether sums and functions are computed in float64; see `onnxq.evaluator.wide`.
        changing: Initializers that others take the place of during a run, so that nothing is made of them beforehand.

    """
    in_files = model.residency is Residency.FILES
    constants = _initializers(graph, in_place=in_files)
    widened = (constants if keeps_widened(model) else {}) if wide else None
    if widened and changing:
        widened = {value: array for value, array in widened.items() if value not in changing}
    steps: list[Step] = []
    fixed = {value for value in constants if not value.is_input}.difference(changing)
    for node in graph.nodes:
        step = _prepare_step(node, model, widened, changing)
        if node.op_type == "Constant" and not node.domain and step.call is not None and node.outputs[0] is not None:
            constants[node.outputs[0]] = np.asarray(step.call())
            fixed.add(node.outputs[0])
        else:
            steps.append(step)
            step.fixed = step.call is not None and not step.bodies and bool(step.reads) and fixed.issuperset(step.reads)
            fixed.update(value for value in node.outputs if step.fixed and value is not None)
            if in_files:
                step.mapped = [value.tensor for value in step.reads if value.tensor is not None]
    _mark_dead(graph, steps)
    return NodeSchedule(graph, constants, steps, list(graph.inputs))


def _prepare_step(node: Node, model: Model, constants: Mapping[Value, Any] | None, changing: Collection[Value]) -> Step:
    """Prepare a node; `constants` are those that a run in float64 keeps converted, None for a run in float32."""
    opset = model.opsets.get(node.domain, 1)
    needed = list(dict.fromkeys(reads(node)))
    captured = [value for value in needed if value not in node.inputs]
    kernel = find_kernel(node.op_type, node.domain, opset)
    bodies: dict[str, NodeSchedule] = {}
    call = None
    if kernel is not None:
        accepted = bind(kernel, node)
        if accepted is not None:
            call, wide = accepted, constants is not None
            if constants is not None and not is_the_same(node, kernel):
                call = wide_call(node, accepted, constants)
            bodies = {
                name: schedule_nodes(graphs[0], model, wide=wide, changing=changing)
                for name, graphs in node.bodies.items()
            }
    return Step(node, call, Fallback(node, model, captured), bodies, needed)


def bound_kernel(node: Node, opset: int) -> Callable[..., Any] | None:
    """Return the kernel of a node with its attributes; None where there is none, or it does not know one of them."""
    kernel = find_kernel(node.op_type, node.domain, opset)
    return None if kernel is None else bind(kernel, node)


def bind(kernel: Kernel, node: Node) -> Callable[..., Any] | None:
    """Bind the node's attributes; None when the kernel does not know one of them."""
    names, open_ended = _keywords(kernel)
    attributes = node.attributes()
    if not open_ended and not names.issuperset((*attributes, *node.bodies)):
        return None
    if OUTPUT_COUNT in names:
        attributes[OUTPUT_COUNT] = len(node.outputs)
    return partial(kernel, **attributes) if attributes else kernel


@cache
def _keywords(kernel: Kernel) -> tuple[frozenset[str], bool]:
    """Return the names of a kernel's keywords, and whether it takes any others."""
    parameters = inspect.signature(kernel).parameters
    names = frozenset(name for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY)
    return names, any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def _mark_dead(graph: Graph, steps: list[Step]) -> None:
    last: dict[Value, Step] = {}
    for step in steps:
        for value in step.reads:
            if value.graph is graph and value.producer is not None:
                last[value] = step
        for output in step.node.outputs:
            if output is not None:
                last[output] = step
    keep = set(graph.outputs)
    for value, step in last.items():
        if value not in keep:
            step.dead.append(value)


def _initializers(graph: Graph, *, in_place: bool) -> dict[Value, Any]:
    found: dict[Value, Any] = {}
    for value in graph.initializers.values():
        assert value.tensor is not None
        array = value.tensor.view() if in_place else value.tensor.numpy()
        # A weight mapped from the file can start at any byte, and BLAS copies such an array at every call.
        found[value] = array if array.flags.aligned or in_place else array.copy()
    for span in graph.others:
        for number, _, _, start, end in fields(span):
            if number == GRAPH_SPARSE:
                sparse = onnx.SparseTensorProto.FromString(bytes(span[start:end]))
                found[graph.values[sparse.values.name]] = dense(sparse)
    return found


def dense(sparse: onnx.SparseTensorProto) -> np.ndarray:
    """Write out a SparseTensorProto, whose indices are linear [NNZ] or coordinates [NNZ, rank] (onnx.proto)."""
    values = onnx.numpy_helper.to_array(sparse.values)
    indices = onnx.numpy_helper.to_array(sparse.indices)
    array = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 2:
        array[tuple(indices.T)] = values
    else:
        array.reshape(-1)[indices] = values
    return array
