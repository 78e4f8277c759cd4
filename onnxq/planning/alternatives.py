"""Alternatives of a search between integer products and float."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from onnxq.ir import Node
from onnxq.ir.graph import MICROSOFT
from onnxq.ops.forms.family import NotQuantizable
from onnxq.planning.cost_model import node_times
from onnxq.planning.decision import Override
from onnxq.planning.planner import form_of
from onnxq.planning.recipe import Recipe
from onnxq.planning.row_costs import one_row, row_time, rows_pay
from onnxq.targets import Costs
from onnxq.targets.target import load_target

BLOCK_SIZE = 32
BLOCKED: tuple[tuple[str, Any], ...] = (("block_size", BLOCK_SIZE), ("accuracy_level", 4))
REASON = "scales by block are more accurate than integer products and faster than float"
ROWS: tuple[tuple[str, Any], ...] = (("activation_granularity", "row"),)
BLOCKS_OF_FLOAT = 0.84  # of float's time, on a MiniLM
BY_ROWS = "a scale for every row is more accurate than one for all samples, and faster than float"
# How much of the squared error of static 8 bit remains. Rows: 0.13 to 0.35 where a node of a MiniLM or of magika loses
# much, about as much as before where it loses little
BLOCKS_LEFT, ROWS_LEFT = 0.4, 0.3


@dataclass(frozen=True)
class Alternative:
    """An alternative to a static integer product that is not float.

    Attributes:
        choice: What to choose.
        time: Predicted, in nanoseconds.
        left: How much of the node's squared error is expected to remain, 0 to 1.

    """

    choice: Override
    time: float
    left: float


def alternatives(node: Node, recipe: Recipe, opset: int, costs: Costs) -> tuple[Alternative, ...]:
    """List what stands between 8 bit and float for a node and takes less time than float, the fastest first.

    Args:
        node: A node that the recipe leaves to `auto`, and that is a static integer product.
        recipe: What was asked for.
        opset: Of the model, which a search cannot convert any more.
        costs: Kernel times.

    """
    rows, blocks = by_rows(node, recipe, opset), by_blocks(node, recipe, opset)
    in_float, taken = node_times(node, costs)[0], row_time(node, costs)
    # The prediction leaves out the Add and the Relu that onnxruntime computes with a float Conv
    if node.op_type == "Conv" and not rows_pay(node, costs):
        rows = None
    found = [] if rows is None or taken is None else [Alternative(rows, taken, ROWS_LEFT)]
    found += [] if blocks is None else [Alternative(blocks, BLOCKS_OF_FLOAT * in_float, BLOCKS_LEFT)]
    return tuple(sorted((one for one in found if one.time < in_float), key=lambda one: one.time))


def by_rows(node: Node, recipe: Recipe, opset: int) -> Override | None:
    """Return the choice of an integer product with a scale for every row, computed at run time.

    Args:
        node: A node that the recipe leaves to `auto`.
        recipe: What was asked for.
        opset: Of the model.

    Returns:
        None where the node has no such form. Also where it reads one row, whose scale is that of the tensor: a single
        kernel finds it then.

    """
    scheme, _ = recipe.scheme_for(node.op_type, node.name)
    if scheme.name != "auto" or scheme.activation_granularity == "tensor" or not load_target(scheme.target).timed:
        return None
    if one_row(node):
        return None
    try:
        form = form_of(node, replace(scheme, name="dynamic-int8", **dict(ROWS)), opset)
    except NotQuantizable:
        return None
    return Override("dynamic-int8", BY_ROWS, ROWS) if form.opset <= opset else None


def by_blocks(node: Node, recipe: Recipe, opset: int) -> Override | None:
    """Return the choice of 8-bit weights with a scale for each 32, which onnxruntime multiplies by MatMulNBits.

    On a MiniLM that is 4 dB better than static integer products at twice their time, and 0.84 of the time of float.

    Args:
        node: A node that the recipe leaves to `auto`.
        recipe: MatMulNBits itself needs its permission, `allow = ["com.microsoft"]`; without it, a MatMul reads its
            weight through DequantizeLinear, of which onnxruntime makes the same operator.
        opset: Of the model. DequantizeLinear knows blocks from 21 on, and a search cannot convert the model any more.

    Returns:
        None where the node has no such form, or only one that onnxruntime dequantizes in every run.

    """
    allowed = MICROSOFT in recipe.allow
    fused = node.op_type == "MatMul" and opset >= 21
    if node.op_type not in ("MatMul", "Gemm") or node.domain or not (allowed or fused):
        return None
    scheme, _ = recipe.scheme_for(node.op_type, node.name)
    settings = (("form", "matmulnbits" if allowed else "qdq"), *BLOCKED)
    if scheme.name != "auto" or not load_target(scheme.target).blocks_fused:
        return None
    try:
        form = form_of(node, replace(scheme, name="weight-int8", **dict(settings)), opset)
    except NotQuantizable:
        return None
    return Override("weight-int8", REASON, settings) if form.opset <= opset else None
