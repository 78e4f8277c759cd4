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
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.shape_inference.dims import product
from onnxq.ir.shape_inference.symbolic import Shapes
from onnxq.ir.tensor import DeferredTensor, Tensor

LEAST = 64  # rows and columns of a weight: below, it may stay in float, where a Gemm adds its bias for nothing


class Flattened(NamedTuple):
    """A Gemm between two Reshape nodes."""

    source: Value
    gemm: Node
    back: Node
    output: Value
    weight: Value
    bias: Value | None


@register_pass(order=120, integer=True, note="wrote {} Gemm of flattened rows as product{s} of the tensor itself")
def flattened(model: Model) -> Iterator[Patch]:
    """Describe one change for each such Gemm of the main graph, where the sizes are proved to be the same again."""
    graph = model.graph
    found = [each for node in graph.nodes if (each := _flattened(node)) is not None]
    shapes = Shapes(graph, model.opset) if found else None
    for each in found:
        assert shapes is not None
        target = _come_back(each, shapes)
        at_once = target is None and _is_square(each, shapes)
        if target is None and not at_once:
            continue
        patch = Patch(graph, each.gemm, "its rows are flattened for it alone")
        name, source, weight = each.output.name, each.source, each.weight
        if target:
            joined = patch.constant(np.array(target, np.int64), f"{name}_joined_axes")
            source = patch.op("Reshape", source, joined, hint=f"{name}_joined")
        elif at_once:
            zeros = {"allowzero": 1} if each.back.attribute("allowzero", 0) else {}
            source = patch.op("Reshape", source, each.back.inputs[1], hint=f"{name}_joined", **zeros)
        if each.gemm.attribute("transB", 0):
            weight = patch.constant(_turned(weight), f"{weight.name}_transposed")
        result = patch.op("MatMul", source, weight, hint=name if each.bias is None else f"{name}_product")
        if each.gemm.name:
            patch.nodes[-1].name = each.gemm.name
        if each.bias is not None:
            result = patch.op("Add", result, each.bias, hint=name)
        patch.replace(each.output, result)
        yield patch


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
    return None if made is None else Flattened(source, node, use.node, made, weight, bias)


def _reshaped(node: Node | None, gemm: Node) -> Value | None:
    """Give what a Reshape of the same graph reads."""
    if node is None or node.op_type != "Reshape" or node.domain or node.graph is not gemm.graph:
        return None
    return node.inputs[0]


def _turned(weight: Value) -> Tensor:
    tensor = weight.constant
    assert tensor is not None
    return DeferredTensor(tensor.dtype, tensor.shape[::-1], lambda: np.ascontiguousarray(tensor.numpy().T))


def _come_back(each: Flattened, shapes: Shapes) -> list[int] | None:
    """Give the target of a Reshape that joins the last axes alone, where all before them are the same again behind.

    It is empty where there is one such axis; None is for sizes that are not proved to be the same.
    """
    before, after = shapes.of(each.source), shapes.of(each.output)
    if before is None or after is None or not 3 <= len(after) <= len(before):
        return None
    lead = len(after) - 1
    rows, columns = product(before[lead:]), after[-1]
    if min(rows.number, columns.number) < LEAST or rows.symbols + columns.symbols or before[:lead] != after[:lead]:
        return None
    return [] if len(before) == len(after) else [0] * lead + [rows.number]


def _is_square(each: Flattened, shapes: Shapes) -> bool:
    """Whether what the second Reshape is told fits in front of the product, too: its rows stay in their order."""
    after, told = shapes.of(each.output), shapes.content(each.back.inputs[1])
    if after is None or told is None or len(after) < 3 or any(size.number == 0 for size in told):
        return False
    weight = each.weight.constant
    return weight is not None and min(weight.shape) >= LEAST and (after[-1].known,) * 2 == tuple(weight.shape)
