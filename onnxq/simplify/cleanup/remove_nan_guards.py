"""Remove the NaN guard behind a Softmax that cannot give NaN.

PyTorch's exporters write IsNaN and Where behind each Softmax of `scaled_dot_product_attention` with a mask. A row that
is masked as a whole then gives 0 instead of NaN. The newer exporter masks with the lowest finite number. No row is NaN
then, and the guard only costs time, over all scores of all heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from onnxq.ir.graph import Value
from onnxq.ir.match import Match, NoMatch, const, op, var
from onnxq.ir.operator_traits import Trait, has
from onnxq.ir.patch import Patch
from onnxq.ir.pattern_pass import pattern_pass

DEPTH = 12  # operators between a Softmax and what it is computed from
MOST = 1 << 20  # elements of a constant that is looked at
ADDED: dict[str, Callable[[list[float]], float]] = {"Add": sum, "Sub": sum, "Where": max}
SOFTMAX = op("Softmax", var("scores"), name="softmax")


@pattern_pass(
    op("Where", op("IsNaN", SOFTMAX), const(name="instead", size=1), SOFTMAX),
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
    if not np.isfinite(_magnitude(found["scores"], DEPTH)):
        raise NoMatch(f"'{found['scores'].name}' is not proved to be finite")
    if len(found.tensor("instead").shape) > len(found["softmax"].shape or ()):
        raise NoMatch("its other value has more axes than the Softmax")
    return found["softmax"]


def _magnitude(value: Value | None, depth: int) -> float:
    """Bound the constants that a value is made of, next to products of activations; infinity where it has no bound.

    Products count as 0: next to the lowest finite number, rounding takes them away. The sum of two such numbers has no
    bound, as two masks of one place have it.
    """
    if value is None or depth == 0:
        return np.inf
    tensor, node = value.constant, value.producer
    if tensor is not None:
        return float(np.abs(tensor.numpy().astype(np.float64)).max(initial=0)) if tensor.size <= MOST else np.inf
    if node is None or node.domain:
        return np.inf
    if node.op_type == "MatMul":
        return 0.0
    if has(node, Trait.MOVES):
        return _magnitude(node.inputs[0], depth - 1)
    sides = [_magnitude(side, depth - 1) for side in node.inputs[node.op_type == "Where" :]]
    scaled = node.op_type == "Mul" and node.constants  # by a constant: of a mask that is computed, -inf could come
    if not np.isfinite(sides).all() or not (scaled or node.op_type in ADDED):
        return np.inf
    total = math.prod(sides) if scaled else ADDED[node.op_type](sides)
    with np.errstate(over="ignore"):
        return float((np.float16 if value.dtype == TensorProto.FLOAT16 else np.float32)(total))
