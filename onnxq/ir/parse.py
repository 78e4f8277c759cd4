"""Read a GraphProto into objects: values defined, wires connected, bodies inside, nodes in topological order.

Tests: `tests/ir/test_bodies.py`.
"""

from __future__ import annotations

from pathlib import Path

from onnxq.errors import ModelError
from onnxq.ir.graph import MAX_DEPTH, STANDARD_DOMAINS, Graph, Node, Use, Value
from onnxq.ir.names import Names
from onnxq.ir.proto_fields import (
    ATTRIBUTE_GRAPH,
    ATTRIBUTE_GRAPHS,
    GRAPH_INITIALIZER,
    GRAPH_INPUT,
    GRAPH_NAME,
    GRAPH_NODE,
    GRAPH_OUTPUT,
    GRAPH_SPARSE,
    GRAPH_VALUE_INFO,
    NODE_ATTRIBUTE,
    NODE_DOMAIN,
    NODE_INPUT,
    NODE_NAME,
    NODE_OP_TYPE,
    NODE_OUTPUT,
    is_list,
)
from onnxq.ir.stored_tensor import StoredTensor
from onnxq.ir.topological_order import CycleError, in_order
from onnxq.ir.wire import LENGTH_DELIMITED, WireError, fields, text

EXPORT_AGAIN = "Export the model again."


def parse_graph(
    encoded: memoryview, parent: Graph | None, owner: Node | None, folder: Path | None, names: Names
) -> Graph:
    """Read a graph and the bodies inside it.

    Args:
        encoded: The GraphProto.
        parent: The scope around it; None for the main graph.
        owner: The node whose body it is; None for the main graph.
        folder: Folder that external data paths are relative to.
        names: Where the names of the model are noted.

    Raises:
        WireError: The bytes are no GraphProto.
        ModelError: The graph contradicts itself: a name made twice or never, a cycle, bodies nested too deep.

    """
    graph = Graph(encoded, parent, owner, folder, names)
    if graph.depth > MAX_DEPTH:
        raise ModelError(
            f"bodies are nested more than {MAX_DEPTH} deep", "Export the model with fewer nested If or Loop nodes."
        )
    nodes, outputs = _read_fields(graph)
    reads = [_add_node(graph, span) for span in nodes]
    for node, node_reads in zip(graph.nodes, reads, strict=True):
        _connect(node, node_reads)
    for name in outputs:
        found = graph.find(name)
        if found is None:
            raise ModelError(f"output '{name}' of graph '{graph.name}' is made by no node", EXPORT_AGAIN)
        found.is_output = True
        graph.outputs.append(found)
    try:
        graph.nodes = in_order(graph, graph.nodes)
    except CycleError as error:
        raise ModelError(f"node {error.node.label} needs its own result", EXPORT_AGAIN) from None
    return graph


def _read_fields(graph: Graph) -> tuple[list[memoryview], list[str]]:
    """Take in everything but the nodes and outputs, which are returned: nodes may read what stands behind them."""
    data = graph.encoded
    nodes: list[memoryview] = []
    outputs: list[str] = []
    stated: dict[str, memoryview] = {}
    for number, wire_type, start, payload, end in fields(data):
        span = data[payload:end]
        if wire_type != LENGTH_DELIMITED:
            graph.others.append(data[start:end])
        elif number == GRAPH_NODE:
            nodes.append(span)
        elif number == GRAPH_INITIALIZER:
            _add_initializer(graph, StoredTensor(span, graph.folder))
        elif number == GRAPH_INPUT:
            _add_input(graph, span)
        elif number == GRAPH_OUTPUT:
            name = first_text(span)
            outputs.append(name)
            graph.infos.setdefault(name, span)
        elif number == GRAPH_VALUE_INFO:
            stated.setdefault(first_text(span), span)
        else:
            if number == GRAPH_NAME:
                graph.name = text(span)
            graph.others.append(data[start:end])
            if number == GRAPH_SPARSE:
                graph.define(_sparse_name(span))
    graph.infos = stated | graph.infos
    return nodes, outputs


def _add_input(graph: Graph, span: memoryview) -> None:
    name = first_text(span)
    graph.infos[name] = span
    value = graph.values.get(name) or graph.define(name)
    if value.is_input:
        raise ModelError(f"two inputs of graph '{graph.name}' are named '{name}'", EXPORT_AGAIN)
    value.is_input = True
    graph.inputs.append(value)


def _add_initializer(graph: Graph, tensor: StoredTensor) -> None:
    value = graph.values.get(tensor.name) or graph.define(tensor.name)
    if value.tensor is not None:
        raise ModelError(
            f"two initializers are named '{tensor.name}'", "Rename one of them, or export the model again."
        )
    if graph.parent is not None and graph.parent.find(tensor.name) is not None:
        # ONNX forbids it, and onnxruntime and onnx.reference both read the outer one: there is no right meaning to keep
        raise ModelError(
            f"initializer '{tensor.name}' of body '{graph.name}' has the name of a tensor outside it",
            "Rename one of them, or export the model again.",
        )
    value.tensor = tensor
    value.dtype, value.shape = tensor.dtype, tensor.shape
    graph.initializers[tensor.name] = value


def _add_node(graph: Graph, span: memoryview) -> list[str]:
    """Add a node and the values it makes; give the names it reads, which later nodes of the file may define."""
    node = Node("", "", "", graph)
    node.encoded = span
    reads: list[str] = []
    makes: list[str] = []
    for number, wire_type, _, payload, end in fields(span):
        if wire_type != LENGTH_DELIMITED:
            continue
        if number == NODE_INPUT:
            reads.append(text(span[payload:end]))
        elif number == NODE_OUTPUT:
            makes.append(text(span[payload:end]))
        elif number == NODE_NAME:
            node.name = text(span[payload:end])
        elif number == NODE_OP_TYPE:
            node.op_type = text(span[payload:end])
        elif number == NODE_DOMAIN:
            domain = text(span[payload:end])
            node.domain = "" if domain in STANDARD_DOMAINS else domain
        elif number == NODE_ATTRIBUTE:
            name = first_text(span[payload:end])
            if name in node.spans:
                raise WireError(f"attribute '{name}' of a node is stated twice")
            node.spans[name] = span[payload:end]
    node.outputs = [_define_output(node, name) for name in makes]
    graph.nodes.append(node)
    return reads


def _define_output(node: Node, name: str) -> Value | None:
    if not name:
        return None
    if name in node.graph.values:
        raise ModelError(
            f"tensor '{name}' is made twice, the second time by {node.name or 'a ' + node.op_type}",
            "ONNX needs every tensor to have one producer: export the model again.",
        )
    value = node.graph.define(name)
    value.producer = node
    return value


def _connect(node: Node, reads: list[str]) -> None:
    graph = node.graph
    for index, name in enumerate(reads):
        value = graph.find(name) if name else None
        if name and value is None:
            raise ModelError(f"node {node.label} reads tensor '{name}', which nothing produces", EXPORT_AGAIN)
        node.inputs.append(value)
        if value is not None:
            value.uses[Use(node, index)] = None
    for name, span in node.spans.items():
        bodies = _bodies(span)
        if bodies:
            node.bodies[name] = [parse_graph(body, graph, node, graph.folder, graph.names) for body in bodies]


def _bodies(attribute: memoryview) -> list[memoryview]:
    if is_list(attribute):
        return []
    found: list[memoryview] = []
    for number, wire_type, _, payload, end in fields(attribute):
        if wire_type == LENGTH_DELIMITED and number in (ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS):
            if number == ATTRIBUTE_GRAPH and found:
                raise WireError("an attribute holds two graphs")
            found.append(attribute[payload:end])
    return found


def first_text(span: memoryview) -> str:
    """Name of a ValueInfoProto or AttributeProto: its field 1, which nearly all writers put first."""
    for most in (1, None):
        for number, wire_type, _, payload, end in fields(span, most):
            if number == 1 and wire_type == LENGTH_DELIMITED:
                return text(span[payload:end])
    return ""


def _sparse_name(span: memoryview) -> str:
    """Name of a SparseTensorProto: that of its values, field 1."""
    for number, wire_type, _, payload, end in fields(span):
        if number == 1 and wire_type == LENGTH_DELIMITED:
            return StoredTensor(span[payload:end], None).name
    raise WireError("a sparse initializer has no values")
