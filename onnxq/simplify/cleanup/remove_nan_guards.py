"""Remove the NaN guard behind a Softmax that cannot give NaN.

PyTorch's exporters write IsNaN and Where behind each Softmax of `scaled_dot_product_attention` with a mask. A row that
is masked as a whole then gives 0 instead of NaN. The newer exporter masks with the lowest finite number. No row is NaN
then, and the guard only costs time, over all scores of all heads.
"""

from __future__ import annotations

import numpy as np

from onnxq.ir.graph import Value
from onnxq.ir.match import Match, NoMatch, const, op, var
from onnxq.ir.operator_traits import Trait, has
from onnxq.ir.patch import Patch
from onnxq.ir.pattern_pass import pattern_pass

DEPTH = 12  # operators between a Softmax and what it is computed from
MOST = 1 << 20  # elements of a constant that is looked at
SUMS = frozenset(("Add", "Sub"))
SOFTMAX = op("Softmax", var("scores"), name="softmax")


@pattern_pass(
    op("Where", op("IsNaN", SOFTMAX), const(size=1), SOFTMAX),
    order=210,
    because="its Softmax is never NaN",
    note="removed {} NaN guard{s} after Softmax",
)
def remove_nan_guards(patch: Patch, found: Match) -> Value:
    """Read the Softmax where its scores are finite.

    Products of activations count as finite: where one is not, the model has failed with or without that question.
    """
    if found.result.is_output:
        raise NoMatch(f"'{found.result.name}' is an output of the graph, which a node has to make")
    if not _is_finite(found["scores"], DEPTH):
        raise NoMatch(f"'{found['scores'].name}' is not proved to be finite")
    return found["softmax"]


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
    return has(node, Trait.MOVES) and _is_finite(node.inputs[0], depth - 1)


def _all(values: list[Value | None], depth: int) -> bool:
    return all(_is_finite(value, depth - 1) for value in values)
