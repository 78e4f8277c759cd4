"""Fold functions of a looked-up row into the table: they are computed once for each row of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxq.ir.graph import Node, Value
from onnxq.ir.model import Model
from onnxq.ir.operator_traits import Trait, has
from onnxq.ir.pass_manager import Change, register_pass
from onnxq.ir.patch import Patch, named_after
from onnxq.ir.schemas import BROADCASTING
from onnxq.ir.tensor import ArrayTensor, Tensor
from onnxq.simplify.regions.single_entry_regions import Subgraph, compute, node_positions, subgraphs_from

GROWTH = 2  # how many times the elements of the old table the new one may have
FREE = 1 << 16  # elements that every table may have
MOST_BYTES = 256 << 20  # of a new table


@register_pass(order=110, opset=BROADCASTING, note="folded {} operator{s} on looked-up rows into the table")
def fold_into_embedding(model: Model) -> Iterator[Change]:
    """Describe the new tables.

    A table T [K, ...] is looked up on axis 0, so f(T[ids]) = f(T)[ids] for every f that treats each row alike. Such
    are elementwise operators that do not jump, with constants along a row, and products of the last axis with a
    constant matrix. The new table is computed in float64 and rounded to float32 once.
    """
    for graph in model.graph.graphs():
        place, taken = node_positions(graph), set[Node]()
        for node in graph.nodes:
            if node.op_type != "Gather" or node.domain or node.attribute("axis", 0) or node in taken:
                continue
            found = _folded(node, place, model.opset)
            if found is None:
                continue
            part, table = found
            taken.update(part.nodes)
            output, data = node.outputs[0], node.inputs[0]
            assert output is not None
            assert data is not None
            patch = Patch(graph, node, "each row is computed alike")
            new = patch.constant(ArrayTensor(table), f"{data.name}_folded")
            patch.replace(part.value, patch.op("Gather", new, node.inputs[1], hint=f"{output.name}_folded", axis=0))
            named_after(patch, node)
            yield Change(patch, count=len(part.nodes))


def _folded(gather: Node, place: dict[Node, int], opset: int) -> tuple[Subgraph, np.ndarray] | None:
    """Return the largest part behind a Gather that a table can hold, and the table."""
    data, output = gather.inputs[0], gather.outputs[0]
    table = data.constant if data is not None else None
    if data is None or output is None or table is None or output.shape is None or output.dtype != TensorProto.FLOAT:
        return None
    if output.is_output or table.nbytes > MOST_BYTES or table.size == 0 or len(table.shape) < 1:
        return None
    rows = _Rows(len(table.shape) - 1, len(output.shape))
    alone = len(data.uses) == 1
    for part in reversed(list(subgraphs_from(output, place, rows.admits))):
        inside = set(part.nodes)
        if not all(use.node in inside for use in output.uses) or not _constants_fit(part, table, alone=alone):
            continue
        computed = _table(part, table, opset)
        if computed is not None and computed.size <= _room(table, alone=alone):
            return part, computed
    return None


def _room(table: Tensor, *, alone: bool) -> int:
    """Return how many elements a new table may have; the old one stays in the file where it is not read here alone."""
    return max(GROWTH * table.size if alone else 0, FREE)


def _constants_fit(part: Subgraph, table: Tensor, *, alone: bool) -> bool:
    """Whether no row grows too long on the way."""
    widths = [
        value.constant.size for value in _constants(part.nodes) if value.constant and len(value.constant.shape) == 1
    ]
    columns = [v.constant.shape[1] for n in part.nodes if n.op_type == "MatMul" and (v := n.inputs[1]) and v.constant]
    return max([*widths, *columns, 1]) * table.shape[0] <= max(4 * _room(table, alone=alone), 4 * table.size)


def _constants(nodes: Sequence[Node]) -> Iterator[Value]:
    for node in nodes:
        yield from (value for value in node.reads if value.constant is not None)


def _table(part: Subgraph, table: Tensor, opset: int) -> np.ndarray | None:
    known: dict[Value, Any] = {part.entry: table.numpy().astype(np.float64)}
    for node in part.nodes:
        for value in _constants([node]):
            array = value.elements.numpy()
            kept = array if node.op_type == "MatMul" else array.reshape(_along_row(array.shape))
            known[value] = kept.astype(np.float64) if kept.dtype.kind == "f" else kept
    try:
        found = np.asarray(compute(part.nodes, known, opset)[part.value])
    except (KeyError, ValueError, TypeError, IndexError):  # an operator in a form that no kernel here takes
        return None
    if found.ndim != len(table.shape) or len(found) != len(table.numpy()) or found.dtype != np.float64:
        return None
    with np.errstate(over="ignore"):
        return found.astype(np.float32)


def _along_row(shape: Sequence[int]) -> tuple[int, ...]:
    """Leave out leading axes of size 1."""
    kept = list(shape)
    while kept and kept[0] == 1:
        kept.pop(0)
    return tuple(kept)


class _Rows:
    """Tells which nodes treat each row alike.

    Args:
        axes: Number of axes of a row.
        rank: Of a looked-up tensor.

    """

    def __init__(self, axes: int, rank: int) -> None:
        self.axes = axes
        self.rank = rank

    def admits(self, node: Node) -> bool:
        """Whether a node reads rows and constants along a row only, and gives rows."""
        constants = node.constants
        if node.domain or any(tensor.dtype != TensorProto.FLOAT for tensor in constants):
            return False
        if node.op_type == "MatMul":
            right = node.constant(1)
            wide = right is not None and len(right.shape) == 2 and right.shape[1] <= right.shape[0]
            return self.axes >= 1 and wide and len(constants) == 1
        along = all(len(_along_row(t.shape)) <= self.axes and len(t.shape) <= self.rank for t in constants)
        # Steps come out otherwise in float64: 3 / 0.1 is 30 in float32, and just less there
        return has(node, Trait.ELEMENTWISE) and not has(node, Trait.JUMPS) and along
