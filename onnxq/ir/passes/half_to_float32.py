"""Operators on 16-bit floats compute in float32, as onnxruntime does on the CPU, so that they can be quantized.

Tests: `tests/ir/test_fold.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto

from onnxq.ir.commit import commit
from onnxq.ir.graph import MICROSOFT, Graph, Node, Value, retype_value
from onnxq.ir.half_tensor import HALF_TYPES, WidenedTensor
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import Patch
from onnxq.ir.shape_inference.types import infer_types

# Their output's type is not that of an input, or they belong to a quantization that is there already.
TYPED_OTHERWISE = frozenset(
    ("Cast", "CastLike", "Constant", "ConstantOfShape", "EyeLike", "QuantizeLinear", "DequantizeLinear", "BitCast")
)
EXPERTS = (MICROSOFT, "MoE")  # of the operators of onnxruntime, the one with weights that are quantized


@register_pass(order=110, note="{} operator{s} on 16-bit floats computed in float32, as onnxruntime does on the CPU")
def widen_floats(model: Model) -> int:
    """Widen every operator that exists for float32 too, and give how many there were.

    Inputs and outputs of the model and of bodies keep their types by Cast nodes. So do those of custom operators and of
    operators without a float32 form.
    """
    stated = any(value.dtype in HALF_TYPES for value in (*model.initializers(), *_stated(model)))
    if not stated and not any(
        node.op_type == "Cast" and node.attribute("to") in HALF_TYPES for node in model.graph.walk()
    ):
        return 0
    infer_types(model)
    nodes = [node for node in model.graph.walk() if _can_widen(node, model.opset)]
    work = _Widening({value: None for node in nodes for value in node.makes if value.dtype in HALF_TYPES})
    for node in nodes:
        work.read_wide(node)
    for value in work.wide:
        work.give_narrow(value, set(nodes))
        if not value.is_output and value.name in value.graph.infos:
            retype_value(value, TensorProto.FLOAT)  # where no schema tells it, the file does
    commit(work.patches())
    return len(nodes)


def _stated(model: Model) -> Iterator[Value]:
    """The inputs of the model, their stated types read."""
    for value in model.graph.inputs:
        with suppress(DecodeError):  # inference says what is wrong with it
            info = onnx.ValueInfoProto.FromString(bytes(model.graph.infos[value.name]))
            value.dtype = info.type.tensor_type.elem_type or None
        yield value


def _can_widen(node: Node, opset: int) -> bool:
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    experts = (node.domain, node.op_type) == EXPERTS
    if (node.domain and not experts) or node.bodies or node.op_type in TYPED_OTHERWISE or "dtype" in node.spans:
        return False
    if not any(value.dtype in HALF_TYPES for value in values) or any(value.dtype is None for value in values):
        return False
    if experts:  # of an output, no schema would tell the new type
        return not any(value.is_output for value in node.makes)
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return False
    return _takes_float(node.inputs, schema.inputs) and _takes_float(node.outputs, schema.outputs)


def _takes_float(values: Sequence[Value | None], parameters: Sequence[onnx.defs.OpSchema.FormalParameter]) -> bool:
    return all(
        value is None
        or value.dtype not in HALF_TYPES
        or "tensor(float)" in parameters[min(index, len(parameters) - 1)].types
        for index, value in enumerate(values)
    )


class _Widening:
    """The wiring: one Cast, or one float32 constant, for all readers of a value in its scope.

    Args:
        wide: Values that will be float32, because the nodes that make them are widened.

    """

    def __init__(self, wide: dict[Value, None]) -> None:
        self.wide = wide
        self._up: dict[Value, Value] = {}
        self._at: dict[Value, Patch] = {}
        self._wires = dict[Graph, Patch]()

    def patches(self) -> list[Patch]:
        """Everything, in an order in which every new value stands before its readers."""
        return [*self._at.values(), *self._wires.values()]

    def read_wide(self, node: Node) -> None:
        """Let a node read float32 wherever it reads 16 bits."""
        for slot, value in enumerate(node.inputs):
            if value is None or value.dtype not in HALF_TYPES or (value in self.wide and not value.is_output):
                continue
            if value not in self._up:
                self._up[value] = self._widened(value)
            self._rewire(node, slot, self._up[value])

    def give_narrow(self, value: Value, widened: set[Node]) -> None:
        """Let readers of 16 bits read a widened value through a Cast."""
        kind = {"to": int(value.dtype or TensorProto.FLOAT16)}
        readers = [use for use in value.uses if use.node not in widened]
        patch = self._patch(value)
        if value.is_output:
            patch.replace(value, patch.op("Cast", value, hint=f"{value.name}_narrow", **kind))
        elif readers:
            narrow = patch.op("Cast", value, hint=f"{value.name}_narrow", **kind)
            for use in readers:
                self._rewire(use.node, use.slot, narrow)

    def _widened(self, value: Value) -> Value:
        patch = self._patch(value)
        if value.constant is not None:
            return patch.constant(WidenedTensor(value.constant), f"{value.name}_float32")
        return patch.op("Cast", value, hint=f"{value.name}_float32", to=int(TensorProto.FLOAT))

    def _patch(self, value: Value) -> Patch:
        if value not in self._at:
            self._at[value] = Patch(value.graph, value.producer, "16-bit floats are computed in float32")
        return self._at[value]

    def _rewire(self, node: Node, slot: int, new: Value) -> None:
        wires = self._wires.setdefault(node.graph, Patch(node.graph, reason="16-bit floats are computed in float32"))
        wires.rewire(node, slot, new)
