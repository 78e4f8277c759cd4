"""Values that depend on sizes of inputs alone, such as masks and rotations, computed for chosen sizes.

Tests: `tests/optimize/test_group_query_attention.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from onnxq.evaluator.schedule import bound_kernel
from onnxq.ir.graph import Graph, Node, Value
from onnxq.ops.kernels.arrays import NotCovered

MEASURES = ("Shape", "Size")
RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
COMPARED = frozenset(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Trilu", "Where"))
COMPARED |= frozenset(("Add", "Clip", "Div", "Mod", "Mul", "Pow", "Range", "Slice", "Sub"))
"""Operators whose constants can make sizes beyond them behave in another way."""
NUMBERLESS = 1 << 31  # what is beyond stands for "to the end"
MASKING = 1e4  # a float from here on is what a mask adds


class NotKnown(Exception):
    """Raised where a value cannot be computed here."""


def sized_values(graph: Graph, given: Iterable[Value] = ()) -> set[Value]:
    """Return the values of a graph that follow from shapes, constants, and what is given."""
    found = set(given)
    for node in graph.nodes:
        if node.domain or node.bodies or node.op_type in RANDOM:
            continue
        reads = node.reads
        if node.op_type in MEASURES or all(value in found or value.constant is not None for value in reads):
            found.update(node.makes)
    return found


def ancestors(values: Iterable[Value], sized: set[Value]) -> dict[Node, None]:
    """Return the nodes that compute some of `sized`."""
    found: dict[Node, None] = {}
    waiting = [value for value in values if value in sized]
    while waiting:
        node = waiting.pop().producer
        if node is None or node in found:
            continue
        found[node] = None
        waiting += [value for value in node.reads if value in sized]
    return found


def critical_lengths(nodes: Iterable[Node]) -> Iterator[int]:
    """Return the lengths behind which values could follow another rule: numbers compared with, sizes of masks."""
    for node in nodes:
        for value in node.inputs:
            tensor = None if value is None else value.constant
            if tensor is None:
                continue
            if len(tensor.shape) > 1 and tensor.shape[-1] == tensor.shape[-2] > 1:
                yield tensor.shape[-1]
            elif tensor.size == 1 and node.op_type in COMPARED:
                number = abs(float(tensor.numpy().reshape(-1)[0]))
                whole = tensor.numpy().dtype.kind in "iu"
                if np.isfinite(number) and number < (NUMBERLESS if whole else MASKING):
                    yield int(np.ceil(number)) + 1


def run_node(node: Node, known: dict[Value, Any], opset: int) -> None:
    """Run a node on what is known, and put down what it gives.

    Raises:
        NotKnown: It has no kernel here, or fails.

    """
    call = bound_kernel(node, opset)
    if call is None:
        raise NotKnown(f"{node.op_type} has no kernel")
    inputs = [None if value is None else array_of(value, known) for value in node.inputs]
    try:
        with np.errstate(all="ignore"):
            results = call(*inputs)
    except (NotCovered, ValueError, TypeError, IndexError, ArithmeticError) as error:
        raise NotKnown(str(error)) from error
    results = results if isinstance(results, tuple) else (results,)
    known.update((value, got) for value, got in zip(node.outputs, results, strict=False) if value is not None)


def array_of(value: Value, known: Mapping[Value, Any]) -> Any:
    """Return what is known of a value.

    Raises:
        NotKnown: Nothing is.

    """
    if value in known:
        return known[value]
    if value.constant is None:
        raise NotKnown(f"'{value.name}' is not known")
    return value.constant.numpy()


class Sizes:
    """Values that depend on sizes alone, for one choice of sizes.

    Args:
        chosen: Name of an axis → its size.
        opset: Operator set of the model.
        given: Other values that are known.
        shapes: Shapes that are known, of axes without a chosen name.

    """

    def __init__(
        self,
        chosen: Mapping[str, int],
        opset: int,
        given: Mapping[Value, Any] | None = None,
        shapes: Mapping[Value, tuple[int, ...]] | None = None,
    ) -> None:
        self._chosen = chosen
        self._opset = opset
        self._shapes = {} if shapes is None else shapes
        self._known: dict[Value, Any] = dict(given or {})

    def shape(self, value: Value) -> tuple[int, ...]:
        """Return the shape of a value.

        Raises:
            NotKnown: An axis has another name, or none.

        """
        if value in self._shapes:
            return self._shapes[value]
        if value.constant is not None:
            return tuple(value.constant.shape)
        if value.shape is None or not self._named(value):
            raise NotKnown(f"the shape of '{value.name}' is not known")
        return tuple(size if isinstance(size, int) else self._chosen[size or ""] for size in value.shape)

    def _named(self, value: Value) -> bool:
        return value.shape is not None and all(isinstance(size, int) or size in self._chosen for size in value.shape)

    def _has_shape(self, value: Value) -> bool:
        return value in self._shapes or self._named(value)

    def of(self, value: Value) -> Any:
        """Return the elements of a value that depends on sizes, and on what is given, alone.

        Raises:
            NotKnown: A node has no kernel, or a shape is not known.

        """
        waiting = [value]
        while waiting:
            node = waiting[-1].producer
            if waiting[-1] in self._known or waiting[-1].constant is not None:
                waiting.pop()
                continue
            if node is None:
                raise NotKnown(f"'{waiting[-1].name}' is not known")
            source = node.inputs[0] if node.op_type in MEASURES else None
            if source is not None and source not in self._known and self._has_shape(source):
                run_node(node, scratch := {source: np.broadcast_to(np.int8(0), self.shape(source))}, self._opset)
                self._known.update((made, scratch[made]) for made in node.makes)
                continue
            missing = [v for v in node.reads if v not in self._known and v.constant is None]
            if missing:
                waiting += missing
            else:
                run_node(node, self._known, self._opset)
        return array_of(value, self._known)
