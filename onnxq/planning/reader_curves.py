"""The curve that all readers of a tensor make of it: LeakyRelu, PRelu, an operator that clamps, or one after the other.

Below zero, a LeakyRelu of slope 0.1 makes 1 % of a squared error. If a clamp at -0.4 follows, it makes the same of all
values below -4. Codes that a range spends there are lost to the other side (`onnxq.calibration.shallow_ends`).

Tests: `tests/calibration/test_shallow_ends.py`.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np

from onnxq.ir import Node, Value
from onnxq.ops.forms.family import NodeView
from onnxq.ops.forms.integer_domain import CLAMPS, clamp_bounds
from onnxq.ops.forms.scheme import Scheme


class Curve(NamedTuple):
    """A function of one number: a line above zero, one of less slope below, both clamped.

    Attributes:
        slope: Below zero, 0 to 1.
        low: The least result.
        high: The greatest one.

    """

    slope: float = 1.0
    low: float = -inf
    high: float = inf

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return what becomes of float64 numbers of any shape."""
        return np.clip(np.where(x < 0, self.slope * x, x), self.low, self.high)

    def flat_beyond(self) -> tuple[float, float]:
        """Return the ends beyond which results are clamped, zero between them; infinite where there are none."""
        low = self.low / self.slope if self.slope and self.low > -inf else -inf
        return min(low, 0.0), max(self.high, 0.0)


def reader_curve(value: Value) -> Curve | None:
    """Return what all readers of a value make of it; None where they differ, or where it is no such curve."""
    use = value.only_use
    if use is None or use.node.domain:
        return None
    if _clamp(use.node) is not None:
        return _clamped(Curve(), value)
    slopes = _negative_slopes(use.node) if use.slot == 0 else None
    if slopes is None:
        return None
    curve = Curve(float(np.abs(slopes).max()))
    alike = float(slopes.min()) == curve.slope  # of others, each channel is clamped from another value on
    return _clamped(curve, use.node.outputs[0]) if alike else curve


def _negative_slopes(node: Node) -> np.ndarray | None:
    """Return the slopes below zero of a LeakyRelu or PRelu, if all are less than that above."""
    if node.op_type == "LeakyRelu":
        slopes = np.array([float(node.attribute("alpha", 0.01))])
    elif node.op_type == "PRelu" and (stored := node.constant(1)) is not None:
        slopes = stored.numpy().astype(np.float64).reshape(-1)
    else:
        return None
    return slopes if slopes.size and np.abs(slopes).max() < 1 else None


def _clamped(curve: Curve, made: Value | None) -> Curve:
    """Clamp a curve at the ends of all operators behind a value that do nothing but clamp."""
    while made is not None and made.only_use is not None:
        node = made.only_use.node
        ends = _clamp(node)
        if ends is None:
            break
        low, high = (float(np.clip(end, *ends)) for end in (curve.low, curve.high))
        curve, made = curve._replace(low=low, high=high), node.outputs[0]
    return curve


def _clamp(node: Node) -> tuple[float, float] | None:
    """Return the ends at which an operator clamps what it reads; None where it does anything else."""
    if node.domain:
        return None
    if node.op_type in CLAMPS:
        return clamp_bounds(NodeView(node, Scheme(), 1))
    if node.op_type not in ("Max", "Min") or len(node.inputs) != 2:
        return None
    ends = [constant.numpy() for constant in node.constants]
    if len(ends) != 1 or ends[0].size != 1 or ends[0].dtype.kind != "f":
        return None
    end = float(ends[0].reshape(-1)[0])
    return (end, inf) if node.op_type == "Max" else (-inf, end)
