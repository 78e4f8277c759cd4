"""Simplifying passes, one file each: a function that an exporter has decomposed becomes one operator or none.
Others are written in the form for which the target's runtime has its faster kernel.

They keep what a model computes, to rounding. They run where the recipe allows it and the target gains.
"""

from collections.abc import Collection

from onnxq.errors import ModelError
from onnxq.ir.model import Model
from onnxq.ir.opset import raise_opset
from onnxq.ir.pass_manager import SIMPLIFY, Outcome, run_passes, select_passes
from onnxq.ir.passes import normalise
from onnxq.ir.shape_inference.types import infer_types

__all__ = ["convert", "simplify"]

SLOW_POOLS = 19  # from here on, AveragePool has dilations, and onnxruntime's kernel takes five to six times as long
ROUNDS = 8  # one pass can make work for another; so deep a nesting has no exporter shown yet


def simplify(model: Model, only: Collection[str] | None = None, *, integer: bool = True) -> Outcome:
    """Run the simplifying passes until none finds anything more.

    Args:
        model: A normalised model, types inferred; it is changed.
        only: Names of passes; None for all of them.
        integer: Whether products are going to compute in 8 bit.

    Raises:
        InvalidResult: A pass broke the graph.
        ValueError: `only` names a pass that does not exist.

    """
    chosen = [item for item in select_passes(SIMPLIFY, only) if integer or not item.integer]
    return run_passes(model, chosen, rounds=ROUNDS, typed=True, keep=True, convert=convert)


def convert(model: Model, opset: int) -> Model | None:
    """Return a copy of a model in another operator set, normalised and types inferred; None where that does not pay."""
    averages = any(node.op_type == "AveragePool" and not node.domain for node in model.graph.walk())
    if model.opset < SLOW_POOLS <= opset and averages:
        return None
    try:
        newer = raise_opset(model, opset)
    except ModelError:  # then it stays decomposed
        return None
    normalise(newer)
    infer_types(newer)
    return newer
