"""Bounds of a tensor: limits of the operator that makes it, and limits beyond which its readers are flat."""

from __future__ import annotations

from math import inf

from onnxq.ir import Node, Value
from onnxq.ir.operator_traits import BOUNDS, Trait, operators_with
from onnxq.ops.forms.family import NodeView
from onnxq.ops.forms.integer_domain import CLAMPS, clamp_bounds
from onnxq.ops.forms.scheme import Scheme
from onnxq.planning.reader_curves import reader_curve

UNKNOWN = (-inf, inf)
# Their outputs are values of their first input, or means of such and zeros
PASSING = operators_with(Trait.MOVES) | operators_with(Trait.POOLS)
# Ends beyond which operators are flat: SiLU of -8 is -0.003, Gelu of -5 is -0.000001, and Tanh of 5 is
# 0.9999. A Sigmoid alone is not here: an output that is next to zero differs by factors there
FLAT = {"HardSwish": (-3.0, inf), "Gelu": (-5.0, inf), "Tanh": (-5.0, 5.0)}
GATE_OF_SILU = -8.0
MARGIN = 1.05  # beyond that, an end may lie half a step nearer to zero, for zero has a code


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


def flat_beyond(value: Value) -> tuple[float, float]:
    """Return the ends beyond which all readers of a tensor make the same of it; infinite where there are none.

    Below -3, HardSwish gives zero, whatever it reads: codes there would be wasted.
    """
    if value.is_output or not value.uses:
        return UNKNOWN
    curve = reader_curve(value)
    if curve is not None and curve.flat_beyond() != UNKNOWN:
        low, high = curve.flat_beyond()
        return MARGIN * low, MARGIN * high
    ends = [_flat_beyond(node, value) for node in value.consumers()]
    return MARGIN * min(low for low, _ in ends), MARGIN * max(high for _, high in ends)


def _flat_beyond(node: Node, value: Value) -> tuple[float, float]:
    if node.domain:
        return UNKNOWN
    if node.op_type in FLAT:
        return FLAT[node.op_type]
    if node.op_type == "Mul":
        low = [_gate_end(gate.sole_maker(node), value) for gate in node.reads if gate is not value]
        return (low[0], inf) if low else UNKNOWN
    made = node.outputs[0]
    use = made.only_use if made is not None else None
    if use is not None and use.node.op_type == "Mul" and not use.node.domain and value in use.node.inputs:
        return _gate_end(node, value), inf  # the Mul reads both
    return _line_ends(node) if node.op_type == "HardSigmoid" else UNKNOWN


def _gate_end(gate: Node | None, value: Value) -> float:
    """Return below what a gate of a value is closed; minus infinity where it is none."""
    if gate is None or gate.inputs[0] is not value:
        return -inf
    if gate.op_type == "Sigmoid":
        return GATE_OF_SILU
    return _line_ends(gate)[0] if gate.op_type == "HardSigmoid" else -inf


def _line_ends(node: Node) -> tuple[float, float]:
    """Return where a HardSigmoid that rises reaches 0, and where it reaches 1."""
    alpha, beta = float(node.attribute("alpha", 0.2)), float(node.attribute("beta", 0.5))
    return (-beta / alpha, (1 - beta) / alpha) if alpha > 0 and 0 < beta < 1 else UNKNOWN
