"""Mistakes of onnx.version_converter (onnx 1.23.2 against onnxruntime), mended or refused.

Tests: `tests/ir/test_opset.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from onnxq.ir.commit import commit
from onnxq.ir.graph import Node, Value
from onnxq.ir.model import Model
from onnxq.ir.patch import Patch, named_after
from onnxq.ir.proto_fields import walk
from onnxq.ir.schemas import PAD_OF_CODES
from onnxq.ir.shape_inference.types import infer_types

BROADCAST_OPSET = 7  # before, broadcasting is asked for by attribute; source: onnx operator specification, Add-6
BROADCASTING = ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less")
HARDMAX_OPSET = 13  # before, Hardmax works on the input flattened at `axis`
RESIZE_OPSET = 11  # before, Resize and Upsample map coordinates asymmetrically; afterwards by half pixels by default
# Before, onnxruntime gives a mask of zeros for inference, of floats below 10; afterwards all is true
DROPOUT_OPSET = 12
GROUP_NORM_OPSET = 21  # before, GroupNormalization has a scale for each group; afterwards for each channel


def prepare_conversion(model: Model, minimum: int) -> None:
    """Rewrite what the converter would convert wrongly into operators that it converts rightly.

    Raises:
        ValueError: There is no such rewrite; the message says for what.

    """
    patches: list[Patch] = []
    if model.opset < BROADCAST_OPSET <= minimum:
        infer_types(model)
        patches += [patch for node in model.graph.walk() if (patch := _aligned(node)) is not None]
    for node in model.graph.walk():
        if node.domain:
            continue
        if node.op_type == "GroupNormalization" and model.opset < GROUP_NORM_OPSET <= minimum:
            raise ValueError(f"GroupNormalization changes its meaning on the way (node {node.label})")
        if node.op_type == "Dropout" and model.opset < DROPOUT_OPSET <= minimum and _is_read(node.outputs[1:]):
            said = "onnxruntime fills it with zeros before opset 12, and with ones from there on"
            raise ValueError(f"the model uses the mask of the Dropout node {node.label}, and {said}")
        if node.op_type == "Pad" and model.opset < PAD_OF_CODES <= minimum:
            _drop_idle_value(node)
        if node.op_type == "Hardmax" and model.opset < HARDMAX_OPSET <= minimum:
            patches.append(_flatten_hardmax(node))
    commit(patches)


def _is_read(values: Iterable[Value | None]) -> bool:
    return any(value is not None and (value.uses or value.is_output) for value in values)


def _aligned(node: Node) -> Patch | None:
    """Return the second input of a node axes of size 1 behind its own, so that it stays where it was.

    The converter adds as many as there are behind `axis`, without those that the input has itself. It adds none to the
    slopes of a PRelu, which were a number a channel.

    Raises:
        ValueError: How many axes it takes is not known.

    """
    stated = node.op_type in BROADCASTING and node.attribute("broadcast", 0) and node.attribute("axis") is not None
    if node.domain or not (stated or node.op_type == "PRelu"):
        return None
    data, other, result = node.inputs[0], node.inputs[1], node.outputs[0]
    if data is None or other is None or result is None or data.shape is None or other.shape is None:
        raise ValueError(f"the axes that node {node.label} repeats its second input along are not known")
    behind, rank = 0, len(data.shape)
    if any(size != 1 for size in other.shape):
        axis = 1 if node.op_type == "PRelu" and len(other.shape) == 1 else int(node.attribute("axis", -1))
        axis = axis if axis >= -1 else axis + rank  # -1 is the old default: the last axes
        behind = max(rank - axis - len(other.shape), 0) if axis >= 0 else 0
    if not behind and not stated:
        return None
    patch = Patch(node.graph, node, "its second input is repeated along axes behind")
    if behind:
        axes = [len(other.shape) + place for place in range(behind)]
        other = patch.op("Unsqueeze", other, hint=f"{other.name}_aligned", axes=axes)
    made = patch.op(node.op_type, data, other, hint=result.name)
    named_after(patch, node)
    patch.replace(result, made)
    return patch


def _drop_idle_value(pad: Node) -> None:
    """Leave out the value of a Pad that repeats elements: the converter leaves it an attribute, which is none then."""
    if pad.attribute("mode", "constant") != "constant" and "value" in pad.spans:
        del pad.spans["value"]
        pad.changed = True
        pad.graph.mark_dirty()


def _flatten_hardmax(node: Node) -> Patch:
    source, result = node.inputs[0], node.outputs[0]
    assert source is not None
    assert result is not None
    patch = Patch(node.graph, node, "Hardmax works on a matrix")
    matrix = patch.op("Flatten", source, hint=f"{result.name}_rows", axis=int(node.attribute("axis", 1)))
    hardmax = patch.op("Hardmax", matrix, hint=f"{result.name}_hardmax", axis=1)
    shape = patch.op("Shape", source, hint=f"{result.name}_shape")
    patch.replace(result, patch.op("Reshape", hardmax, shape, hint=result.name))
    return patch


def repair(proto: onnx.ModelProto, model: Model, minimum: int) -> None:
    """Put right, in place, what came out of a conversion of `model` to operator set `minimum`."""
    if not model.opset < RESIZE_OPSET <= minimum:
        return
    shrinking = {node.outputs[0].name for node in model.graph.walk() if _shrinks(node) and node.outputs[0]}
    for node in walk(proto.graph.node):
        if node.op_type == "Resize" and not any(a.name == "coordinate_transformation_mode" for a in node.attribute):
            # onnxruntime rounds down where it enlarges and up where it shrinks; the specification is silent
            rounding = "ceil" if node.output[0] in shrinking else "floor"
            node.attribute.append(onnx.helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
            node.attribute.append(onnx.helper.make_attribute("nearest_mode", rounding))


def _shrinks(node: Node) -> bool:
    """Whether a Resize-10 makes its input smaller.

    Raises:
        ValueError: It makes one axis smaller and another larger, to the nearest element: nothing newer does that.

    """
    scales = node.inputs[1] if node.op_type == "Resize" and not node.domain else None
    if scales is None:
        return False
    constant = scales.constant.numpy() if scales.constant is not None else None
    if constant is None and scales.producer is not None and scales.producer.op_type == "Constant":
        constant = scales.producer.attribute("value")
    if constant is None or (constant >= 1).all():
        return False
    if (constant > 1).any() and node.attribute("mode", "nearest") == "nearest":
        raise ValueError(f"node {node.label} shrinks one axis and enlarges another to the nearest element")
    return True
