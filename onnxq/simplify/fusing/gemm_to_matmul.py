"""A Gemm of rows that are laid one after the other for it alone is a product of the tensor as it was.

GPT-2 and its kin do so in every layer: Reshape to two axes, Gemm, and Reshape back to sizes that are computed again.
Other passes then recognise what follows the product, such as the Split into queries, keys and values. In 8 bit
onnxruntime adds the bias to a product as well.
"""

from __future__ import annotations

import numpy as np

from onnxq.ir.graph import Value
from onnxq.ir.match import Match, NoMatch, const, maybe, op, unset_or, var
from onnxq.ir.patch import Patch
from onnxq.ir.pattern_pass import pattern_pass
from onnxq.ir.shape_inference.dims import product
from onnxq.ir.shape_inference.symbolic import Shapes
from onnxq.ir.tensor import DeferredTensor, Tensor

LEAST = 64  # rows and columns of a weight: below, it may stay in float, where a Gemm adds its bias for nothing
ROWS = op("Reshape", var("source"), ...)
BIAS = const(name="bias", fits=lambda tensor: len(tensor.shape) < 2, says="a vector")
GEMM = op(
    "Gemm", ROWS, const(name="weight"), maybe(BIAS), name="product", once=True,
    transA=unset_or(0), alpha=unset_or(1.0), beta=unset_or(1.0),
)  # fmt: skip


@pattern_pass(
    op("Reshape", GEMM, var("told")),
    order=120,
    because="its rows are flattened for it alone",
    note="rewrote {} Gemm of flattened rows as MatMul",
    anchor="product",
    keeps_name=False,
    main_graph=True,
    shapes=True,
    integer=True,
)
def gemm_to_matmul(patch: Patch, found: Match, shapes: Shapes) -> Value:
    """Multiply the tensor as it was, where the sizes are proved to be the same again behind the Gemm."""
    gemm, source, weight, bias = found.node("product"), found["source"], found["weight"], found.get("bias")
    target, name = _come_back(found, shapes), found.result.name
    if target is None and not _is_square(found, shapes):
        raise NoMatch(f"its sizes are not proved to be those from before, or one of the weight is below {LEAST}")
    if target:
        joined = patch.constant(np.array(target, np.int64), f"{name}_joined_axes")
        source = patch.op("Reshape", source, joined, hint=f"{name}_joined")
    elif target is None:
        zeros = {"allowzero": 1} if found.root.attribute("allowzero", 0) else {}
        source = patch.op("Reshape", source, found["told"], hint=f"{name}_joined", **zeros)
    if gemm.attribute("transB", 0):
        weight = patch.constant(_turned(found.tensor("weight")), f"{weight.name}_transposed")
    result = patch.op("MatMul", source, weight, hint=name if bias is None else f"{name}_product")
    if gemm.name:
        patch.nodes[-1].name = gemm.name
    return result if bias is None else patch.op("Add", result, bias, hint=name)


def _turned(tensor: Tensor) -> Tensor:
    return DeferredTensor(tensor.dtype, tensor.shape[::-1], lambda: tensor.numpy().T, [tensor])


def _come_back(found: Match, shapes: Shapes) -> list[int] | None:
    """Return the target of a Reshape that joins the last axes alone, where all before them are the same again behind.

    It is empty where there is one such axis; None is for sizes that are not proved to be the same.
    """
    before, after = shapes.of(found["source"]), shapes.of(found.result)
    if before is None or after is None or not 3 <= len(after) <= len(before):
        return None
    lead = len(after) - 1
    rows, columns = product(before[lead:]), after[-1]
    sizes = [rows.known, columns.known]
    weight = found.tensor("weight").shape
    if sizes != list(weight[::-1] if found.node("product").attribute("transB", 0) else weight):
        return None
    if min(weight) < LEAST or before[:lead] != after[:lead]:
        return None
    return [] if len(before) == len(after) else [0] * lead + [rows.number]


def _is_square(found: Match, shapes: Shapes) -> bool:
    """Whether what the second Reshape is told fits in front of the product, too: its rows stay in their order."""
    after, told = shapes.of(found.result), shapes.content(found["told"])
    if after is None or told is None or len(after) < 3 or any(size.number == 0 for size in told):
        return False
    weight = found.tensor("weight").shape
    return min(weight) >= LEAST and (after[-1].known,) * 2 == tuple(weight)
