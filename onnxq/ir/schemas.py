"""Properties of operators by name, and their schemas in the onnx package.

Tests: `tests/ir/test_schemas.py`, `tests/ir/test_opset.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import cast

import onnx

from onnxq.ir.graph import Graph, Node
from onnxq.ir.wire import VARINT, fields, read_varint

# The operator set from which on Add, Mul and their like broadcast by themselves. Before, an attribute asks for it and
# names the axis: https://onnx.ai/onnx/operators/onnx__Add.html, versions 6 and 7
BROADCASTING = 7
MAX_BROADCASTS = 8  # from here on Max takes a single input, and broadcasts
PAD_OF_CODES = 11  # from here on Pad takes codes, and how many as an input
RESIZE_WITHOUT_ROI = 13  # from here on Resize may leave out `roi`
# Operators of `ai.onnx` that give something else at every run
RANDOM = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")
)


def same_meaning(op_type: str, one: int, other: int) -> bool:
    """Whether an operator of `ai.onnx` does the same in two operator sets, perhaps for other element types.

    That is so if it was not redefined between them, or only with the same words and defaults.

    Args:
        op_type: The operator.
        one: Version of the operator set it was written for.
        other: Version of the operator set it is to be read by.

    """
    try:
        first, second = onnx.defs.get_schema(op_type, one, ""), onnx.defs.get_schema(op_type, other, "")
    except onnx.defs.SchemaError:
        return False
    if first.since_version == second.since_version:
        return True
    if first.doc != second.doc or _defaults(first) != _defaults(second):
        return False
    return len(first.inputs) == len(second.inputs) and len(first.outputs) == len(second.outputs)


def _defaults(schema: onnx.defs.OpSchema) -> dict[str, str]:
    return {name: str(attribute.default_value) for name, attribute in schema.attributes.items()}


ATTRIBUTE_TYPE = 20  # field of AttributeProto
INTERNAL = "__"  # begins the names of attributes that no schema lists


def misused_node(graph: Graph, opset: int) -> str | None:
    """Say what is wrong with the first node that does not have the inputs, outputs or attributes of its operator.

    The onnx package and onnxruntime refuse such a node in words of their own. Operators that no schema describes pass.

    Args:
        graph: The main graph; bodies are looked at, too.
        opset: The operator set of `ai.onnx` that the model imports.

    Returns:
        A part of a sentence that names node and operator; None where all nodes are as their operators ask.

    """
    for node in graph.walk():
        schema = None if node.domain else find_schema(node.op_type, opset)
        wrong = None if schema is None else next(_misuses(node, schema, opset), None)
        if wrong is not None:
            return f"{node.op_type} node '{node.name}' {wrong}" if node.name else f"{node.label} {wrong}"
    return None


@cache
def find_schema(op_type: str, opset: int) -> onnx.defs.OpSchema | None:
    """Return what the onnx package knows of an operator of `ai.onnx` in an operator set; None where that is nothing."""
    try:
        return onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return None


def _misuses(node: Node, schema: onnx.defs.OpSchema, opset: int) -> Iterator[str]:
    """Yield what is wrong with a node, without its name."""
    for what, values, least, most in (
        ("input", node.inputs, schema.min_input, schema.max_input),
        ("output", node.outputs, schema.min_output, schema.max_output),
    ):
        if not least <= len(values) <= most:
            known = f"{least}" if least == most else f"at least {least}" if len(values) < least else f"at most {most}"
            yield f"has {_counted(len(values), what)}, and its operator has {known}"
    for value, expected in zip(node.inputs, schema.inputs, strict=False):
        if value is None and expected.option == onnx.defs.OpSchema.FormalParameterOption.Single:
            yield f"lacks its input {expected.name}"
    for name, attribute in schema.attributes.items():
        if attribute.required and name not in node.spans and name not in node.bodies:
            yield f"lacks its attribute {name}"
    for name, encoded in node.spans.items():
        if name not in schema.attributes:
            if not name.startswith(INTERNAL):
                yield f"has the attribute {name}, which its operator does not have in opset {opset}"
        elif (found := _attribute_type(encoded)) and found != (
            wanted := int(cast("int", schema.attributes[name].type))
        ):
            names = onnx.AttributeProto.AttributeType.Name
            yield f"has the attribute {name} as {names(found).lower()}, not as {names(wanted).lower()}"
    yield from _misused_bodies(node)
    yield from _misfitting_parameters(node)


def _misfitting_parameters(node: Node) -> Iterator[str]:
    """Yield what is wrong with the sizes of constants that have to be as long as each other."""
    shapes = [
        value.constant.shape if value is not None and value.constant is not None else None for value in node.inputs
    ]
    weight, bias = (*shapes, None, None, None)[1:3]
    if node.op_type == "Conv" and weight is not None and bias is not None and bias != weight[:1]:
        yield f"has a bias of shape {list(bias)}, and its weight asks for {list(weight[:1])}"
    if node.op_type == "BatchNormalization":
        known = list(dict.fromkeys(shape for shape in shapes[1:5] if shape is not None))
        if len(known) > 1:
            yield f"has parameters of shapes {' and '.join(str(list(shape)) for shape in known)}"
        maker = node.inputs[0].producer if node.inputs[0] is not None else None
        kernel = maker.inputs[1] if maker is not None and maker.op_type == "Conv" and len(maker.inputs) > 1 else None
        if kernel is not None and kernel.constant is not None and known and known[0] != kernel.constant.shape[:1]:
            yield f"has parameters for {list(known[0])} channels, and reads {list(kernel.constant.shape[:1])}"


def _misused_bodies(node: Node) -> Iterator[str]:
    """Yield what is wrong with the inputs and outputs of a node's bodies."""
    bodies = [(name, body) for name, found in node.bodies.items() for body in found]
    if node.op_type == "If" and len({len(body.outputs) for _, body in bodies}) > 1:
        yield f"has branches with {' and '.join(_counted(len(body.outputs), 'output') for _, body in bodies)}"
    for name, body in bodies if node.op_type == "Loop" else ():
        given = [value for value in body.inputs if value.tensor is None]
        if len(given) != max(len(node.inputs), 2):
            yield f"has {_counted(len(node.inputs), 'input')}, and its {name} has {len(given)}"
        if len(body.outputs) < len(node.outputs) + 1:
            yield f"has {_counted(len(node.outputs), 'output')}, and its {name} {len(body.outputs)}: one more is needed"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _attribute_type(encoded: memoryview) -> int:
    """Return the type that an encoded attribute states; 0 where it states none, as files before IR version 2 do."""
    for number, wire_type, _, payload, end in fields(encoded):
        if number == ATTRIBUTE_TYPE and wire_type == VARINT:
            return read_varint(encoded, payload, end)[0]
    return 0
