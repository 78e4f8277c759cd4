"""Caches of keys and values as int8 codes, for which GroupQueryAttention has scales.

A code is the element over the scale of its head and channel, to nearest. It is symmetric, as the operator asks for
(ContribOperators.md of onnxruntime). `cached_attentions` finds what can be coded, `code_caches` writes it, and
`with_float_caches` gives the interface of the float model back, to compare the two.

Tests: `tests/lowering/test_coded_caches.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from onnxq.ir import Model, Node, Value
from onnxq.ir.commit import commit
from onnxq.ir.graph import MICROSOFT, retype_value, stated_type
from onnxq.ir.patch import Patch, named_after

OPERATOR = "GroupQueryAttention"
PASTS, PRESENTS, SCALES = (3, 4), (1, 2), (12, 13)  # slots of keys and values: inputs, outputs, scales
TYPES = ("k_quant_type", "v_quant_type")
CHANNEL, BITS = "PER_CHANNEL", 8
LOW, HIGH = -128, 127


@dataclass(frozen=True)
class CachedAttention:
    """A GroupQueryAttention whose caches are inputs and outputs of the model.

    Attributes:
        node: The operator.
        pasts: Keys and values of earlier tokens.
        presents: The same with those of this call.

    """

    node: Node
    pasts: tuple[Value, Value]
    presents: tuple[Value, Value]


def cached_attentions(model: Model, dtype: int = TensorProto.FLOAT) -> list[CachedAttention]:
    """List operators whose caches of an element type nothing else reads."""
    found = []
    for node in model.graph.nodes:
        if node.op_type != OPERATOR or node.domain != MICROSOFT:
            continue
        pasts = [value for slot in PASTS if (value := _at(node.inputs, slot)) is not None and _is_past(value, dtype)]
        presents = [value for slot in PRESENTS if (value := _at(node.outputs, slot)) is not None and value.is_output]
        if len(pasts) == len(presents) == 2 and not any(value.uses for value in presents):
            found.append(CachedAttention(node, (pasts[0], pasts[1]), (presents[0], presents[1])))
    return found


def _at(values: list[Value | None], slot: int) -> Value | None:
    return values[slot] if slot < len(values) else None


def _is_past(value: Value, dtype: int) -> bool:
    """Whether one operator reads an input of the model; Shape does not count."""
    readers = [use.node for use in value.uses if use.node.op_type != "Shape"]
    return value.is_input and value.tensor is None and stated_type(value) == dtype and len(readers) == 1


def code_caches(model: Model, scales: Mapping[str, np.ndarray]) -> Model:
    """Let caches hold int8 codes; inputs and outputs of the model change their type.

    Args:
        model: A model, which is changed.
        scales: float32 `[1, heads, 1, head]` for each output that is a cache; without any, nothing changes.

    Returns:
        The same model.

    """
    if not scales:
        return model
    patch = Patch(model.graph, None, "caches hold codes")
    changed: list[Value] = []
    for each in cached_attentions(model):
        node, made = each.node, [scales.get(value.name) for value in each.presents]
        inputs = [*node.inputs, *[None] * (SCALES[1] + 1 - len(node.inputs))]
        for slot, value, scale in zip(SCALES, each.presents, made, strict=True):
            inputs[slot] = None if scale is None else patch.constant(scale, f"{value.name}_scale")
        if None in (inputs[SCALES[0]], inputs[SCALES[1]]):
            continue
        stated = node.attributes() | dict.fromkeys(TYPES, CHANNEL) | {"kv_cache_bit_width": BITS}
        names = [value.name if value is not None else "" for value in node.outputs]
        outputs = patch.node(OPERATOR, inputs, outputs=names, domain=MICROSOFT, **stated)
        named_after(patch, node)
        for old, new in zip(node.makes, outputs, strict=True):
            patch.replace(old, new)
        changed += each.pasts
    names_of_outputs = [value.name for value in model.graph.outputs]
    commit([patch])
    outputs_by_name = dict(zip(names_of_outputs, model.graph.outputs, strict=True))
    for value in (*changed, *(outputs_by_name[name] for name in names_of_outputs if name in scales)):
        retype_value(value, TensorProto.INT8)
    return model


def coded_attentions(model: Model) -> list[CachedAttention]:
    """List operators whose caches hold codes with a scale for each channel."""
    return [each for each in cached_attentions(model, TensorProto.INT8) if _is_coded(each.node)]


def with_float_caches(model: Model) -> Model:
    """Return a model whose caches are floats outside, and codes inside; the very same where there are no coded ones."""
    if not coded_attentions(model):
        return model
    made = model.copy()
    patch = Patch(made.graph, None, "caches are floats outside")
    found = coded_attentions(made)
    for each in found:
        for slot, past, present in zip(SCALES, each.pasts, each.presents, strict=True):
            scale = each.node.inputs[slot]
            for use in past.uses:
                if use.node is each.node:
                    patch.rewire(use.node, use.slot, _codes(patch, past, scale))
            floats = patch.op("Cast", present, hint=f"{present.name}_wide", to=TensorProto.FLOAT)
            patch.replace(present, patch.op("Mul", floats, scale, hint=present.name))
    names = {value.name for each in found for value in each.presents}
    pasts = [value for each in found for value in each.pasts]
    commit([patch])
    for value in (*pasts, *(value for value in made.graph.outputs if value.name in names)):
        retype_value(value, TensorProto.FLOAT)
    return made


def _is_coded(node: Node) -> bool:
    return [node.attribute(name) for name in TYPES] == [CHANNEL] * 2 and None not in _scales(node)


def _scales(node: Node) -> list[Value | None]:
    return [_at(node.inputs, slot) for slot in SCALES]


def _codes(patch: Patch, past: Value, scale: Value | None) -> Value:
    """Write the codes of an input of floats."""
    codes = patch.op("Round", patch.op("Div", past, scale, hint=f"{past.name}_steps"), hint=f"{past.name}_rounded")
    ends = [patch.constant(np.array(end, np.float32), "cache_end") for end in (LOW, HIGH)]
    limited = patch.op("Clip", codes, *ends, hint=f"{past.name}_limited")
    return patch.op("Cast", limited, hint=f"{past.name}_codes", to=TensorProto.INT8)
