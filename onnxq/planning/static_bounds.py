"""Bounds that a tensor cannot leave, whatever the input: those of the operator that makes it."""

from __future__ import annotations

from math import inf

from onnxq.ir import Value
from onnxq.ops.forms.family import NodeView
from onnxq.ops.forms.integer_domain import CLAMPS, MOVERS, clamp_bounds
from onnxq.ops.forms.scheme import Scheme

UNKNOWN = (-inf, inf)
# From the formulas in the ONNX specification
BOUNDS: dict[str, tuple[float, float]] = {
    "Abs": (0.0, inf),
    "Cos": (-1.0, 1.0),
    "Erf": (-1.0, 1.0),
    "Exp": (0.0, inf),
    "HardSigmoid": (0.0, 1.0),
    "LogSoftmax": (-inf, 0.0),
    "Sigmoid": (0.0, 1.0),
    "Sin": (-1.0, 1.0),
    "Softmax": (0.0, 1.0),
    "Softplus": (0.0, inf),
    "Softsign": (-1.0, 1.0),
    "Sqrt": (0.0, inf),
    "Tanh": (-1.0, 1.0),
}
# Their outputs are values of their first input, or means of such and zeros
POOLS = ("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool")
PASSING = (*MOVERS, *POOLS, "Expand", "Gather", "Identity", "Tile")


def exact_bounds(value: Value) -> tuple[float, float]:
    """Return the least and the greatest value that a tensor can have, zero among them; infinite where there is none."""
    low, high = UNKNOWN
    node = value.producer
    while node is not None and not node.domain and node.op_type in (*PASSING, *CLAMPS):
        bounds = clamp_bounds(NodeView(node, Scheme(), 1)) if node.op_type in CLAMPS else UNKNOWN
        if bounds is None:  # computed, or without zero: what it gives may lie outside of what it reads
            return min(low, 0.0), max(high, 0.0)
        low, high = max(low, bounds[0]), min(high, bounds[1])
        source = node.inputs[0]
        node = source.producer if source is not None else None
    bounds = BOUNDS.get(node.op_type, UNKNOWN) if node is not None and not node.domain else UNKNOWN
    return min(max(low, bounds[0]), 0.0), max(min(high, bounds[1]), 0.0)
