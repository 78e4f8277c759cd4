"""Bounds that a tensor cannot leave, whatever the input: those of the operator that makes it."""

from __future__ import annotations

from math import inf

from onnxq.ir import Value
from onnxq.ir.operator_traits import BOUNDS, Trait, operators_with
from onnxq.ops.forms.family import NodeView
from onnxq.ops.forms.integer_domain import CLAMPS, clamp_bounds
from onnxq.ops.forms.scheme import Scheme

UNKNOWN = (-inf, inf)
# Their outputs are values of their first input, or means of such and zeros
PASSING = operators_with(Trait.MOVES) | operators_with(Trait.POOLS)


def exact_bounds(value: Value) -> tuple[float, float]:
    """Return the least and the greatest value that a tensor can have, zero among them; infinite where there is none."""
    low, high = UNKNOWN
    node = value.producer
    while node is not None and not node.domain and node.op_type in PASSING.union(CLAMPS):
        bounds = clamp_bounds(NodeView(node, Scheme(), 1)) if node.op_type in CLAMPS else UNKNOWN
        if bounds is None:  # computed, or without zero: what it gives may lie outside of what it reads
            return min(low, 0.0), max(high, 0.0)
        low, high = max(low, bounds[0]), min(high, bounds[1])
        source = node.inputs[0]
        node = source.producer if source is not None else None
    bounds = BOUNDS.get(node.op_type, UNKNOWN) if node is not None and not node.domain else UNKNOWN
    return min(max(low, bounds[0]), 0.0), max(min(high, bounds[1]), 0.0)
