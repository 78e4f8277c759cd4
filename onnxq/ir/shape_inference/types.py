"""Infer element types and shapes of every value; what the file states about inner tensors is ignored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx
from onnx import TensorProto

from onnxq.errors import ModelError, OnnxqError
from onnxq.ir.graph import Graph, Value
from onnxq.ir.invariants import plain_reason
from onnxq.ir.model import Model
from onnxq.ir.shape_inference.cache_width import set_cache_widths
from onnxq.ir.shape_inference.contrib_ops import with_stand_ins
from onnxq.ir.shape_inference.dims import Shape, Size
from onnxq.ir.shape_inference.pool_output import miscounted
from onnxq.ir.shape_inference.symbolic import Shapes

NAMELESS = "?"
MOST_ROUNDS = 8  # of inference, where some of an unusual model's shapes are found in another way


def infer_types(model: Model) -> None:
    """Set `dtype` and `shape` of the model's values by ONNX shape inference, bodies included.

    Inference runs on the model without its large weights, so its cost does not depend on their size. Values whose
    type cannot be told, such as those behind custom operators, keep None. Nothing is done where nothing has changed
    since the last time.

    Raises:
        ModelError: The model contradicts itself, for example in the ranks of an operator's inputs.

    """
    if model.is_typed:
        return
    try:
        proto = with_stand_ins(onnx.ModelProto.FromString(model.skeleton()))
        _open_sizes(proto.graph)
        _infer(model, proto)
    except OnnxqError:
        raise
    except Exception as error:  # the binding raises bare RuntimeError subclasses and ValueError alike
        raise ModelError(
            f"{model.name}: its types and shapes cannot be told: {plain_reason(error)}", "Export the model again."
        ) from error
    _complete(model, proto)
    set_cache_widths(model.graph)
    for graph in model.graph.graphs():
        _forget(graph)
        _match(graph, model)
    model.typed = (model.graph, model.graph.revision, model.opsets.copy())


def _open_sizes(graph: onnx.GraphProto) -> None:
    """Leave sizes of inputs and outputs open that Paddle's exporter writes as -1, or all alike as `?`.

    A size of -1 would be computed with, and two of one name would be taken for equal.
    """
    for info in (*graph.input, *graph.output):
        for dimension in info.type.tensor_type.shape.dim:
            if dimension.dim_value < 0 or dimension.dim_param == NAMELESS:
                dimension.Clear()


def _infer(model: Model, proto: onnx.ModelProto) -> None:
    """Infer types and shapes, and once more with what inference got wrong: it goes on with what is stated."""
    for _ in range(MOST_ROUNDS):
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
        wrong = 0
        for graph, (stated, found) in _scopes(model.graph, proto.graph, inferred.graph):
            _read_graph(graph, found)
            for value in miscounted(graph):
                _state(stated, value)
                wrong += 1
        if not wrong:
            return


def _state(proto: onnx.GraphProto, value: Value) -> None:
    """Put a shape into a graph, over what it states about an output."""
    for infos in (proto.output, proto.value_info):
        for info in infos:
            if info.name == value.name:
                info.CopyFrom(_stated(value))
                return
    proto.value_info.append(_stated(value))


def _complete(model: Model, proto: onnx.ModelProto) -> None:
    """Set shapes of the main graph that inference leaves open, and go on with it behind them.

    In the target of a Reshape it follows either computed sizes or numbers that stand for others, but not both. With
    `view(n, -1, heads, 64)` of PyTorch it would not even know ranks, nor any further on.
    """
    for _ in range(MOST_ROUNDS):
        left = _open_shapes(model)
        shapes = Shapes(model.graph, model.opset) if left else None
        for value in left:
            value.shape = _sizes(model.graph, shapes.of(value)) if shapes is not None else None
        found = {value.name: value for value in left if value.shape is not None}
        if not found or len(found) == len(left):
            return
        others = [info for info in proto.graph.value_info if info.name not in found]
        del proto.graph.value_info[:]
        proto.graph.value_info.extend([*others, *map(_stated, found.values())])
        try:
            _infer(model, proto)
        except Exception:  # as above: inference contradicts what it has not found before, and no longer helps
            return


def _open_shapes(model: Model) -> list[Value]:
    made = (value for node in model.graph.nodes for value in node.outputs)
    return [value for value in made if value is not None and value.shape is None and value.dtype is not None]


def _sizes(graph: Graph, shape: Shape | None) -> tuple[int | str | None, ...] | None:
    """Return sizes as inference would, with the names of the axes that they come from."""
    return None if shape is None else tuple(_size(graph, size) for size in shape)


def _size(graph: Graph, size: Size) -> int | str | None:
    if size.known is not None or size.number != 1 or len(size.symbols) != 1:
        return size.known
    name, _, axis = size.symbols[0].rpartition(":")
    source = graph.values.get(name)
    return source.shape[int(axis)] if source is not None and source.shape is not None else None


def _stated(value: Value) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(value.name, value.dtype or 0, value.shape)


def _forget(graph: Graph) -> None:
    """Leave out of the file what it states about inner tensors: onnxruntime refuses a type that is not what it infers.

    A second encoding does that: it keeps the types of graph inputs and outputs and of values without a schema.
    """
    kept = {value.name for value in (*graph.inputs, *graph.outputs)}
    if any(name not in kept for name in graph.infos):
        graph.mark_dirty()


def _match(graph: Graph, model: Model) -> None:
    """Set element types that inference leaves open, behind a custom operator: tensors of one type variable agree."""
    for node in (*graph.nodes, *reversed(graph.nodes)):
        values = [value for value in (*node.inputs, *node.outputs) if value is not None]
        if all(value.dtype is not None for value in values):
            continue
        try:
            schema = onnx.defs.get_schema(node.op_type, model.opsets.get(node.domain, 1), node.domain)
        except onnx.defs.SchemaError:
            continue
        typed = [*_formal(node.inputs, schema.inputs), *_formal(node.outputs, schema.outputs)]
        known = {variable: value.dtype for value, variable in typed if value.dtype is not None}
        for value, variable in typed:
            if value.dtype is None:
                value.dtype = known.get(variable)


def _formal(
    values: Sequence[Value | None], parameters: Sequence[onnx.defs.OpSchema.FormalParameter]
) -> Iterator[tuple[Value, str]]:
    """Pair inputs or outputs with their type variables; the last parameter may stand for any number of tensors."""
    for index, value in enumerate(values):
        parameter = parameters[min(index, len(parameters) - 1)]
        repeated = parameter.option == onnx.defs.OpSchema.FormalParameterOption.Variadic
        if value is not None and (not repeated or parameter.is_homogeneous):
            yield value, parameter.type_str


def _read_graph(graph: Graph, proto: onnx.GraphProto) -> None:
    for info in (*proto.value_info, *proto.input, *proto.output):
        value = graph.values.get(info.name)
        if value is not None and value.tensor is None:
            _read_type(value, info.type)


def _scopes(graph: Graph, *protos: onnx.GraphProto) -> Iterator[tuple[Graph, tuple[onnx.GraphProto, ...]]]:
    """Go through a graph and its bodies, along with the same of models that were written from it."""
    yield graph, protos
    for index, node in enumerate(graph.nodes):
        for name, bodies in node.bodies.items():
            for place, body in enumerate(bodies):
                yield from _scopes(body, *(_body(proto.node[index], name, place) for proto in protos))


def _body(node: onnx.NodeProto, name: str, place: int) -> onnx.GraphProto:
    attribute = next(attribute for attribute in node.attribute if attribute.name == name)
    bodies: Sequence[onnx.GraphProto] = [attribute.g] if attribute.HasField("g") else attribute.graphs
    return bodies[place]


def _read_type(value: Value, proto: onnx.TypeProto) -> None:
    if not proto.HasField("tensor_type"):
        return
    tensor = proto.tensor_type
    value.dtype = tensor.elem_type if tensor.elem_type != TensorProto.UNDEFINED else None
    value.shape = tuple(_dimension(d) for d in tensor.shape.dim) if tensor.HasField("shape") else None


def _dimension(dimension: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dimension.HasField("dim_value"):
        return dimension.dim_value
    return dimension.dim_param or None
