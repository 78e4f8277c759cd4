"""Find tables of embeddings that are the weight of a product, too: the tied head of a language model.

Exporters write both as one tensor with a Transpose, or as two. Stored as blocks of 8 bits, one tensor serves both:
MatMulNBits multiplies by it, and GatherBlockQuantized looks its rows up.

Tests: `tests/rounding/test_tied_tables.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxq.ir import Tensor, Value
from onnxq.ops.forms.scheme import Scheme
from onnxq.planning.planner import Plan

BITS = 8  # zero points of fewer bits are packed in another order by either operator
ROWS = 4096  # of a table that are compared at a time


@dataclass(frozen=True)
class TiedProduct:
    """A product whose weight has the elements of a table.

    Attributes:
        weight: The weight; the table itself, or its transpose.
        axis: The axis of the weight that the product sums over.
        scheme: How the product is quantized.

    """

    weight: Value
    axis: int
    scheme: Scheme


def tied_tables(plan: Plan) -> dict[Value, TiedProduct]:
    """Return the tables that a MatMulNBits of 8 bits with zero points reads as well; weights are compared."""
    products = list(_products(plan))
    found: dict[Value, TiedProduct] = {}
    for decision in plan.decisions if products else ():
        node, settings = decision.node, decision.settings
        table = node.inputs[0] if node.op_type == "Gather" and not node.domain else None
        if decision.form is None or settings is None or settings.name != "weight-int8" or table is None:
            continue
        for product in products:
            if product.weight.graph is table.graph and _same(table, product):
                found[table] = product
    return found


def _products(plan: Plan) -> list[TiedProduct]:
    found = []
    for decision in plan.decisions:
        node, settings = decision.node, decision.settings
        if decision.form is None or settings is None or node.op_type not in ("MatMul", "Gemm"):
            continue
        weight = node.inputs[1]
        plain = weight is not None and weight.constant is not None and node.attribute("alpha", 1.0) == 1.0
        if settings.form == "matmulnbits" and settings.zero_points and settings.weight_bits == BITS and plain:
            assert weight is not None
            found.append(TiedProduct(weight, 1 if node.attribute("transB", 0) else 0, settings))
    return found


def _same(table: Value, product: TiedProduct) -> bool:
    one, other = table.constant, product.weight.constant
    if one is None or other is None or one.dtype != other.dtype or len(one.shape) != 2:
        return False
    if one.shape != (other.shape if product.axis else other.shape[::-1]) or one.shape[1] % product.scheme.block_size:
        return False
    return one is other or _equal(one, other, transposed=not product.axis)


def _equal(one: Tensor, other: Tensor, *, transposed: bool) -> bool:
    rows, others = one.view(), other.view()
    others = others.T if transposed else others
    parts = (slice(start, start + ROWS) for start in range(0, len(rows), ROWS))
    same = all(np.array_equal(rows[part], others[part]) for part in parts)
    one.release()
    other.release()
    return same
