"""Facts about operators by their names, and what the onnx package knows of them in operator sets.

Tests: `tests/ir/test_opset.py`.
"""

from __future__ import annotations

import onnx

# The operator set from which on Add, Mul and their like broadcast by themselves. Before, an attribute asks for it and
# names the axis: https://onnx.ai/onnx/operators/onnx__Add.html, versions 6 and 7
BROADCASTING = 7
MAX_BROADCASTS = 8  # from here on Max takes a single input, and broadcasts
PAD_OF_CODES = 11  # from here on Pad takes codes, and how many as an input; and Resize is the operator that it is today
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
