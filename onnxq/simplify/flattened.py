"""A Gemm of rows that are laid one after the other for it alone is a product of the tensor as it was.

GPT-2 and its kin do so in every layer: Reshape to two axes, Gemm, and Reshape back to sizes that are computed again.
What stands behind a product, such as the Split into queries, keys and values, can then be taken for what it is, and in
8 bit onnxruntime adds the bias to a product as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from onnxq.ir import Model, Node, Patch, Value
from onnxq.ir.shapes import Shapes
from onnxq.ir.tensor import DeferredTensor, Tensor
from onnxq.simplify.registry import Change, simplifies

LEAST = 64  # rows and columns of a weight: below, it may stay in float, where a Gemm adds its bias for nothing
SAYS = "wrote {} Gemm of flattened rows as product{s} of the tensor itself"


class Flattened(NamedTuple):
    """A Gemm between two Reshape nodes."""

    source: Value
    gemm: Node
    output: Value
    weight: Value
    bias: Value | None


@simplifies(order=34, integer=True)
def flattened(model: Model) -> Iterator[Change]:
    """Describe one change for each such Gemm of the main graph, where the sizes are proved to be the same again."""
    graph = model.graph
    found = [each for node in graph.nodes if (each := _flattened(node)) is not None]
    shapes = Shapes(graph, model.opset) if found else None
    for each in found:
        assert shapes is not None
        if not _come_back(each, shapes):
            continue
        patch = Patch(graph, each.gemm, "its rows are flattened for it alone")
        name = each.output.name
        weight = each.weight
        if each.gemm.attribute("transB", 0):
            weight = patch.constant(_turned(weight), f"{weight.name}_transposed")
        result = patch.op("MatMul", each.source, weight, hint=name if each.bias is None else f"{name}_product")
        if each.gemm.name:
            patch.nodes[-1].name = each.gemm.name
        if each.bias is not None:
            result = patch.op("Add", result, each.bias, hint=name)
        patch.replace(each.output, result)
        yield Change(patch, SAYS)


def _flattened(node: Node) -> Flattened | None:
    if node.op_type != "Gemm" or node.domain or node.attribute("transA", 0):
        return None
    if node.attribute("alpha", 1.0) != 1 or node.attribute("beta", 1.0) != 1:
        return None
    rows, weight, bias, output = *[*node.inputs, None][:3], node.outputs[0]
    use = output.only_use if output is not None else None
    source = _reshaped(rows.producer if rows is not None else None, node)
    tensor = weight.constant if weight is not None else None
    if use is None or source is None or tensor is None or weight is None or _reshaped(use.node, node) is not output:
        return None
    if bias is not None and (bias.constant is None or len(bias.constant.shape) > 1):
        return None
    made = use.node.outputs[0]
    return None if made is None else Flattened(source, node, made, weight, bias)


def _reshaped(node: Node | None, gemm: Node) -> Value | None:
    """Give what a Reshape of the same graph reads."""
    if node is None or node.op_type != "Reshape" or node.domain or node.graph is not gemm.graph:
        return None
    return node.inputs[0]


def _turned(weight: Value) -> Tensor:
    tensor = weight.constant
    assert tensor is not None
    return DeferredTensor(tensor.dtype, tensor.shape[::-1], lambda: np.ascontiguousarray(tensor.numpy().T))


def _come_back(each: Flattened, shapes: Shapes) -> bool:
    """Whether all axes but the last are the same in front of the first Reshape and behind the second."""
    before, after = shapes.of(each.source), shapes.of(each.output)
    if before is None or after is None or len(before) < 3:
        return False
    ends = (before[-1].number, after[-1].number)
    return min(ends) >= LEAST and not before[-1].symbols + after[-1].symbols and before[:-1] == after[:-1]
