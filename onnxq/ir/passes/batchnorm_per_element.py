"""BatchNormalization with numbers for every element (`spatial = 0`) is the usual one where channels are elements.

Tests: `tests/ir/test_old_operators.py`.
"""

from __future__ import annotations

from onnxq.ir.graph import Node
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass


@register_pass(order=120, note="rewrote {} BatchNormalization per element as one per channel")
def batchnorm_per_element(model: Model) -> int:
    """Leave the attribute out where it makes no difference: MXNet writes it behind a Gemm, and opset 9 lacks it."""
    nodes = [node for node in model.graph.walk() if _has_rows(node)]
    for node in nodes:
        del node.spans["spatial"]
        node.changed = True
        node.graph.mark_dirty()
    return len(nodes)


def _has_rows(node: Node) -> bool:
    """Whether scale, bias, mean and variance have one axis, as those of an input [batch, channels] have."""
    if node.op_type != "BatchNormalization" or node.domain or node.attribute("spatial", 1) != 0:
        return False
    constants = [value.constant if value is not None else None for value in node.inputs[1:]]
    return len(constants) == 4 and all(tensor is not None and len(tensor.shape) == 1 for tensor in constants)
