"""Group the inputs of a quantized operator: codes with their scale and zero point.

Tests: `tests/verification/test_wellformed.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnxq.ir import Node, Value
from onnxq.ir.graph import MICROSOFT

OUTPUT = -1


@dataclass(frozen=True)
class Group:
    """Places of what belongs together.

    Attributes:
        codes: Input of the codes, or `OUTPUT` for the first output.
        scale: Input of the scale; None for operators that leave it to others.
        zero_point: Input of the zero point.
        axis: Axis of the codes that a 1-D scale runs along: a number; None where only a scalar makes sense, or where
            the specification allows several axes.

    """

    codes: int
    scale: int | None
    zero_point: int
    axis: int | None = None


@dataclass(frozen=True)
class CodeParameters:
    """A group of one node, looked up; what is absent is None."""

    node: Node
    group: Group
    codes: Value | None
    scale: Value | None
    zero_point: Value | None


_UNARY = (Group(0, 1, 2), Group(OUTPUT, 3, 4))
_BINARY = (Group(0, 1, 2), Group(3, 4, 5), Group(OUTPUT, 6, 7))
_CONV = (Group(0, 1, 2), Group(3, 4, 5, axis=0), Group(OUTPUT, 6, 7))
QUANTIZE = (Group(OUTPUT, 1, 2),)
DEQUANTIZE = (Group(0, 1, 2),)

# Sources: Operators.md of onnx 1.23; ContribOperators.md of onnxruntime 1.31
GROUPS: dict[tuple[str, str], tuple[Group, ...]] = {
    ("", "QuantizeLinear"): QUANTIZE,
    ("", "DequantizeLinear"): DEQUANTIZE,
    (MICROSOFT, "QuantizeLinear"): QUANTIZE,
    (MICROSOFT, "DequantizeLinear"): DEQUANTIZE,
    ("", "QLinearConv"): _CONV,
    (MICROSOFT, "QLinearConv"): _CONV,
    ("", "QLinearMatMul"): (Group(0, 1, 2), Group(3, 4, 5, axis=-1), Group(OUTPUT, 6, 7)),
    ("", "MatMulInteger"): (Group(0, None, 2), Group(1, None, 3, axis=-1)),
    ("", "ConvInteger"): (Group(0, None, 2), Group(1, None, 3, axis=0)),
    (MICROSOFT, "QGemm"): (Group(0, 1, 2), Group(3, 4, 5), Group(OUTPUT, 7, 8)),
    (MICROSOFT, "MatMulIntegerToFloat"): (Group(0, 2, 4), Group(1, 3, 5, axis=-1)),
    (MICROSOFT, "DynamicQuantizeMatMul"): (Group(1, 2, 3, axis=-1),),
    (MICROSOFT, "QLinearWhere"): (Group(1, 2, 3), Group(4, 5, 6), Group(OUTPUT, 7, 8)),
    **{(MICROSOFT, name): _BINARY for name in ("QLinearAdd", "QLinearMul")},
    **{
        (MICROSOFT, name): _UNARY
        for name in (
            "QLinearSigmoid",
            "QLinearLeakyRelu",
            "QLinearSoftmax",
            "QLinearAveragePool",
            "QLinearGlobalAveragePool",
        )
    },
}


def parameters_of(node: Node) -> list[CodeParameters]:
    """Look up the groups of a node; nothing for a node that is not quantized."""
    groups = GROUPS.get((node.domain, node.op_type), ())
    if (node.domain, node.op_type) == (MICROSOFT, "QLinearConcat"):
        groups = (Group(OUTPUT, 0, 1), *(Group(at, at + 1, at + 2) for at in range(2, len(node.inputs) - 2, 3)))
    return [
        CodeParameters(node, group, _codes(node, group), _input(node, group.scale), _input(node, group.zero_point))
        for group in groups
    ]


def is_quantize(node: Node) -> bool:
    """Whether the node is a QuantizeLinear, of either domain."""
    return node.op_type == "QuantizeLinear" and node.domain in ("", MICROSOFT)


def is_dequantize(node: Node) -> bool:
    """Whether the node is a DequantizeLinear, of either domain."""
    return node.op_type == "DequantizeLinear" and node.domain in ("", MICROSOFT)


def _codes(node: Node, group: Group) -> Value | None:
    if group.codes == OUTPUT:
        return node.outputs[0] if node.outputs else None
    return _input(node, group.codes)


def _input(node: Node, index: int | None) -> Value | None:
    return node.input(index) if index is not None else None
