"""Bounds that a tensor cannot leave, whatever the input: those of the operator that makes it."""

from __future__ import annotations

from math import inf

from onnxq.ir import Node, Value
from onnxq.ops.family import Site
from onnxq.ops.integer_domain import CLAMPS, MOVERS, clamp_bounds
from onnxq.ops.scheme import Scheme

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
# What they give are values of their first input, or means of such and zeros
POOLS = ("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool")
PASSING = (*MOVERS, *POOLS, "Expand", "Gather", "Identity", "Slice", "Tile")


def exact_bounds(value: Value) -> tuple[float, float]:
    """Give the least and the greatest value that a tensor can have, zero among them; infinite where there is none."""
    node = value.producer
    while node is not None and not node.domain and node.op_type in PASSING:
        source = node.inputs[0]
        node = source.producer if source is not None else None
    low, high = _made_by(node) if node is not None and not node.domain else UNKNOWN
    return min(low, 0.0), max(high, 0.0)


def _made_by(node: Node) -> tuple[float, float]:
    if node.op_type in CLAMPS and node.inputs[0] is not None:
        clamp, before = clamp_bounds(Site(node, Scheme(), 1)), exact_bounds(node.inputs[0])
        return (max(clamp[0], before[0]), min(clamp[1], before[1])) if clamp is not None else UNKNOWN
    return BOUNDS.get(node.op_type, UNKNOWN)
