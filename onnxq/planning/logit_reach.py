"""Widen the ranges of logits beyond the samples, which lack rare events.

A detector calibrated on pictures without a face has only negative logits. Codes that end there can say of no picture
that there is one. The same holds for what the last layer reads, where no activation function stands between.

Tests: `tests/planning/test_logit_reach.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from onnxq.ir import Node, Value
from onnxq.ir.operator_traits import Trait, operators_with

LOGIT = 4.0  # a Sigmoid of it is 0.98
SHARE = 0.25
MOVING = frozenset({*operators_with(Trait.MOVES), "Concat"})
LAYERS = ("Conv", "Gemm", "MatMul")
# Operators that make scores and boxes of them
DECODING = MOVING | {"Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Clip", "ArgMax", "ReduceMax", "TopK", "Gather"}


class Reach(NamedTuple):
    """How far from zero a range goes either way, at least.

    Attributes:
        logit: Up to there, nothing that was seen is cut off, and what was not seen gets room.
        share: Of the range's longer side, that the shorter one has.

    """

    logit: float = 0.0
    share: float = 0.0


NO_REACH = Reach()


def least_reach(value: Value) -> Reach:
    """Return how far the range of a value goes at least.

    It is `NO_REACH` unless an output is a Sigmoid of the value, or of what one layer makes of it. A gate in the middle
    of a model is none: it is multiplied with what a layer reads. The logits of a Softmax share a range: where one class
    is rare, others show how far they go.
    """
    if _is_logit(value):
        return Reach(logit=LOGIT)
    maker = value.producer
    linear = maker is not None and not maker.domain and maker.op_type in (*LAYERS, "Add")
    layers = (use.node for use in value.uses if use.node.op_type in LAYERS and not use.node.domain) if linear else ()
    made = (layer.outputs[0] for layer in layers)
    return Reach(share=SHARE) if any(_is_logit(output) for output in made if output is not None) else NO_REACH


def _is_logit(value: Value) -> bool:
    sigmoids = (node for node in _following(value, MOVING) if node.op_type == "Sigmoid" and not node.domain)
    return any(_gives_output(node) for node in sigmoids)


def _gives_output(node: Node) -> bool:
    made = node.makes
    behind = (other for value in made for other in _following(value, DECODING))
    return any(value.is_output for value in made) or any(_is_output(other) for other in behind)


def _is_output(node: Node) -> bool:
    passing = node.op_type in DECODING and not node.domain
    return passing and any(value.is_output for value in node.makes)


def _following(value: Value, through: frozenset[str]) -> list[Node]:
    """List the nodes that read a value, and those behind operators that it goes through."""
    found: dict[Node, None] = {}
    left = [value]
    while left:
        for use in left.pop().uses:
            if use.node not in found:
                found[use.node] = None
                if use.node.op_type in through and not use.node.domain:
                    left += use.node.makes
    return list(found)
