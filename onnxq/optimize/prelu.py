"""PRelu, which onnxruntime computes element by element, by operators that it computes in rows.

Its PRelu (1.31) takes 5 nanoseconds an element where every channel has a slope of its own: three fifths of the time of
a network for faces, and more the less its convolutions take. Where no slope is above 1, it is the greater of x and a x,
and else max(x, 0) + a (x - max(x, 0)), to the bit: two operators take a fifth of the time, four a quarter.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnxq.ir import Model, Node, Patch
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import named_after
from onnxq.ir.schemas import MAX_BROADCASTS
from onnxq.targets.assumed_shapes import count

LEAST_ELEMENTS = 2048  # fewer take no longer than the nodes that come in


@register_pass(order=150, timed=True, operators=("PRelu",), opset=MAX_BROADCASTS, types=True)
def spell_slopes(model: Model) -> Iterator[Patch]:
    """Write PRelu with slopes for channels as operators that are faster.

    Args:
        model: A model of operator set 8 or later whose types are inferred. What it computes of finite
            numbers stays the same to the bit.

    """
    for graph in model.graph.graphs():
        yield from (_patch(node) for node in graph.nodes if _pays(node))


def _pays(node: Node) -> bool:
    if node.op_type != "PRelu" or node.domain or None in node.inputs or node.outputs[0] is None:
        return False
    (x, slope) = node.inputs
    assert x is not None
    assert slope is not None
    if slope.constant is None or slope.constant.size == 1:
        return False
    return x.shape is None or count(x) >= LEAST_ELEMENTS


def _patch(node: Node) -> Patch:
    (x, slope), made = node.inputs, node.outputs[0]
    assert slope is not None
    assert slope.constant is not None
    assert made is not None
    patch = Patch(node.graph, node, "its kernel goes element by element")
    if slope.constant.numpy().max() <= 1:
        result = patch.op("Max", x, patch.op("Mul", x, slope, hint=f"{made.name}_below"), hint=made.name)
    else:
        above = patch.op("Relu", x, hint=f"{made.name}_above")
        below = patch.op("Mul", patch.op("Sub", x, above, hint=f"{made.name}_rest"), slope, hint=f"{made.name}_below")
        result = patch.op("Add", above, below, hint=made.name)
    named_after(patch, node)
    patch.replace(made, result)
    return patch
