"""Check the invariants of a graph: two-sided wires, names that resolve, topological order."""

from __future__ import annotations

import re
from collections.abc import Iterator

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from onnxq.ir.graph import MICROSOFT, Graph, Node, Use, Value, states_shape
from onnxq.ir.model import Model
from onnxq.ir.proto_fields import bodies
from onnxq.ir.shape_inference.contrib_ops import OF_ONNX
from onnxq.ir.topological_order import reads

UNLISTED = "in initializer but not in graph input"  # of the checker, about IR version 3
SHAPELESS = "Field 'shape' of 'type' is required but missing"  # of an input or output
# Phrases of the checker, of shape inference and of the inliner in the onnx package, and plain ones for them
ONNX_PHRASES = (
    (r"\S+\.(?:cc|cpp|h):\d+: \w+: Assertion .* failed: ", ""),
    (r"\[\w*(?:Error|Fail)\w*\] ?(?:\([^)]*\) ?)?", ""),
    (r"^No Op registered for (\S+) with domain_version of (\d+)$", r"opset \2 has no operator \1"),
    (
        r"^Your model ir_version (\d+) is higher than the checker's \((\d+)\)\.?$",
        r"it has IR version \1, and this onnx knows those up to \2",
    ),
    (
        r"^Number of actual parameters cannot exceed number of formal parameters$",
        "a node gives a function more inputs or outputs than it has",
    ),
    (r"^No opset import for domain '(\S*)'$", r"it uses the domain \1 and does not import it"),
    (
        r"^Cannot infer type and shape for node name (.*)\. No opset import for domain (\S+) optype (\S+)$",
        r"node \1 is \3 of the domain \2, which the model does not import",
    ),
)


def objection(model: bytes | str) -> str | None:
    """Ask the ONNX checker about an encoded model, or about the file of that path.

    Returns:
        What it objects to, in a plain line; None where the model is well formed.

    """
    error = _checked(model)
    if error is not None and any(phrase in str(error) for phrase in (*OF_ONNX, UNLISTED, SHAPELESS)):
        error = _checked(_as_onnxruntime_reads(model))
    return None if error is None else plain_reason(error)


def _checked(model: bytes | str) -> Exception | None:
    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, DecodeError, OSError, ValueError, RuntimeError) as error:
        return error
    return None


def _as_onnxruntime_reads(model: bytes | str) -> bytes:
    """Write operators that onnxruntime has added to the domain of ONNX as its own, and elements of other files as none.

    The checker finds such files only if it is given a path, and has no rule for what they hold. IR version 3 becomes 4,
    which lists no weights among the inputs: onnxruntime's tool quantizes models of 3 and leaves its new weights out.
    Shapes of inputs and outputs may be left out, as behind custom operators.
    """
    proto = onnx.load(model, load_external_data=False) if isinstance(model, str) else onnx.ModelProto.FromString(model)
    proto.ir_version = max(proto.ir_version, 4)
    for info in (*proto.graph.input, *proto.graph.output):
        if not states_shape(info):
            info.type.tensor_type.shape.SetInParent()
    for graph in _graphs(proto.graph):
        for node in graph.node:
            node.domain = MICROSOFT if node.op_type in OF_ONNX else node.domain
        for tensor in graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                tensor.CopyFrom(onnx.helper.make_tensor(tensor.name, tensor.data_type, [0], b"", raw=True))
    if all(opset.domain != MICROSOFT for opset in proto.opset_import):
        proto.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))
    return bytes(proto.SerializeToString())


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from _graphs(body)


def plain_reason(error: Exception) -> str:
    """Cut a message of the onnx package down to one line without tags, source files and assertions.

    `[TypeInferenceError] Inferred type differs` becomes `Inferred type differs`.
    """
    text = re.sub(r"^(['\"])(.*)\1$", r"\2", first_line(error))
    for pattern, instead in ONNX_PHRASES:
        text = re.sub(pattern, instead, text)
    return text


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def problems(model: Model) -> Iterator[str]:
    """Yield a sentence for every broken promise; none for a sound model. The cost is linear in nodes and wires."""
    expected: dict[Value, dict[Use, None]] = {}
    for graph in model.graph.graphs():
        yield from _table_problems(graph)
        seen: set[Node] = set()
        for node in graph.nodes:
            yield from _node_problems(graph, node, seen, expected)
            seen.add(node)
        for value in graph.outputs:
            if graph.find(value.name) is not value or not value.is_output:
                yield f"output '{value.name}' of graph '{graph.name}' is not what its name says"
    for graph in model.graph.graphs():
        for value in graph.values.values():
            if set(value.uses) != set(expected.get(value, ())):
                yield f"'{value.name}' knows {len(value.uses)} of its {len(expected.get(value, ()))} readers"


def _table_problems(graph: Graph) -> Iterator[str]:
    for name, value in graph.values.items():
        if name != value.name or value.graph is not graph:
            yield f"'{value.name}' is listed as '{name}' in graph '{graph.name}'"
        if value.tensor is not None and (graph.initializers.get(name) is not value or value.producer is not None):
            yield f"the constant '{name}' is no initializer, or a node makes it too"
        if value.producer is not None and value not in value.producer.outputs:
            yield f"'{name}' is not made by the node it names, {value.producer.label}"
    for name, value in graph.initializers.items():
        if graph.values.get(name) is not value or value.tensor is None:
            yield f"initializer '{name}' is unknown to graph '{graph.name}'"
    for value in graph.inputs:
        if graph.values.get(value.name) is not value or not value.is_input:
            yield f"input '{value.name}' is unknown to graph '{graph.name}'"


def _node_problems(graph: Graph, node: Node, seen: set[Node], expected: dict[Value, dict[Use, None]]) -> Iterator[str]:
    if node.graph is not graph:
        yield f"node {node.label} stands in another graph than it says"
    for slot, value in enumerate(node.inputs):
        if value is None:
            continue
        expected.setdefault(value, {})[Use(node, slot)] = None
        if graph.find(value.name) is not value:
            yield f"node {node.label} reads '{value.name}', which nothing defines there"
    for value in reads(node):
        if value.producer is not None and value.graph is graph and value.producer not in seen:
            yield f"node {node.label} stands before {value.producer.label}, whose result it needs"
    for output in node.outputs:
        if output is not None and (output.producer is not node or graph.values.get(output.name) is not output):
            yield f"output '{output.name}' of node {node.label} belongs to another node"
