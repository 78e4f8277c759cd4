"""QuantizeLinear and DequantizeLinear as pairs: codes with a reader of codes, and a DequantizeLinear of codes.

Tests: `tests/verification/test_wellformed.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import onnx
from onnx import TensorProto

from onnxq.ir import Model, Node, Value
from onnxq.ops.forms.hard_activations import is_rising
from onnxq.verification.wellformed.constants import dtype_of, numbers_of, tensor_of, type_name
from onnxq.verification.wellformed.defect import Defect, at
from onnxq.verification.wellformed.groups import is_dequantize, is_quantize

# Standard operators whose integers count or point at something; whatever else makes integers can make codes
COUNTERS = frozenset(("ArgMax", "ArgMin", "NonZero", "Shape", "Size", "Range", "TopK", "Unique", "OneHot"))


def check_pairs(node: Node, model: Model) -> Iterator[Defect]:
    """Find codes without readers, or with readers of something else, and a DequantizeLinear whose input is no code."""
    if is_quantize(node):
        yield from _check_readers(node, model)
    elif is_dequantize(node):
        yield from _check_origin(node)


def _check_readers(node: Node, model: Model) -> Iterator[Defect]:
    codes = node.outputs[0] if node.outputs else None
    if codes is None:
        return
    if not codes.uses and not codes.is_output:
        yield at(node, codes, "makes codes that nothing reads", is_error=False)
    dtype = dtype_of(node.inputs[2]) if len(node.inputs) > 2 else node.attribute("output_dtype", 0) or TensorProto.UINT8
    if not dtype:
        return
    for use in codes.uses:
        allowed = _input_types(use.node.op_type, use.node.domain, model.opsets.get(use.node.domain, 1), use.slot)
        if allowed and f"tensor({type_name(dtype)})" not in allowed:
            yield at(
                use.node,
                codes,
                f"reads the {type_name(dtype)} codes '{codes.name}' of QuantizeLinear '{node.label}', "
                "which it cannot take: a DequantizeLinear is missing",
            )


def _check_origin(node: Node) -> Iterator[Defect]:
    source = node.input(0)
    if source is None or tensor_of(source) is not None:
        return
    dtype = dtype_of(source)
    if dtype in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16):
        sentence = f"reads '{source.name}', which is {type_name(dtype)}: numbers that were never quantized"
        yield at(node, source, sentence)
        return
    producer = source.producer
    if producer is None:
        return
    if producer.op_type in COUNTERS and not producer.domain:
        yield at(node, source, f"reads '{source.name}', which {producer.op_type} makes: no codes", is_error=False)
    if is_quantize(producer):
        for slot, role in ((1, "scale"), (2, "zero point")):
            if _differ(producer.input(slot), node.input(slot)) and not (slot == 1 and is_rising(node)):
                yield at(
                    node,
                    source,
                    f"has another {role} than QuantizeLinear '{producer.label}', whose codes '{source.name}' it reads",
                    is_error=False,
                )


def _differ(first: Value | None, second: Value | None) -> bool:
    """Whether two parameters are known to hold different numbers; an absent zero point is 0."""
    if first is second:
        return False
    a, b = (np.zeros(()) if value is None else numbers_of(value) for value in (first, second))
    if a is None or b is None:
        return False
    if a.size == 1 or b.size == 1:
        return not bool((a == b).all())
    return a.shape != b.shape or not np.array_equal(a, b)


@cache
def _input_types(op_type: str, domain: str, version: int, slot: int) -> frozenset[str]:
    """Types that an operator's schema allows for an input; empty where onnx knows no schema."""
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return frozenset()
    inputs = schema.inputs
    if not inputs:
        return frozenset()
    return frozenset(inputs[min(slot, len(inputs) - 1)].types)
