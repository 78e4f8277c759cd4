"""Where a Softmax cannot give NaN, nobody asks whether it did.

PyTorch's exporters write `scaled_dot_product_attention` with a mask so that a row that is masked as a whole comes to 0,
and not to NaN: IsNaN and Where behind each Softmax, over all scores of all heads. Where what is masked gets the lowest
finite number, as the newer exporter writes it, no row is NaN.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxq.ir.graph import Node, Value
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import Patch

DEPTH = 12  # operators between a Softmax and what it is computed from
MOST = 1 << 20  # elements of a constant that is looked at
SUMS = frozenset(("Add", "Sub"))
MOVES = frozenset(("Expand", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"))


@register_pass(order=210, note="left out {} question{s} whether a Softmax of finite scores is NaN")
def guards(model: Model) -> Iterator[Patch]:
    """Describe one change for each Where that puts something else in the place of NaN from such a Softmax.

    Products of activations count as finite: where one is not, the model has failed with or without that question.
    """
    for graph in model.graph.graphs():
        for node in graph.nodes:
            guarded, output = _guarded(node), node.outputs[0] if node.outputs else None
            if guarded is None or output is None or output.is_output:
                continue
            patch = Patch(graph, node, "its Softmax is never NaN")
            patch.replace(output, guarded)
            yield patch


def _guarded(node: Node) -> Value | None:
    """Give the result of a Softmax of finite scores, where a node chooses it wherever it is not NaN."""
    asked = _made(node.inputs[0], "IsNaN") if node.op_type == "Where" and not node.domain else None
    softmax = _made(asked.inputs[0], "Softmax") if asked is not None else None
    if asked is None or softmax is None or node.inputs[2] is not asked.inputs[0] or node.graph is not softmax.graph:
        return None
    other = node.inputs[1].constant if node.inputs[1] is not None else None
    if other is None or other.size != 1:
        return None
    return asked.inputs[0] if _is_finite(softmax.inputs[0], DEPTH) else None


def _made(value: Value | None, op_type: str) -> Node | None:
    node = value.producer if value is not None else None
    return node if node is not None and node.op_type == op_type and not node.domain else None


def _is_finite(value: Value | None, depth: int) -> bool:
    """Whether a value is made of products of activations and of finite constants alone."""
    if value is None or depth == 0:
        return False
    tensor, node = value.constant, value.producer
    if tensor is not None:
        return tensor.size <= MOST and bool(np.isfinite(tensor.numpy()).all())
    if node is None or node.domain:
        return False
    if node.op_type == "MatMul":
        return True
    if node.op_type == "Mul":  # by a constant: of a mask that is computed, -inf could come
        return any(side is not None and side.constant is not None for side in node.inputs) and _all(node.inputs, depth)
    if node.op_type in SUMS:
        return _all(node.inputs, depth)
    if node.op_type == "Where":
        return _all(node.inputs[1:], depth)
    return node.op_type in MOVES and _is_finite(node.inputs[0], depth - 1)


def _all(values: list[Value | None], depth: int) -> bool:
    return all(_is_finite(value, depth - 1) for value in values)
