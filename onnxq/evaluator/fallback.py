"""One node at a time in `onnx.reference`, for operators that onnxq has no kernel for.

Tests: `tests/evaluator/test_evaluate.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnxq.ir import Model, Node, Value
from onnxq.ir.encode import encode_node
from onnxq.ir.wire import join


class Fallback:
    """Runs a node as a model of its own in `onnx.reference`.

    The model states the element types and ranks of the node's inputs: operators that are defined as functions need
    them. Each combination has one model.

    Args:
        node: The node.
        model: The model it belongs to, for the operator sets.
        captured: Values that the node's bodies read from the scopes around them.

    """

    def __init__(self, node: Node, model: Model, captured: Sequence[Value]) -> None:
        self._node = node
        self._opsets = dict(model.opsets)
        self._reads = list(dict.fromkeys(node.reads + list(captured)))
        self._prepared: dict[tuple[object, ...], Any] = {}

    def run(self, values: Mapping[Value, Any]) -> tuple[Any, ...]:
        """Return the outputs of the node, None for those it does not name.

        Args:
            values: A value for everything the node reads.

        Raises:
            Exception: Whatever `onnx.reference` raises, which is of no common type.

        """
        feeds = {value.name: values[value] for value in self._reads}
        signature = tuple(_signature(array) for array in feeds.values())
        if signature not in self._prepared:
            from onnx.reference import ReferenceEvaluator  # imported where it is needed: it costs 0.3 s

            self._prepared[signature] = ReferenceEvaluator(self._single_node_model(feeds))
        found = iter(self._prepared[signature].run(None, feeds))
        return tuple(next(found) if output is not None else None for output in self._node.outputs)

    def _single_node_model(self, feeds: Mapping[str, Any]) -> onnx.ModelProto:
        proto = onnx.NodeProto.FromString(join(encode_node(self._node)))
        inputs = [onnx.ValueInfoProto(name=name, type=_type(value)) for name, value in feeds.items()]
        outputs = [onnx.ValueInfoProto(name=output.name) for output in self._node.makes]
        graph = helper.make_graph([proto], "node", inputs, outputs)
        opsets = [helper.make_opsetid(domain, version) for domain, version in self._opsets.items()]
        if self._node.domain not in self._opsets:
            opsets.append(helper.make_opsetid(self._node.domain, 1))
        return helper.make_model(graph, opset_imports=opsets)


def _signature(value: Any) -> object:
    if isinstance(value, np.ndarray):
        return value.dtype, value.ndim
    if isinstance(value, list):
        return "list", _signature(value[0]) if value else None
    return type(value)


def _type(value: Any) -> onnx.TypeProto | None:
    if isinstance(value, np.ndarray):
        is_text = value.dtype.kind in "OUS"
        dtype = TensorProto.STRING if is_text else helper.np_dtype_to_tensor_dtype(value.dtype)
        return helper.make_tensor_type_proto(dtype, [None] * value.ndim)
    if isinstance(value, list):
        item = _type(value[0]) if value else None
        return helper.make_sequence_type_proto(item or helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    return None
