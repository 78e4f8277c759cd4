"""A Conv over single places in front of a Transpose to channels last, as a product of matrices.

The heads of detectors are such: what they make goes to one list of boxes, in float. A QLinearConv has to round it to 8
bit first, and onnxruntime's product of codes writes floats: a face detector takes 0.96 of the time. In float it is
the other way round, since the Conv writes channels last on its way.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from onnxq.ir import Node, Patch
from onnxq.ir.patch import named_after
from onnxq.ir.shape_inference.padding import pads_of
from onnxq.planning.decision import Plan


def pointwise(plan: Plan) -> Iterator[Node]:
    """List each Conv over single places whose result goes channels last, to be read in float."""
    integer = {decision.node for decision in plan.decisions if decision.scheme == "static-int8"}
    for decision in plan.decisions:
        last = _channels_last(decision.node) if _is_pointwise(decision.node) else None
        if last is not None and last not in integer:
            yield decision.node


def as_product(node: Node) -> Patch:
    """Describe a Transpose, a MatMul and an Add in the place of a Conv that `pointwise` lists and its Transpose."""
    last, weight = _channels_last(node), node.inputs[1]
    assert last is not None
    assert weight is not None
    made, source = last.outputs[0], node.inputs[0]
    assert made is not None
    assert source is not None
    patch = Patch(node.graph, node, "a product of codes writes floats")
    matrix = np.ascontiguousarray(weight.elements.numpy().reshape(weight.elements.shape[:2]).T)
    places = patch.op("Transpose", source, hint=f"{source.name}_channels_last", perm=last.attribute("perm"))
    named_after(patch, last)
    value = patch.op("MatMul", places, patch.constant(matrix, f"{weight.name}_matrix"), hint=made.name)
    named_after(patch, node)
    bias = node.input(2)
    if bias is not None:
        value = patch.op("Add", value, bias, hint=made.name)
    patch.replace(made, value)
    return patch


def _is_pointwise(node: Node) -> bool:
    weight = node.constant(1)
    if node.op_type != "Conv" or node.domain or weight is None:
        return False
    axes = len(weight.shape) - 2
    single = weight.dtype == TensorProto.FLOAT and set(weight.shape[2:]) == {1} and node.attribute("group", 1) == 1
    still = set(node.attribute("strides", [1] * axes)) == {1} and set(pads_of(node, axes)) == {0}
    return single and still and (node.input(2) is None or node.constant(2) is not None)


def _channels_last(node: Node) -> Node | None:
    """Return the Transpose that alone reads a node's output, if it puts channels last and nothing else moves."""
    made = node.outputs[0]
    use = made.only_use if made is not None else None
    last = use.node if use is not None and use.node.graph is node.graph else None
    if last is None or last.op_type != "Transpose" or last.domain or last.outputs[0] is None:
        return None
    perm = list(last.attribute("perm") or ())
    return last if len(perm) > 2 and perm == [0, *range(2, len(perm)), 1] else None
