"""Types behind fused operators of onnxruntime, which shape inference knows nothing of.

For inference alone, such an operator is written as one of ONNX whose first output has the same type and shape. Nodes
keep their places. Inputs and attributes: ContribOperators.md of onnxruntime.

Tests: `tests/ir/test_types.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import helper

from onnxq.ir.graph import MICROSOFT
from onnxq.ir.proto_fields import bodies

# The first output is as large as an input
LIKE_INPUT: Mapping[str, int] = {
    **dict.fromkeys(("BiasAdd", "BiasGelu", "FastGelu", "Gelu", "QuickGelu"), 0),
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "SimplifiedLayerNormalization"), 0),
    "RotaryEmbedding": 0,
}
# The same for attention whose queries, keys and values are apart: heads of values are as wide as those of queries
LIKE_QUERIES = ("MultiHeadAttention", "GroupQueryAttention", "DecoderMaskedMultiHeadAttention")
# Weights in blocks: a product, and a table's rows
BYTE = 8
IN_BLOCKS = ("MatMulNBits", "GatherBlockQuantized")
OF_ONNX = ("SimplifiedLayerNormalization",)  # onnxruntime registers it in ai.onnx as well


def with_stand_ins(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Write fused operators as others of the same types; the model is changed, and no longer computes the same."""
    _replace(proto.graph, {})
    return proto


def _replace(graph: onnx.GraphProto, outer: Mapping[str, tuple[int, ...]]) -> None:
    known = {**outer, **{tensor.name: tuple(tensor.dims) for tensor in graph.initializer}}
    for node in graph.node:
        for body in bodies(node):
            _replace(body, known)
        if node.domain == MICROSOFT and node.op_type in IN_BLOCKS:
            _stand_in_of_blocks(graph, node, known)
        elif node.domain == MICROSOFT or (node.op_type in OF_ONNX and not node.domain):
            _stand_in(node, known)


def _stand_in(node: onnx.NodeProto, known: Mapping[str, tuple[int, ...]]) -> None:
    given = list(node.input)
    inputs, op_type = None, "Identity"
    if node.op_type in LIKE_INPUT:
        inputs = given[:1]
    elif node.op_type == "Attention" and not any(each.name == "qkv_hidden_sizes" for each in node.attribute):
        weight = known.get(given[1], ())
        inputs = given[:1] if len(weight) == 2 and weight[1] == 3 * weight[0] else None
    elif node.op_type in LIKE_QUERIES and all(given[1:3]) and len(given) > 2:
        inputs = given[:1]
    elif node.op_type == "EmbedLayerNormalization":
        inputs, op_type = [given[2], given[0]], "Gather"
    if inputs is not None:
        node.CopyFrom(helper.make_node(op_type, inputs, list(node.output)[:1], name=node.name))


def _stand_in_of_blocks(graph: onnx.GraphProto, node: onnx.NodeProto, known: Mapping[str, tuple[int, ...]]) -> None:
    """Write a product or lookup of codes as that of floats, of which only the shape is stated."""
    numbers = {each.name: each.i for each in node.attribute}
    given, table = list(node.input), f"{node.output[0]}_of_floats"
    if node.op_type == "MatMulNBits":
        shape: tuple[int, ...] = (numbers.get("K", 0), numbers.get("N", 0))
        made = helper.make_node("MatMul", [given[0], table], node.output[:1], name=node.name)
    else:
        shape, axis = known.get(given[0], ()), numbers.get("gather_axis", 0)
        last = numbers.get("quantize_axis", 1) in (-1, len(shape) - 1)
        if not shape or numbers.get("bits", 4) != BYTE or not last:
            return
        made = helper.make_node("Gather", [table, given[1]], node.output[:1], name=node.name, axis=axis)
    if len(given) > 1 and all(shape):
        graph.value_info.append(helper.make_tensor_value_info(table, onnx.TensorProto.FLOAT, shape))
        node.CopyFrom(made)
