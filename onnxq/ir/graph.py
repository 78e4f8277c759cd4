"""Graphs, nodes and values over the protobuf bytes: a value knows its producer and its uses, a body its outer scope.

Names are labels. Reading goes through these objects; changing goes through `onnxq.ir.patch` alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import onnx

from onnxq.errors import ModelError
from onnxq.ir.tensor import StoredTensor, Tensor
from onnxq.ir.wire import LENGTH_DELIMITED, WireError, fields, text

MAX_DEPTH = 64  # bodies inside bodies; protobuf itself stops at 100 messages, two for each body
NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_OP_TYPE, NODE_ATTRIBUTE, NODE_DOMAIN = 1, 2, 3, 4, 5, 7
ATTRIBUTE_NAME, ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS = 1, 6, 11
GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_INPUT, GRAPH_OUTPUT, GRAPH_VALUE_INFO, GRAPH_SPARSE = 1, 5, 11, 12, 13, 15
STANDARD_DOMAINS = ("", "ai.onnx")


class Use(NamedTuple):
    """One place where a value is read: input number `slot` of `node`."""

    node: Node
    slot: int


class Value:
    """A tensor that flows through a graph.

    Attributes:
        name: Its label.
        graph: The scope that defines it.
        producer: The node that computes it; None for graph inputs and initializers.
        uses: The places that read it, bodies of later nodes included.
        tensor: Its elements where it is an initializer.
        is_input, is_output: Whether it is an input or output of its graph.
        dtype: `onnx.TensorProto.DataType`, or None while unknown.
        shape: Its dimensions: an integer, a symbolic name, or None for each; None while the rank is unknown.

    """

    __slots__ = ("dtype", "graph", "is_input", "is_output", "name", "producer", "shape", "tensor", "uses")

    def __init__(self, name: str, graph: Graph) -> None:
        self.name = name
        self.graph = graph
        self.producer: Node | None = None
        self.uses: dict[Use, None] = {}  # an ordered set: removing one costs the same however many there are
        self.tensor: Tensor | None = None
        self.is_input = False
        self.is_output = False
        self.dtype: int | None = None
        self.shape: tuple[int | str | None, ...] | None = None

    def __repr__(self) -> str:
        return f"Value({self.name!r})"

    @property
    def constant(self) -> Tensor | None:
        """The elements, where nothing can replace them at run time: an initializer that is no graph input."""
        return None if self.is_input else self.tensor

    def consumers(self) -> list[Node]:
        """The nodes that read the value, each once, in graph order of their first use."""
        return list(dict.fromkeys(use.node for use in self.uses))


class Node:
    """One operator call.

    Attributes:
        op_type, domain, name: As in NodeProto; the domain `ai.onnx` reads as the empty string.
        graph: The scope it stands in.
        inputs, outputs: Values; None for an optional one that is absent.
        bodies: Graphs of `If`, `Loop` and `Scan`, by attribute name.

    """

    __slots__ = (
        "_attributes",
        "bodies",
        "changed",
        "domain",
        "encoded",
        "graph",
        "inputs",
        "name",
        "op_type",
        "outputs",
        "spans",
    )

    def __init__(self, op_type: str, domain: str, name: str, graph: Graph) -> None:
        self.op_type = op_type
        self.domain = "" if domain in STANDARD_DOMAINS else domain
        self.name = name
        self.graph = graph
        self.inputs: list[Value | None] = []
        self.outputs: list[Value | None] = []
        self.bodies: dict[str, list[Graph]] = {}
        self.encoded: memoryview | None = None
        self.changed = False
        self.spans: dict[str, memoryview] = {}  # attribute name → encoded AttributeProto
        self._attributes: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"Node({self.label!r}, {self.op_type})"

    @property
    def label(self) -> str:
        """What to call the node in a message: its name, or its first output where it has none."""
        return self.name or next((f"the {self.op_type} that makes '{o.name}'" for o in self.outputs if o), self.op_type)

    @property
    def is_body_holder(self) -> bool:
        """Whether the node has graphs of its own."""
        return bool(self.bodies)

    def attribute(self, name: str, default: Any = None) -> Any:
        """Give an attribute as Python or NumPy data (strings decoded, tensors as arrays), or `default` if absent."""
        if name not in self.spans:
            return default
        if name not in self._attributes:
            proto = onnx.AttributeProto.FromString(bytes(self.spans[name]))
            self._attributes[name] = _attribute_value(proto)
        return self._attributes[name]

    def attributes(self) -> dict[str, Any]:
        """Give every attribute that is not a body."""
        return {name: self.attribute(name) for name in self.spans if name not in self.bodies}


def _attribute_value(proto: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(proto)
    if proto.type == onnx.AttributeProto.STRING:
        return value.decode()
    if proto.type == onnx.AttributeProto.STRINGS:
        return [item.decode() for item in value]
    if proto.type == onnx.AttributeProto.TENSOR:
        return onnx.numpy_helper.to_array(value)
    return list(value) if proto.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS) else value


class Graph:
    """One scope: the main graph of a model or the body of a node.

    Attributes:
        name: Label of the graph.
        parent: The scope around it; None for the main graph.
        owner: The node whose body this is; None for the main graph.
        inputs, outputs, nodes: In file order; `inputs` includes initializers that are listed as inputs.
        values: Everything that this scope defines, by name.
        dirty: Whether a patch changed it or a body inside it.

    """

    def __init__(
        self, encoded: memoryview, parent: Graph | None, owner: Node | None, folder: Path | None, names: Names
    ) -> None:
        self.encoded = encoded
        self.parent = parent
        self.owner = owner
        self.folder = folder
        self.names = names
        self.name = ""
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.nodes: list[Node] = []
        self.values: dict[str, Value] = {}
        self.initializers: dict[str, Value] = {}
        self.infos: dict[str, memoryview] = {}  # encoded ValueInfoProto of inputs and outputs and of stated types
        self.others: list[memoryview] = []  # whole fields that onnxq passes through
        self.dirty = False
        if self.depth > MAX_DEPTH:
            raise ModelError(
                f"bodies are nested more than {MAX_DEPTH} deep", "Export the model with fewer nested If or Loop nodes."
            )
        self._parse()

    # -- reading ------------------------------------------------------------------------------------------------

    def walk(self) -> Iterator[Node]:
        """Visit every node, bodies right behind the node they belong to."""
        for node in self.nodes:
            yield node
            for bodies in node.bodies.values():
                for body in bodies:
                    yield from body.walk()

    def graphs(self) -> Iterator[Graph]:
        """Visit this graph and every body inside it."""
        yield self
        for node in self.nodes:
            for bodies in node.bodies.values():
                for body in bodies:
                    yield from body.graphs()

    def find(self, name: str) -> Value | None:
        """Resolve a name as a node of this scope sees it: here first, then in the scopes around."""
        scope: Graph | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.parent
        return None

    def define(self, name: str) -> Value:
        """Add a value to this scope; only for parsing and patches."""
        value = self.values[name] = Value(name, self)
        self.names.reserve(name)
        return value

    def mark_dirty(self) -> None:
        """Note a change here, which changes every node and graph around it."""
        graph: Graph | None = self
        while graph is not None and not graph.dirty:
            graph.dirty = True
            if graph.owner is not None:
                graph.owner.changed = True
            graph = graph.parent

    # -- parsing ------------------------------------------------------------------------------------------------

    def _parse(self) -> None:
        data, nodes, outputs = self.encoded, [], []
        for number, wire_type, start, payload, end in fields(data):
            if wire_type != LENGTH_DELIMITED:
                self.others.append(data[start:end])
            elif number == GRAPH_NODE:
                nodes.append(data[payload:end])
            elif number == GRAPH_INITIALIZER:
                self._add_initializer(StoredTensor(data[payload:end], self.folder))
            elif number == GRAPH_INPUT:
                name = self._info(data[payload:end])
                value = self.values.get(name) or self.define(name)
                value.is_input = True
                self.inputs.append(value)
            elif number == GRAPH_OUTPUT:
                outputs.append(self._info(data[payload:end]))
            elif number == GRAPH_VALUE_INFO:
                self.infos.setdefault(_first_text(data[payload:end]), data[payload:end])
            else:
                if number == 2:
                    self.name = text(data[payload:end])
                self.others.append(data[start:end])
                if number == GRAPH_SPARSE:
                    self.define(_sparse_name(data[payload:end]))
        reads = [self._add_node(span) for span in nodes]
        for node, names in zip(self.nodes, reads, strict=True):
            self._connect(node, names)
        for name in outputs:
            found = self.find(name)
            if found is None:
                raise ModelError(
                    f"output '{name}' of graph '{self.name}' is made by no node", "Export the model again."
                )
            found.is_output = True
            self.outputs.append(found)

    def _info(self, span: memoryview) -> str:
        name = _first_text(span)
        self.infos[name] = span
        return name

    def _add_initializer(self, tensor: StoredTensor) -> None:
        value = self.values.get(tensor.name) or self.define(tensor.name)
        if value.tensor is not None:
            raise ModelError(
                f"two initializers are named '{tensor.name}'", "Rename one of them, or export the model again."
            )
        value.tensor = tensor
        value.dtype, value.shape = tensor.dtype, tensor.shape
        self.initializers[tensor.name] = value

    def _add_node(self, span: memoryview) -> list[str]:
        node = Node("", "", "", self)
        node.encoded = span
        reads: list[str] = []
        for number, wire_type, _, payload, end in fields(span):
            if wire_type != LENGTH_DELIMITED:
                continue
            if number == NODE_INPUT:
                reads.append(text(span[payload:end]))
            elif number == NODE_OUTPUT:
                node.outputs.append(self._define_output(node, text(span[payload:end])))
            elif number == NODE_NAME:
                node.name = text(span[payload:end])
            elif number == NODE_OP_TYPE:
                node.op_type = text(span[payload:end])
            elif number == NODE_DOMAIN:
                domain = text(span[payload:end])
                node.domain = "" if domain in STANDARD_DOMAINS else domain
            elif number == NODE_ATTRIBUTE:
                node.spans[_first_text(span[payload:end])] = span[payload:end]
        self.nodes.append(node)
        return reads

    def _define_output(self, node: Node, name: str) -> Value | None:
        if not name:
            return None
        present = self.values.get(name)
        if present is not None:
            raise ModelError(
                f"tensor '{name}' is made twice, the second time by {node.label or 'a node'}",
                "ONNX needs every tensor to have one producer: export the model again.",
            )
        value = self.define(name)
        value.producer = node
        return value

    def _connect(self, node: Node, reads: list[str]) -> None:
        for index, name in enumerate(reads):
            value = self.find(name) if name else None
            if name and value is None:
                raise ModelError(
                    f"node {node.label} reads tensor '{name}', which nothing produces", "Export the model again."
                )
            node.inputs.append(value)
            if value is not None:
                value.uses[Use(node, index)] = None
        for name, span in node.spans.items():
            bodies = [
                span[p:e]
                for n, w, _, p, e in fields(span)
                if w == LENGTH_DELIMITED and n in (ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS)
            ]
            if bodies:
                node.bodies[name] = [Graph(body, self, node, self.folder, self.names) for body in bodies]


class Names:
    """Every tensor and node name of a model, so that fresh ones collide with none in any scope."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def reserve(self, name: str) -> None:
        """Note a name that the model has."""
        self._taken.add(name)

    def fresh(self, hint: str) -> str:
        """Give `hint`, or `hint_1`, `hint_2`, …: the first that is free, in constant time on average."""
        if hint and hint not in self._taken:
            self._taken.add(hint)
            return hint
        count = self._next.get(hint, 0)
        while True:
            count += 1
            name = f"{hint}_{count}"
            if name not in self._taken:
                break
        self._next[hint] = count
        self._taken.add(name)
        return name


def _first_text(span: memoryview) -> str:
    """Name of a ValueInfoProto or AttributeProto: its field 1."""
    for number, wire_type, _, payload, end in fields(span):
        if number == 1 and wire_type == LENGTH_DELIMITED:
            return text(span[payload:end])
    return ""


def _sparse_name(span: memoryview) -> str:
    """Name of a SparseTensorProto: that of its values, field 1."""
    for number, wire_type, _, payload, end in fields(span):
        if number == 1 and wire_type == LENGTH_DELIMITED:
            return StoredTensor(span[payload:end], None).name
    raise WireError("a sparse initializer has no values")
