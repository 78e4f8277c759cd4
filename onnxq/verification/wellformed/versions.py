"""Operator sets: imported where used, and new enough for what Q/DQ nodes ask of them.

Tests: `tests/verification/test_wellformed.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from onnxq.ir import Model, Node
from onnxq.verification.wellformed.constants import dtype_of, shape_of, type_name
from onnxq.verification.wellformed.defect import Defect, at
from onnxq.verification.wellformed.groups import is_dequantize, is_quantize, parameters_of

# Source: the versions of QuantizeLinear and DequantizeLinear in Changelog.md of onnx 1.23
TYPE_SINCE: dict[int, int] = {
    TensorProto.FLOAT16: 19,
    TensorProto.BFLOAT16: 19,
    TensorProto.FLOAT8E4M3FN: 19,
    TensorProto.FLOAT8E4M3FNUZ: 19,
    TensorProto.FLOAT8E5M2: 19,
    TensorProto.FLOAT8E5M2FNUZ: 19,
    TensorProto.UINT16: 21,
    TensorProto.INT16: 21,
    TensorProto.UINT4: 21,
    TensorProto.INT4: 21,
    TensorProto.FLOAT4E2M1: 23,
    TensorProto.FLOAT8E8M0: 24,
    TensorProto.UINT2: 25,
    TensorProto.INT2: 25,
    TensorProto.FLOAT6E2M3: 28,
    TensorProto.FLOAT6E3M2: 28,
}
ATTRIBUTE_SINCE = {
    ("QuantizeLinear", "axis"): 13,
    ("DequantizeLinear", "axis"): 13,
    ("QuantizeLinear", "saturate"): 19,
    ("QuantizeLinear", "block_size"): 21,
    ("DequantizeLinear", "block_size"): 21,
    ("QuantizeLinear", "output_dtype"): 21,
    ("DequantizeLinear", "output_dtype"): 23,
    ("QuantizeLinear", "precision"): 23,
}


def check_imports(model: Model) -> Iterator[Defect]:
    """Find domains whose operators are used and whose version the model does not state."""
    told: set[str] = set()
    for node in model.graph.walk():
        if node.domain not in model.opsets and node.domain not in told:
            told.add(node.domain)
            yield at(
                node, None, f"is of the domain '{node.domain or 'ai.onnx'}', whose version the model does not import"
            )


def check_version(node: Node, opset: int) -> Iterator[Defect]:
    """Find what a QuantizeLinear or DequantizeLinear of ai.onnx asks of a newer operator set than the model has."""
    if node.domain or not (is_quantize(node) or is_dequantize(node)):
        return
    if opset < 10:
        yield at(node, None, f"needs opset 10, but the model has opset {opset}")
        return
    for name in node.spans:
        since = ATTRIBUTE_SINCE.get((node.op_type, name), 0)
        if since > opset:
            yield at(
                node, None, f"has the attribute {name}, which needs opset {since}, but the model has opset {opset}"
            )
    (found,) = parameters_of(node)
    shape = shape_of(found.scale)
    if shape is not None and shape not in ((), (1,)) and opset < 13:
        sentence = f"has a scale '{found.scale.name if found.scale else ''}' for each channel, which needs opset 13"
        yield at(node, found.scale, f"{sentence}, but the model has opset {opset}")
    types = (dtype_of(value) for value in (*node.inputs[:3], *node.outputs[:1]))
    for dtype in dict.fromkeys(t for t in types if t is not None):
        since = TYPE_SINCE.get(dtype, 0)
        if since > opset:
            yield at(
                node, None, f"works on {type_name(dtype)}, which needs opset {since}, but the model has opset {opset}"
            )
