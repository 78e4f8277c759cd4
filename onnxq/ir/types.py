"""Element types and shapes of every value, inferred anew: what the file states about inner tensors is not believed."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from onnxq.errors import ModelError, OnnxqError
from onnxq.ir.graph import Graph, Value
from onnxq.ir.model import Model


def infer_types(model: Model) -> None:
    """Set `dtype` and `shape` of the model's values by ONNX shape inference, bodies included.

    Inference runs on the model without its large weights, so its cost does not depend on their size. Values whose
    type cannot be told, such as those behind custom operators, keep None.

    Raises:
        ModelError: The model contradicts itself, for example in the ranks of an operator's inputs.

    """
    try:
        proto = onnx.ModelProto.FromString(model.skeleton())
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except OnnxqError:
        raise
    except Exception as error:  # the binding raises bare RuntimeError subclasses and ValueError alike
        reason = str(error).strip().splitlines()
        raise ModelError(
            f"{model.name}: shape inference failed: {reason[0] if reason else error!r}",
            "Check the model with its exporter.",
        ) from error
    _read_graph(model.graph, inferred.graph)


def _read_graph(graph: Graph, proto: onnx.GraphProto) -> None:
    for info in (*proto.value_info, *proto.input, *proto.output):
        value = graph.values.get(info.name)
        if value is not None and value.tensor is None:
            _read_type(value, info.type)
    for node, node_proto in zip(graph.nodes, proto.node, strict=True):
        if not node.bodies:
            continue
        for attribute in node_proto.attribute:
            protos = [*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs]
            for body, body_proto in zip(node.bodies.get(attribute.name, ()), protos, strict=True):
                _read_graph(body, body_proto)


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
