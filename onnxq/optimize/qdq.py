"""Recognise pairs of QuantizeLinear and DequantizeLinear, with scales and the nodes between them.

Tests: `tests/optimize/test_integer_clip.py`.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from onnxq.ir import Node, Value

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"


def made_by(value: Value | None, op_type: str) -> Node | None:
    """Return the node that makes a value, if it is of this type."""
    maker = value.producer if value is not None else None
    return maker if maker is not None and maker.op_type == op_type and not maker.domain else None


def between_conversions(node: Node) -> tuple[Node, Node] | None:
    """Return the DequantizeLinear whose numbers a node reads first, and the QuantizeLinear that alone reads its result.

    Whatever their domain; None where there is no such pair, or its QuantizeLinear stands in a body.
    """
    read, made = node.inputs[0] if node.inputs else None, node.outputs[0]
    before = read.producer if read is not None else None
    use = made.only_use if made is not None else None
    if before is None or use is None or use.slot or use.node.graph is not node.graph:
        return None
    return (before, use.node) if (before.op_type, use.node.op_type) == (DEQUANTIZE, QUANTIZE) else None


def one_scale(node: Node) -> bool:
    """Whether a QuantizeLinear or DequantizeLinear has a constant scale for the whole tensor."""
    scale = node.constant(1)
    return scale is not None and scale.size == 1


def scale_and_zero(node: Node) -> tuple[np.ndarray, np.ndarray] | None:
    """Return float32 scale and integer zero point of a conversion that has one of each, both constant, as scalars."""
    if node.attribute("precision", 0):
        return None
    constants = (node.constant(1), node.constant(2))
    scale, zero = (constant.numpy() if constant is not None and constant.size == 1 else None for constant in constants)
    if scale is None or zero is None or scale.dtype != np.float32 or zero.dtype.kind not in "iu":
        return None
    return scale.reshape(()), zero.reshape(())


def unsigned(node: Node) -> bool:
    """Whether a QuantizeLinear or DequantizeLinear has codes of uint8, and one zero point."""
    zero = node.constant(2)
    return zero is not None and zero.dtype == TensorProto.UINT8 and zero.size == 1
