"""Where a root mean square divides, it is written as a divisor: onnxruntime then knows it as RMS normalization.

PyTorch's newer exporter writes `x * rsqrt(mean(x²) + ε)` as Reciprocal and Mul. onnxruntime (1.31) makes its
SimplifiedLayerNormalization of `Pow, ReduceMean, Add, Sqrt, Div, Mul` only: on a small LLaMA in 8 bit, nine of them
take 99 µs, where what they were written as takes 560 of 3800.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnxq.ir.graph import Node, Value
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import Patch, named_after


@register_pass(order=170, note="wrote {} product{s} with the reciprocal of a root mean square as quotient{s}")
def quotients(model: Model) -> Iterator[Patch]:
    """Describe one change for each value that is multiplied by the reciprocal of its own root mean square."""
    for graph in model.graph.graphs():
        for node in graph.nodes:
            root = node.inputs[0] if node.op_type == "Reciprocal" and not node.domain else None
            product = _only_reader(node) if root is not None else None
            if root is None or product is None or product.op_type != "Mul":
                continue
            others = [value for value in product.inputs if value is not node.outputs[0]]
            output = product.outputs[0]
            if len(others) != 1 or others[0] is None or output is None or _squared(root) is not others[0]:
                continue
            patch = Patch(graph, product, "its factor is a reciprocal")
            quotient = patch.op("Div", others[0], root, hint=output.name)
            named_after(patch, product)
            patch.replace(output, quotient)
            yield patch


def _only_reader(node: Node) -> Node | None:
    """Give the one node of the same graph that reads what a node makes."""
    value = node.outputs[0]
    use = value.only_use if value is not None else None
    return use.node if use is not None and use.node.graph is node.graph and not use.node.domain else None


def _squared(root: Value) -> Value | None:
    """Give the value of whose squares, their mean and a constant a value is the square root."""
    total = _argument(root, "Sqrt")
    made = total.producer if total is not None else None
    if made is None or made.op_type != "Add" or made.domain:
        return None
    means = [value for value in made.inputs if value is not None and value.constant is None]
    squares = _argument(means[0], "ReduceMean") if len(means) == 1 else None
    made = squares.producer if squares is not None else None
    exponent = made.inputs[1] if made is not None and made.op_type == "Pow" and not made.domain else None
    if made is None or exponent is None or exponent.constant is None or exponent.constant.size != 1:
        return None
    return made.inputs[0] if float(exponent.constant.numpy().reshape(-1)[0]) == 2 else None


def _argument(value: Value, op_type: str) -> Value | None:
    made = value.producer
    return made.inputs[0] if made is not None and made.op_type == op_type and not made.domain else None
