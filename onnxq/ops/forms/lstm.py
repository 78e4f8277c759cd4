"""LSTM, GRU and RNN with constant weights, stored in few bits; an LSTM may compute in 8 bit as well."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onnxq.ir import Value
from onnxq.ir.graph import MICROSOFT
from onnxq.ops.forms.family import (
    MINIMUM_STORED_ELEMENTS,
    NodeView,
    NotQuantizable,
    QuantizedForm,
    Rewriter,
    register_plan,
    register_rewrite,
    stored_opset,
)

WEIGHT_SLOTS = (1, 2)  # W and R, both [directions, gates * hidden, inputs]: every row makes one gate of one unit
REDUCED = (2,)


@register_plan("LSTM", "GRU", "RNN", when="weight-int12")
@register_plan("LSTM", "GRU", "RNN", when="weight-int8")
@register_plan("LSTM", "GRU", "RNN", when="weight-int4")
def plan_recurrent(site: NodeView) -> QuantizedForm:
    """Accept constant weights that are large enough to be worth storing in few bits."""
    site.float_input(0)
    sizes = [site.weight(slot, rank=3).size for slot in WEIGHT_SLOTS]
    if sum(sizes) < MINIMUM_STORED_ELEMENTS:
        raise NotQuantizable(f"weights have only {sum(sizes)} elements")
    bits = site.scheme.weight_bits
    if bits == 12 and any(size % 2 for size in sizes):
        raise NotQuantizable("codes of 12 bit come in pairs")
    opset = stored_opset(replace(site.scheme, block_size=0))  # a row has one scale, whatever others have
    return QuantizedForm(f"weights stored in {bits} bit, computed in float", opset=opset)


@register_rewrite("LSTM", "GRU", "RNN", when="weight-int12")
@register_rewrite("LSTM", "GRU", "RNN", when="weight-int8")
@register_rewrite("LSTM", "GRU", "RNN", when="weight-int4")
def rewrite_recurrent(site: NodeView, patch: Rewriter) -> None:
    """Let the node read float weights that the file holds in few bits, one scale for each row."""
    for slot in WEIGHT_SLOTS:
        patch.rewire(site.node, slot, patch.stored(site.value(slot), reduce=REDUCED, scheme=site.scheme))


@register_plan("LSTM", when="dynamic-int8")
def plan_dynamic_lstm(site: NodeView) -> QuantizedForm:
    """Accept an LSTM where the recipe lets it become one of `com.microsoft`: ONNX has none that computes in 8 bit."""
    form = plan_recurrent(site)
    if site.scheme.domain != MICROSOFT:
        raise NotQuantizable(
            'only com.microsoft has an LSTM that computes in 8 bit (domain = "com.microsoft" asks for it)'
        )
    if site.node.attribute("layout", 0):
        raise NotQuantizable("DynamicQuantizeLSTM needs the steps as first axis, not the batch")
    return QuantizedForm("DynamicQuantizeLSTM", opset=form.opset)


@register_rewrite("LSTM", when="dynamic-int8")
def rewrite_dynamic_lstm(site: NodeView, patch: Rewriter) -> None:
    """Weights transposed to [directions, inputs, gates * hidden], one scale for each column."""
    node = site.node
    w, r = (_columns(site, patch, slot) for slot in WEIGHT_SLOTS)
    rest = [site.input(slot) for slot in range(3, 8)]  # B, sequence_lens, initial_h, initial_c, P
    attributes = {name: node.attribute(name) for name in node.spans if name != "layout"}
    hints = [value.name if value is not None else f"{node.name}_output" for value in node.outputs]
    made = patch.node(
        "DynamicQuantizeLSTM",
        [site.input(0), w[0], r[0], *rest, *w[1:], *r[1:]],
        outputs=hints,
        domain=MICROSOFT,
        name=node.name,
        **attributes,
    )
    for old, new in zip(node.outputs, made, strict=True):
        if old is not None:
            patch.replace(old, new)


def _columns(site: NodeView, patch: Rewriter, slot: int) -> tuple[Value, Value, Value]:
    """Return the codes of a weight, their scales and their zero points."""
    weight = site.value(slot)
    codes, scales = patch.codes(weight, reduce=REDUCED, scheme=site.scheme)
    directions, columns = codes.shape[:2]
    scales = np.broadcast_to(scales, (directions, columns, 1)).reshape(directions, columns)
    moved = np.ascontiguousarray(codes.transpose(0, 2, 1))
    return (
        patch.constant(moved, f"{weight.name}_quantized", beside=weight),
        patch.constant(np.ascontiguousarray(scales), f"{weight.name}_scale", beside=weight),
        patch.constant(np.zeros(scales.shape, np.int8), f"{weight.name}_zero_point", beside=weight),
    )
