"""The messages that make a model: numbers of their fields, and graphs inside of nodes; source: onnx.proto.

Tests: `tests/ir/test_tensor.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

from onnxq.ir.wire import fields

# ModelProto
MODEL_IR_VERSION, MODEL_GRAPH, MODEL_OPSET_IMPORT, MODEL_METADATA, MODEL_FUNCTIONS = 1, 7, 8, 14, 25
# GraphProto
GRAPH_NODE, GRAPH_NAME, GRAPH_INITIALIZER = 1, 2, 5
GRAPH_INPUT, GRAPH_OUTPUT, GRAPH_VALUE_INFO, GRAPH_SPARSE = 11, 12, 13, 15
# NodeProto
NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_OP_TYPE = 1, 2, 3, 4
NODE_ATTRIBUTE, NODE_DOC, NODE_DOMAIN, NODE_METADATA = 5, 6, 7, 9
# AttributeProto
ATTRIBUTE_TENSOR, ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS = 5, 6, 11
ATTRIBUTE_LISTS = (7, 8, 9)  # floats, integers, texts
# TensorProto
DIMS, DATA_TYPE, NAME, RAW_DATA, EXTERNAL_DATA, DATA_LOCATION = 1, 2, 8, 9, 13, 14


def is_list(attribute: memoryview) -> bool:
    """Whether an AttributeProto holds numbers or texts, by its first two fields: a tree may have millions of them."""
    return any(number in ATTRIBUTE_LISTS for number, *_ in fields(attribute, 2))


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs that are attributes of a node, as the branches of an If."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def walk(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes, and behind each those of its bodies, however deep."""
    for node in nodes:
        yield node
        for body in bodies(node):
            yield from walk(body.node)
