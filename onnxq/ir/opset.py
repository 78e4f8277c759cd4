"""Operator set versions: raise them by conversion, and know the ones that onnxruntime loads."""

from __future__ import annotations

import re

import onnx
import onnx.version_converter

from onnxq.errors import ModelError, OnnxqError
from onnxq.ir.graph import Node
from onnxq.ir.model import Model
from onnxq.ir.opset_fixes import prepare_conversion, repair
from onnxq.ir.passes.inline_functions import inline_functions
from onnxq.ir.schemas import same_meaning
from onnxq.ir.tensor import Tensor

# The newest that onnxruntime loads: 1.31.1 says "max supported IR version: 13" and guarantees released opsets up to 26.
MAX_OPSET = 26
MAX_IR = 13
MIN_OPSET = 7  # the oldest that it guarantees; of older ones it has kernels for few operators
# (opset, lowest IR version that may announce it); source: onnx.helper.find_min_ir_version_for
IR_OF_OPSET = ((25, 13), (24, 12), (23, 11), (21, 10), (19, 9), (15, 8), (13, 7), (12, 7), (11, 6), (10, 5), (9, 4))
EXPORT_OLDER = "Export it again with an older opset."
LISTED_INITIALIZERS_IR = 3  # up to here every initializer has to be an input too, which new constants are not


def minimum_ir(opset: int) -> int:
    """Return the lowest IR version that may announce an opset of `ai.onnx`."""
    return next((version for since, version in IR_OF_OPSET if opset >= since), LISTED_INITIALIZERS_IR)


def raise_opset(model: Model, minimum: int) -> Model:
    """Convert a model to a newer operator set, its weights untouched.

    Args:
        model: The model; it stays as it is.
        minimum: The version of `ai.onnx` that is needed.

    Returns:
        A model with at least that version: the same one if it has it already, else another one that shares its
        weights and remembers the same source. Functions are inlined. Types have to be inferred again.

    Raises:
        ModelError: The model cannot be converted.
        ValueError: onnxruntime does not load what is asked for.

    """
    if minimum > MAX_OPSET:
        raise ValueError(f"opset {minimum} is beyond {MAX_OPSET}")
    if model.opset >= minimum:
        return model
    converted = model.copy()
    inline_functions(converted)
    _refuse_what_gets_lost(converted, minimum)
    weights: list[Tensor] = []
    try:
        prepare_conversion(converted, minimum)
        before = onnx.ModelProto.FromString(converted.skeleton(weights))
        before.ir_version = max(before.ir_version, LISTED_INITIALIZERS_IR + 1)
        after = _converted(before, converted, minimum)
        repair(after, converted, minimum)
        _keep_the_rest(before, after)
        _drop_inferred_types(before, after)
        after.ir_version = max(before.ir_version, minimum_ir(minimum))
        converted.read_skeleton(after.SerializeToString(deterministic=True), weights)
    except OnnxqError as error:
        raise _failure(model, minimum, error.message) from error
    except ValueError as error:  # of `prepare` and `repair`
        raise _failure(model, minimum, str(error)) from error
    _check_interface(model, converted, minimum)
    return converted


def _converted(before: onnx.ModelProto, model: Model, minimum: int) -> onnx.ModelProto:
    """Let onnx convert a model; what its converter says of a failure names lines of its source, and stays inside.

    Raises:
        ValueError: It fails; the message says where, as far as that is known.

    """
    try:
        return onnx.version_converter.convert_version(before, minimum)
    except Exception as error:  # the binding raises bare RuntimeError, IndexError and ValueError alike
        raise ValueError(_where(model, str(error))) from error


def _where(model: Model, said: str) -> str:
    """Say at which node the converter fails: at an operator that no opset has, or at one that its message names."""
    nodes = [node for node in model.graph.walk() if not node.domain]
    for node in nodes:
        if not onnx.defs.has(node.op_type):
            return f"no opset has the operator {node.op_type} (node {node.label})"
    for node in nodes:
        if re.search(rf"\b{re.escape(node.op_type)}\b", said):
            return f"onnx's converter fails at {node.op_type} (node {node.label})"
    return "onnx's converter fails at it"


def make_loadable(model: Model) -> tuple[str, ...]:
    """Lower the stamps of a model to what onnxruntime loads, in place, where that changes no meaning.

    A newer operator set is legal to lower when every operator of the model does the same in both. Functions have to be
    inlined and types inferred before.

    Returns:
        A sentence for what was done; none if nothing had to be.

    Raises:
        ModelError: An operator of the model is newer than what onnxruntime loads.

    """
    if model.opset <= MAX_OPSET and model.ir_version <= MAX_IR:
        return ()
    old = (model.opset, model.ir_version)
    if model.opset > MAX_OPSET:
        if model.opset > onnx.defs.onnx_opset_version():
            known = onnx.defs.onnx_opset_version()
            raise ModelError(f"{model.name} uses opset {old[0]}; this onnx knows opsets up to {known}", EXPORT_OLDER)
        for node in model.graph.walk():
            if not node.domain and not _same_before(node, model.opset):
                raise ModelError(
                    f"{model.name}: node {node.label} is {node.op_type} of opset {model.opset}; onnxruntime loads up "
                    f"to {MAX_OPSET}, which has no such operator",
                    EXPORT_OLDER,
                )
        model.opsets[""] = MAX_OPSET
    model.ir_version = min(model.ir_version, MAX_IR)
    new = f"{model.opset} and {model.ir_version}, which onnxruntime loads"
    return (f"opset {old[0]} and IR version {old[1]} lowered to {new}",)


def _same_before(node: Node, opset: int) -> bool:
    """Whether `MAX_OPSET` has an operator that does what this node does, for its element types."""
    if not same_meaning(node.op_type, opset, MAX_OPSET):
        return False
    old = onnx.defs.get_schema(node.op_type, MAX_OPSET, "")
    return all(
        value is None or value.dtype is None or _type_name(value.dtype) in parameter.types
        for values, parameters in ((node.inputs, old.inputs), (node.outputs, old.outputs))
        for value, parameter in zip(values, parameters, strict=False)
    )


def _type_name(dtype: int) -> str:
    return f"tensor({onnx.TensorProto.DataType.Name(dtype).lower()})"


def _refuse_what_gets_lost(model: Model, minimum: int) -> None:
    for graph in model.graph.graphs():
        for value in graph.values.values():
            if value.tensor is None and value.producer is None and not value.is_input:
                raise _failure(model, minimum, f"'{value.name}' is a sparse initializer, which conversion drops")


def _keep_the_rest(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Carry over what the converter does not know."""
    after.graph.doc_string = before.graph.doc_string
    for field in ("metadata_props", "quantization_annotation"):
        if not getattr(after.graph, field):
            getattr(after.graph, field).extend(getattr(before.graph, field))
    for field in ("metadata_props", "training_info"):
        if not getattr(after, field):
            getattr(after, field).extend(getattr(before, field))


def _drop_inferred_types(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Leave out what the converter infers about inner tensors.

    It computes with sizes that Paddle's exporter writes as -1, and gets others such as 0, which onnxruntime refuses.
    """
    stated = {info.name for info in before.graph.value_info}
    kept = [info for info in after.graph.value_info if info.name in stated]
    del after.graph.value_info[:]
    after.graph.value_info.extend(kept)


def _check_interface(model: Model, converted: Model, minimum: int) -> None:
    for ours, theirs, kind in (
        (model.graph.inputs, converted.graph.inputs, "inputs"),
        (model.graph.outputs, converted.graph.outputs, "outputs"),
    ):
        if [v.name for v in ours] != [v.name for v in theirs]:
            raise _failure(model, minimum, f"conversion loses {kind} of the model")
    if converted.opset < minimum:
        raise _failure(model, minimum, f"conversion stops at opset {converted.opset}")


def _failure(model: Model, minimum: int, reason: str) -> ModelError:
    return ModelError(
        f"{model.name} cannot be converted from opset {model.opset} to {minimum}: {reason}",
        f"Export it again with opset {minimum} or newer.",
    )
