"""SiLU of what has been codes, as one operator.

When it loads a model, onnxruntime copies a DequantizeLinear for each of its readers (1.32,
`ensure_unique_dq_for_node_unit.cc`). Then Sigmoid and Mul no longer read the same value, and it does not fuse them into
QuickGelu. Two conversions, a Sigmoid and a Mul took three times as long.

Tests: `tests/optimize/test_pad_channels.py`.
"""

from __future__ import annotations

from onnxq.ir.graph import MICROSOFT, Value
from onnxq.ir.match import Match, op, var
from onnxq.ir.patch import Patch
from onnxq.ir.pattern_pass import pattern_pass
from onnxq.optimize.qdq import made_by

X = var("x", lambda value: made_by(value, "DequantizeLinear") is not None, "made by DequantizeLinear")


@pattern_pass(
    op("Mul", X, op("Sigmoid", X, once=True)),
    order=50,
    because="write SiLU as one operator",
    keeps_name=False,
    timed=True,
    domain=MICROSOFT,
)
def write_silu(patch: Patch, found: Match) -> Value:
    """Write QuickGelu, as onnxruntime does by itself of other values; the last bits of floats may change."""
    name = found.root.name
    made = patch.node("QuickGelu", [found["x"]], outputs=[found.result.name], name=name, domain=MICROSOFT, alpha=1.0)
    return made[0]
