"""Parts of a graph that compute something along some axes of one value: their nodes, and what they compute when run.

Exporters write one function in many ways, so a pass does not look for patterns. It takes everything that depends on one
value and on constants alone, and runs it on a few rows in float64. It compares the results with the function that it
looks for.

Tests: `tests/simplify/test_fuse_layer_normalization.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from onnxq.evaluator.engine import arithmetic
from onnxq.ir.graph import Node, Value
from onnxq.ir.patch import Patch
from onnxq.ir.shape_inference.symbolic import Shapes
from onnxq.ops.kernels.arrays import Array
from onnxq.simplify.regions.axis_tracking import AxisLayout, Dims, dims_of

MOST_ELEMENTS = 1 << 20  # of one value in a trial run
LEAST_TURNED = 16  # elements: from here on two Transpose and the operator are faster than the decomposed form
UNKNOWN = 6  # length of an axis in a trial run where it is not known

# tf2onnx writes a mean over all axes but the first two as GlobalAveragePool, over the features of a sequence, too
POOLS = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}
REDUCTIONS = frozenset((
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceSum",
    "ReduceSumSquare", *POOLS,
))  # fmt: skip


@dataclass(frozen=True)
class RegionStep:
    """One node as it is run: `function` takes arrays of all axes of the entry, one more in front, and gives one."""

    node: Node
    output: Value
    sources: tuple[Value | Array | None, ...]
    function: Callable[..., Any]


@dataclass(frozen=True)
class Exit:
    """A value that a region could be replaced up to.

    Attributes:
        value: The value, of the entry's shape.
        steps: What computes it, in order.
        readers: Shape operators that read another value on the way to it.

    """

    value: Value
    steps: list[RegionStep]
    readers: list[Node]


@dataclass
class Region:
    """All that depends on one value and constants alone, and reduces along the same axes only.

    Attributes:
        entry: The value. Its rank is known.
        axes: The axes that are reduced, ascending.
        opset: Operator set of the model.
        shapes: Shapes of the graph.
        steps: The nodes, in graph order.
        traced: For every value of the region how it is laid out.

    """

    entry: Value
    axes: tuple[int, ...]
    opset: int
    shapes: Shapes
    steps: list[RegionStep] = field(default_factory=list)
    traced: dict[Value, AxisLayout] = field(default_factory=dict)

    @cached_property
    def shape(self) -> Dims:
        """The shape of the entry."""
        shape = dims_of(self.entry, self.shapes)
        assert shape is not None
        return shape

    def probe_shape(self, steps: Sequence[RegionStep]) -> tuple[int, ...]:
        """Return the smallest shape that shows what steps do: one row, unless their constants differ between rows."""
        varying = {
            axis
            for step in steps
            for source in step.sources
            if isinstance(source, np.ndarray)
            for axis, size in enumerate(source.shape[1:])
            if size > 1
        }
        return tuple(
            self.length(axis) if axis in self.axes or axis in varying else 1 for axis in range(len(self.shape))
        )

    def length(self, axis: int) -> int:
        """Return the length of an axis in a trial run."""
        size = self.shape[axis]
        return size if isinstance(size, int) else UNKNOWN

    def run(self, steps: Sequence[RegionStep], rows: Array) -> Array | None:
        """Run steps on probes [probe, *shape] in float64, reduced axes kept with length 1, and give the last result.

        None where a node cannot do what it should.
        """
        found: dict[Value, Array] = {self.entry: rows}
        with arithmetic():
            for step in steps:
                inputs = [found[source] if isinstance(source, Value) else source for source in step.sources]
                try:
                    made = step.function(*inputs)
                except (ValueError, TypeError, IndexError, ArithmeticError):
                    return None
                found[step.output] = np.asarray(made[0] if isinstance(made, tuple) else made)  # Dropout has a mask
        return found[steps[-1].output]

    def exits(self, without: set[Node]) -> Iterator[Exit]:
        """Visit the values of the entry's shape that nothing but them leaves the region through, the last one first.

        Args:
            without: Nodes that are not to be among the steps.

        """
        for last in reversed(self.steps):
            whole = self.traced[last.output] == AxisLayout(tuple(range(len(self.shape))))
            if not whole or last.output.dtype != self.entry.dtype:
                continue
            steps = self._leading_to(last)
            nodes = {step.node for step in steps}
            if nodes.isdisjoint(without) and any(node.op_type in REDUCTIONS for node in nodes):
                readers = self._side_readers(steps[:-1], nodes)
                if readers is not None:
                    yield Exit(last.output, steps, readers)

    def _leading_to(self, last: RegionStep) -> list[RegionStep]:
        """Return the steps that the last one depends on, and itself, in order."""
        wanted, steps = {last.output}, list[RegionStep]()
        for step in reversed(self.steps):
            if step.output in wanted:
                steps.append(step)
                wanted.update(source for source in step.sources if isinstance(source, Value))
        return steps[::-1]

    def _side_readers(self, steps: Sequence[RegionStep], cone: set[Node]) -> list[Node] | None:
        """Return the Shape operators that read what steps give, but for nodes of the cone; None if others read it."""
        shapes: list[Node] = []
        for node in (step.node for step in steps):
            for value in node.outputs:
                if value is None or value not in self.traced or value.is_output:
                    return None
                for reader in value.consumers():
                    if reader in cone:
                        continue
                    whole = self.traced[value] == AxisLayout(tuple(range(len(self.shape))))
                    if reader.op_type != "Shape" or reader.domain or not whole or reader.graph is not node.graph:
                        return None
                    shapes.append(reader)
        return shapes


def last_axes(region: Region, axes: Sequence[int]) -> list[int] | None:
    """Return axes where they are the last ones, axes of length 1 between and behind them included; else None."""
    last = list(range(min(axes), len(region.shape)))
    return last if all(axis in axes or region.shape[axis] == 1 for axis in last) else None


def pays(region: Region, axes: Sequence[int]) -> bool:
    """Whether an operator that works along the last axes is faster than the decomposed form along these."""
    lengths = [size for axis in axes if isinstance(size := region.shape[axis], int)]
    turned = len(lengths) == len(axes) and math.prod(lengths) >= LEAST_TURNED
    return turned or last_axes(region, axes) is not None


def replace_region(region: Region, exit: Exit, reason: str) -> Patch:
    """Begin a patch for what becomes of a region: Shape operators inside it read the entry."""
    patch = Patch(exit.value.graph, exit.value.producer, reason)
    for node in exit.readers:
        patch.rewire(node, 0, region.entry)
    return patch
