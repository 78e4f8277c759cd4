"""Find the logits that probabilities come from, and tell what an error of theirs does to those.

Tests: `tests/search/test_held_out.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from onnxq.ir import Model, Node, Value
from onnxq.ir.operator_traits import Trait, operators_with
from onnxq.verification.error_stats import Difference

FLATTENING = ("Softmax", "LogSoftmax", "Sigmoid")
# The squared size of probabilities in between, and the squared slope by which they follow the scores
SLOPES = {"Softmax": (1 / 2, 1 / 4), "Sigmoid": (1 / 4, 1 / 16)}
# Operators that may stand between those and the output: they move values, code them, or give them another type
BETWEEN = operators_with(Trait.IN_ORDER) | {"Transpose", "QuantizeLinear", "DequantizeLinear", "Cast"}


class ScoreError(NamedTuple):
    """How far scores are, in front of the Softmax or Sigmoid that makes probabilities of them.

    Attributes:
        sqnr: Their ratio in dB.
        signal: Squared size of probabilities that lie in between: of two classes that are alike, or of one by itself.
        noise: What the error of the scores makes of those. A class has the slope 1/4 in the difference of two scores,
            or in its own.

    """

    sqnr: float
    signal: float
    noise: float

    @classmethod
    def of(cls, scores: Difference, reader: str) -> ScoreError:
        """Take it from all scores of some samples, and the operator that reads them, one of `SLOPES`."""
        error = scores.noise / max(scores.elements, 1)
        signal, slope = SLOPES[reader]
        return cls(scores.sqnr, signal, slope * error)


def scores(model: Model, read: Sequence[str] = ()) -> dict[str, Value]:
    """Find what stands in front of the Softmax or Sigmoid that outputs come from, or other values, by their names."""
    found: dict[str, Value] = {}
    values = model.graph.values
    for output in [*model.graph.outputs, *(values[name] for name in read if name in values)]:
        node = output.producer
        while node is not None and not node.domain and node.op_type in BETWEEN and node.inputs[0] is not None:
            node = node.inputs[0].producer
        before = node.inputs[0] if node is not None and node.op_type in FLATTENING and not node.domain else None
        if before is not None and before.producer is not None and not before.is_output:
            found[output.name] = before
    return found


def flattening(value: Value) -> Node:
    """Return the Softmax or Sigmoid that reads scores."""
    return next(use.node for use in value.uses if use.node.op_type in FLATTENING)


def shared_axes(value: Value, opset: int) -> tuple[int, int | None] | None:
    """Tell over which axes a Softmax that reads the value normalises, as the ends of a slice; None for a Sigmoid.

    Before opset 13 it is everything from its axis on, 1 by default.
    """
    node = flattening(value)
    if node.op_type == "Sigmoid":
        return None
    axis = int(node.attribute("axis", -1 if opset >= 13 else 1))
    return (axis, None) if opset < 13 or axis == -1 else (axis, axis + 1)
