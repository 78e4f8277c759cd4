"""Differences of two numbers in every row, as a product with [[1, -1], [-1, 1]].

Softmax over two classes is written as Sigmoid of differences (`simplify/two_classes.py`). To take rows of two apart and
join them again, onnxruntime (1.31) copies every number by itself; its product of matrices reads them where they are,
and gives the same bits: a face detector takes 0.986 of its time. It comes behind quantization, which makes codes of
products.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from onnxq.ir import Model, Node, Patch, Value, commit
from onnxq.ir.patch import named_after

DIFFERENCES = np.array([[1, -1], [-1, 1]], np.float32)


def join_differences(model: Model) -> int:
    """Write a - b and b - a of rows [a, b] as one product.

    Args:
        model: A model whose types are inferred; it is changed. What it computes of finite numbers stays the same to
            the bit.

    Returns:
        How many there were.

    """
    patches = []
    for graph in list(model.graph.graphs()):
        for node in graph.nodes:
            rows = _rows(node)
            if rows is not None:
                patches.append(_patch(node, rows))
    commit(patches)
    return len(patches)


def _rows(joined: Node) -> Value | None:
    """Give the rows [a, b] of which a Concat joins a - b and b - a; None where it joins something else."""
    ahead, behind = (_difference(joined, slot) for slot in (0, 1)) if _is(joined, "Concat", 2) else (None, None)
    if ahead is None or behind is None or ahead != behind[::-1] or ahead[0].producer is None:
        return None
    split, made = ahead[0].producer, joined.outputs[0]
    if not _is(split, "Split", 2) or split.outputs != list(ahead) or made is None or made.dtype != TensorProto.FLOAT:
        return None
    rows, sizes = split.inputs
    whole = sizes is not None and sizes.constant is not None and sizes.constant.numpy().tolist() == [1, 1]
    last = split.attribute("axis", 0) == joined.attribute("axis") == -1
    return rows if whole and last and split.graph is joined.graph else None


def _difference(joined: Node, slot: int) -> tuple[Value, Value] | None:
    """Give what a difference is taken of that nobody but a Concat reads."""
    value = joined.inputs[slot]
    maker = value.producer if value is not None else None
    if value is None or maker is None or not _is(maker, "Sub", 2) or len(value.uses) > 1 or value.is_output:
        return None
    first, second = maker.inputs
    return (first, second) if first is not None and second is not None else None


def _is(node: Node, op_type: str, inputs: int) -> bool:
    return node.op_type == op_type and not node.domain and len(node.inputs) == inputs


def _patch(joined: Node, rows: Value) -> Patch:
    made = joined.outputs[0]
    assert made is not None
    patch = Patch(joined.graph, joined, "rows of two are read where they are")
    signs = patch.constant(DIFFERENCES, f"{made.name}_signs")
    patch.replace(made, patch.op("MatMul", rows, signs, hint=made.name))
    named_after(patch, joined)
    return patch
