"""Times of products with a scale for every row, predicted from the table of a target.

Tests: `tests/planning/test_alternatives.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from onnxq.ir import Node
from onnxq.ops.forms.scheme import ActivationGranularity, Scheme, SchemeName
from onnxq.planning.cost_model import node_times
from onnxq.targets import CACHED, Costs
from onnxq.targets.assumed_shapes import count
from onnxq.targets.target import load_target

NODES, NODES_OF_WINDOW = 9, 5  # in addition to the product; for each element of a window
# The nodes of a Conv hold several copies of what it reads and makes, and go over them about six times. Relative to
# float, eleven Convs of 0.2 to 6 million elements take 0.81 to 1.29 of what follows, Sapphire Rapids, onnxruntime 1.32
COPIES, PASSES = 3, 5.5
MOST_OF_FLOAT = 0.8  # of float's time, if `auto` is to choose it


def row_time(node: Node, costs: Costs) -> float | None:
    """Return the time of a Conv, MatMul or Gemm with a scale for every row of its first input in nanoseconds.

    The conversion to 8 bit is left out for a MatMul or Gemm, as in `node_times`. The windows of a Conv and their layout
    are made after the conversion.

    Returns:
        None where the weight is not the second input, the target has no such times, or shapes are not known.

    """
    rows = costs.table.get("rows")
    read, weight = (node.inputs[0], node.inputs[1]) if len(node.inputs) > 1 else (None, None)
    made = node.outputs[0] if node.outputs else None
    if rows is None or node.domain or read is None or weight is None or weight.tensor is None or made is None:
        return None
    if read.shape is None or made.shape is None:
        return None
    elements, results = count(read, costs.shapes), count(made, costs.shapes)
    scale = costs.scale
    if node.op_type in ("MatMul", "Gemm"):
        product = node_times(node, costs)[1]
        beside = scale * (rows["read"] * elements + rows["made"] * results)
        return product + float(beside) + NODES * costs.borders["node"]
    if node.op_type != "Conv":
        return None
    filters, channels, *kernel = weight.tensor.shape
    positions = math.prod(kernel)
    pixels = max(results // max(filters, 1), 1)
    product = costs.matmul(pixels, channels * positions, filters)[1]
    layout = costs.borders["Transpose"] * (elements + results)
    windows = rows["window"] * pixels * channels * positions + rows["read"] / 2 * elements + rows["made"] * results
    layout += PASSES * costs.borders["beyond"] * max(elements + results - CACHED // COPIES, 0)
    return product + layout + scale * float(windows) + (NODES + NODES_OF_WINDOW * positions) * costs.borders["node"]


def rows_pay(node: Node, costs: Costs) -> bool:
    """Whether a product with a scale for every row is clearly faster than in float."""
    taken = row_time(node, costs)
    return taken is not None and taken <= MOST_OF_FLOAT * node_times(node, costs)[0]


def one_row(node: Node) -> bool:
    """Whether a MatMul or Gemm reads a single row of each sample.

    A model that is given one token at a time has such products, and one whose batch is fixed at 1. A scale found at run
    time is then one for this row, as accurate as can be, and takes no longer than a fixed one.
    """
    takes = node.op_type in ("MatMul", "Gemm") and not node.domain and len(node.inputs) > 1
    read = node.inputs[0] if takes else None
    shape = read.shape if read is not None and read.tensor is None else None
    if shape is None or len(shape) < 2 or (node.op_type == "Gemm" and node.attribute("transA", 0)):
        return False
    return all(size == 1 for size in (shape[:1] if len(shape) == 2 else shape[1:-1]))


def settings_to_try(
    node: Node, scheme: Scheme, names: tuple[SchemeName, ...], costs: Costs | None = None
) -> Iterator[Scheme]:
    """Set each scheme in turn; where `auto` may choose, rows that pay come before a scale for the whole activation.

    That is the same where there is one row.
    """
    ours = scheme.name == scheme.activation_granularity == "auto" and load_target(scheme.target).timed
    ours = ours and not one_row(node)
    for name in names:
        if name == "dynamic-int8" and ours and costs is not None and rows_pay(node, costs):
            yield _named(scheme, name, "row")
        yield _named(scheme, name, scheme.activation_granularity)


@cache
def _named(scheme: Scheme, name: SchemeName, granularity: ActivationGranularity) -> Scheme:
    """Return the scheme with another name, made once: every plan asks for the same few for every node."""
    return replace(scheme, name=name, activation_granularity=granularity)
