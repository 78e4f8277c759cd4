"""Graphs, nodes and values over the protobuf bytes: a value knows its producer and its uses, a body its outer scope.

Names are labels. Reading goes through these objects; changing goes through `onnxq.ir.patch` alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from onnxq.errors import ModelError
from onnxq.ir.names import Names
from onnxq.ir.proto_fields import ATTRIBUTE_TENSOR, is_list
from onnxq.ir.proto_fields import GRAPH_SPARSE as GRAPH_SPARSE
from onnxq.ir.stored_tensor import StoredTensor
from onnxq.ir.tensor import Tensor
from onnxq.ir.wire import LENGTH_DELIMITED, fields

MAX_DEPTH = 64  # bodies inside bodies; protobuf itself stops at 100 messages, two for each body
STANDARD_DOMAINS = ("", "ai.onnx")
MICROSOFT: Final = "com.microsoft"  # operators of onnxruntime


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

    @property
    def elements(self) -> Tensor:
        """The elements of a constant, for those who know it is one.

        Raises:
            TypeError: The value is computed, or can be replaced at run time.

        """
        if self.tensor is None or self.is_input:
            raise TypeError(f"'{self.name}' is no constant")
        return self.tensor

    @property
    def only_use(self) -> Use | None:
        """The one place that reads the value; None where there are others or none, or where it is an output."""
        return next(iter(self.uses)) if len(self.uses) == 1 and not self.is_output else None

    def sole_maker(self, beside: Node) -> Node | None:
        """The operator of ONNX in the graph of a node that makes the value; None where not one place alone reads it."""
        maker = self.producer if self.only_use is not None else None
        return maker if maker is not None and maker.graph is beside.graph and not maker.domain else None

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
        """The name of the node in a message: its name, or its first output if it has none."""
        return self.name or next((f"{self.op_type} of '{o.name}'" for o in self.makes), self.op_type)

    @property
    def display_name(self) -> str:
        """Its name in lists, or that of its first output if it has none; unlike `label` a name."""
        return self.name or next((output.name for output in self.makes), "")

    @property
    def operator(self) -> str:
        """The operator with its domain in front, such as `com.microsoft.Gelu`; the standard domain is left out."""
        return f"{self.domain}.{self.op_type}" if self.domain else self.op_type

    @property
    def reads(self) -> list[Value]:
        """The inputs, without those that are left out."""
        return [value for value in self.inputs if value is not None]

    @property
    def makes(self) -> list[Value]:
        """The outputs, without those that are left out."""
        return [value for value in self.outputs if value is not None]

    @property
    def constants(self) -> list[Tensor]:
        """The inputs that are constants, in order."""
        return [value.constant for value in self.reads if value.constant is not None]

    def input(self, slot: int) -> Value | None:
        """Return the input of a slot, or None where it is left out."""
        return self.inputs[slot] if slot < len(self.inputs) else None

    def constant(self, slot: int) -> Tensor | None:
        """Return the constant at a slot, or None where the input is left out or computed."""
        value = self.input(slot)
        return None if value is None else value.constant

    @property
    def is_body_holder(self) -> bool:
        """Whether the node has graphs of its own."""
        return bool(self.bodies)

    def copy(self, graph: Graph) -> Node:
        """Return a node without bodies with the same attributes for another graph; it reads and makes nothing yet."""
        copied = Node(self.op_type, self.domain, self.name, graph)
        copied.encoded, copied.changed = self.encoded, self.changed
        copied.spans, copied._attributes = dict(self.spans), dict(self._attributes)
        return copied

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute as Python or NumPy data (strings decoded, tensors as arrays), or `default` if absent."""
        if name not in self.spans:
            return default
        if name not in self._attributes:
            self._attributes[name] = self._decode(name)
        return self._attributes[name]

    def attributes(self) -> dict[str, Any]:
        """Return every attribute that is not a body."""
        return {name: self.attribute(name) for name in self.spans if name not in self.bodies}

    def tensor_attribute(self, name: str) -> StoredTensor | None:
        """Return a tensor attribute as a handle on the file, or None where it is absent or something else."""
        span = self.spans.get(name, memoryview(b""))
        try:
            for number, wire_type, _, payload, end in () if is_list(span) else fields(span):
                if number == ATTRIBUTE_TENSOR and wire_type == LENGTH_DELIMITED:
                    return StoredTensor(span[payload:end], self.graph.folder)
        except ValueError as error:
            raise self._unreadable(name, error) from error
        return None

    def _decode(self, name: str) -> Any:
        try:
            tensor = self.tensor_attribute(name)
            if tensor is not None:
                return tensor.numpy()
            proto = onnx.AttributeProto.FromString(bytes(self.spans[name]))
            if proto.type == onnx.AttributeProto.UNDEFINED:
                raise ValueError("it has no type")
            value = onnx.helper.get_attribute_value(proto)
            if proto.type == onnx.AttributeProto.STRING:
                return value.decode()
            if proto.type == onnx.AttributeProto.STRINGS:
                return [item.decode() for item in value]
        except (DecodeError, ValueError) as error:  # WireError and UnicodeDecodeError are ValueErrors
            raise self._unreadable(name, error) from error
        return list(value) if proto.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS) else value

    def _unreadable(self, name: str, error: Exception) -> ModelError:
        return ModelError(
            f"attribute '{name}' of node {self.label} cannot be read: {error}",
            "The file is damaged: fetch or export it again.",
        )


class Graph:
    """One scope: the main graph of a model or the body of a node.

    Attributes:
        name: Label of the graph.
        parent: The scope around it; None for the main graph.
        owner: The node whose body this is; None for the main graph.
        inputs, outputs, nodes: In file order; `inputs` includes initializers that are listed as inputs.
        values: Everything that this scope defines, by name.
        dirty: Whether a patch changed it or a body inside it.
        revision: Of the main graph: how many changes were noted, in it or in bodies.

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
        self.revision = 0

    def walk(self) -> Iterator[Node]:
        """Visit every node, bodies right behind the node they belong to."""
        for node in self.nodes:
            yield node
            if node.bodies:
                for bodies in node.bodies.values():
                    for body in bodies:
                        yield from body.walk()

    def graphs(self) -> Iterator[Graph]:
        """Visit this graph and every body inside it."""
        yield self
        for node in self.nodes:
            if node.bodies:
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
        main = self
        while main.parent is not None:
            main = main.parent
        main.revision += 1


def rename_values(graph: Graph, names: Mapping[Value, str]) -> None:
    """Rename values of one scope, at a cost that is linear in the scope.

    Args:
        graph: The scope that defines the values.
        names: Fresh names.

    """
    old = {value.name: value for value in names}
    for value, name in names.items():
        if value.name in graph.infos:
            info = onnx.ValueInfoProto.FromString(bytes(graph.infos.pop(value.name)))
            info.name = name
            graph.infos[name] = memoryview(info.SerializeToString(deterministic=True))
        value.name = name
        for node in {use.node: None for use in value.uses} | ({value.producer: None} if value.producer else {}):
            node.changed = True
            node.graph.mark_dirty()
    for table in (graph.values, graph.initializers):
        if old.keys() & table.keys():
            entries = [(value.name, value) for value in table.values()]
            table.clear()
            table.update(entries)
    graph.mark_dirty()


def stated_type(value: Value) -> int | None:
    """Return the element type of an input or output of a graph, as the file states it; None where it does not."""
    stated = value.graph.infos.get(value.name)
    if stated is None:
        return value.dtype
    return onnx.ValueInfoProto.FromString(bytes(stated)).type.tensor_type.elem_type or None


def states_shape(info: onnx.ValueInfoProto) -> bool:
    """Tell whether an input or output is no tensor or states its shape, as the checker of onnx asks."""
    return not info.type.HasField("tensor_type") or info.type.tensor_type.HasField("shape")


def state_output_shapes(graph: Graph) -> None:
    """State the shape of each output whose file leaves it out, where inference has told it."""
    for value in graph.outputs:
        stated = graph.infos.get(value.name)
        if stated is None or value.shape is None or states_shape(onnx.ValueInfoProto.FromString(bytes(stated))):
            continue
        del graph.infos[value.name]  # it is written from what is known
        graph.mark_dirty()


def retype_value(value: Value, dtype: int) -> None:
    """State another element type for an input or output of a graph.

    Args:
        value: The input or output.
        dtype: `onnx.TensorProto.DataType`.

    """
    graph, value.dtype = value.graph, dtype
    if value.name in graph.infos:
        info = onnx.ValueInfoProto.FromString(bytes(graph.infos[value.name]))
        info.type.tensor_type.elem_type = dtype
        graph.infos[value.name] = memoryview(info.SerializeToString(deterministic=True))
    graph.mark_dirty()
