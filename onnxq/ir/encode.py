"""Write graphs and nodes back: unchanged bytes are copied, as views of the file.

Tests: `tests/ir/test_roundtrip.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from onnxq.ir.graph import Graph, Node, Value
from onnxq.ir.proto_fields import (
    ATTRIBUTE_GRAPH,
    ATTRIBUTE_GRAPHS,
    GRAPH_INITIALIZER,
    GRAPH_INPUT,
    GRAPH_NODE,
    GRAPH_OUTPUT,
    GRAPH_VALUE_INFO,
    NODE_ATTRIBUTE,
    NODE_DOMAIN,
    NODE_INPUT,
    NODE_NAME,
    NODE_OP_TYPE,
    NODE_OUTPUT,
)
from onnxq.ir.wire import LENGTH_DELIMITED, Chunk, bytes_field, fields, integer_field, message_field

# How to write an initializer: given the value, the field of the message around it.
EncodeTensor = Callable[[Value], list[Chunk]]


def encode_tensor(value: Value) -> list[Chunk]:
    """Write an initializer with its elements inside."""
    assert value.tensor is not None
    return value.tensor.encode(value.name, number=GRAPH_INITIALIZER)


def encode_graph(
    graph: Graph, tensor: EncodeTensor = encode_tensor, *, extra_outputs: tuple[Value, ...] = (), verbatim: bool = True
) -> list[Chunk]:
    """Write a GraphProto.

    Args:
        graph: The graph.
        tensor: How to write each initializer.
        extra_outputs: Values to list as outputs too, after those the graph has; their type is left to inference.
        verbatim: Whether a graph that no patch touched goes out as it came. Without it every part is written again,
            through `tensor` and without stated types.

    """
    if verbatim and not graph.dirty and not extra_outputs:
        return [graph.encoded]
    chunks: list[Chunk] = []
    for node in graph.nodes:
        chunks += message_field(GRAPH_NODE, encode_node(node, tensor, verbatim=verbatim))
    before, after = _split_others(graph)
    chunks += before
    for value in graph.initializers.values():
        chunks += tensor(value)
    for value in graph.inputs:
        chunks += message_field(GRAPH_INPUT, [encode_value(graph, value)])
    for value in graph.outputs:
        chunks += message_field(GRAPH_OUTPUT, [encode_value(graph, value)])
    for value in extra_outputs:
        known = encode_value(graph, value) if _without_schema(value) else bytes_field(1, value.name)
        chunks += message_field(GRAPH_OUTPUT, [known])
    for value in graph.values.values():
        if _without_schema(value) and not value.is_output and value.name in graph.infos:
            chunks += message_field(GRAPH_VALUE_INFO, [graph.infos[value.name]])
    return chunks + after


def _without_schema(value: Value) -> bool:
    """Whether only the file may tell a type. Others can be stale there, and runtimes infer them."""
    return value.producer is not None and bool(value.producer.domain)


def encode_node(node: Node, tensor: EncodeTensor = encode_tensor, *, verbatim: bool = True) -> list[Chunk]:
    """Write the content of a NodeProto."""
    if node.encoded is not None and not node.changed and (verbatim or not node.bodies):
        return [node.encoded]
    head = [bytes_field(NODE_INPUT, value.name if value else "") for value in _without_tail(node.inputs)]
    head += [bytes_field(NODE_OUTPUT, value.name if value else "") for value in _without_tail(node.outputs)]
    head += [bytes_field(NODE_NAME, node.name)] if node.name else []
    head += [bytes_field(NODE_OP_TYPE, node.op_type)]
    chunks: list[Chunk] = [b"".join(head)]
    for name, span in node.spans.items():
        chunks += message_field(NODE_ATTRIBUTE, _attribute(node, name, span, tensor, verbatim))
    if node.domain:
        chunks.append(bytes_field(NODE_DOMAIN, node.domain))
    known = (NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_OP_TYPE, NODE_ATTRIBUTE, NODE_DOMAIN)
    if node.encoded is not None:  # doc_string, overload, metadata and whatever is newer than this code
        chunks += [node.encoded[start:end] for number, _, start, _, end in fields(node.encoded) if number not in known]
    return chunks


def _attribute(node: Node, name: str, span: memoryview, tensor: EncodeTensor, verbatim: bool) -> list[Chunk]:
    if name not in node.bodies or (verbatim and not any(body.dirty for body in node.bodies[name])):
        return [span]
    chunks: list[Chunk] = []
    bodies = iter(node.bodies[name])
    for number, wire_type, start, _, end in fields(span):
        if number in (ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS) and wire_type == LENGTH_DELIMITED:
            chunks += message_field(number, encode_graph(next(bodies), tensor, verbatim=verbatim))
        else:
            chunks.append(span[start:end])
    return chunks


def _without_tail(values: list[Value | None]) -> list[Value | None]:
    """Leave out absent values at the end, which need no empty name."""
    count = len(values)
    while count and values[count - 1] is None:
        count -= 1
    return values[:count]


def encode_value(graph: Graph, value: Value) -> bytes | memoryview:
    """Write a ValueInfoProto: as the file has it, or the name with the element type and shape that are known."""
    return graph.infos[value.name] if value.name in graph.infos else encode_type(value)


def encode_type(value: Value) -> bytes:
    """Write a ValueInfoProto with the element type and shape that are known."""
    tensor_type = b""
    if value.dtype is not None:
        tensor_type = integer_field(1, value.dtype)
    if value.shape is not None:
        dims = b"".join(bytes_field(1, _dimension(d)) for d in value.shape)
        tensor_type += bytes_field(2, dims)
    kind = bytes_field(2, bytes_field(1, tensor_type)) if tensor_type else b""
    return bytes_field(1, value.name) + kind


def _dimension(size: int | str | None) -> bytes:
    if isinstance(size, int):
        return integer_field(1, size)
    return bytes_field(2, size) if size else b""


def join_others(graph: Graph) -> list[memoryview]:
    """Return the fields that are passed through, in the order in which they are written."""
    before, after = _split_others(graph)
    return before + after


def _split_others(graph: Graph) -> tuple[list[memoryview], list[memoryview]]:
    """Fields passed through, split into those below and above the initializers' number: name before, doc behind."""
    before: list[memoryview] = []
    after: list[memoryview] = []
    for span in graph.others:
        (before if span[0] >> 3 < GRAPH_INITIALIZER and span[0] < 0x80 else after).append(span)
    return before, after
