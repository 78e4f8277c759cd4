"""MoE of onnxruntime, a mixture of experts with float weights, as QMoE with weights in blocks.

Inputs and attributes: ContribOperators.md of onnxruntime. Its CPU kernel multiplies by experts of 4 and 8 bits, so
experts get 4 bits where a recipe asks for 2.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onnxq.ir import Value
from onnxq.ir.graph import MICROSOFT
from onnxq.ops.forms.block_codes import BlockCodes, pack_bits
from onnxq.ops.forms.family import (
    NodeView,
    NotQuantizable,
    QuantizedForm,
    Rewriter,
    register_plan,
    register_rewrite,
)
from onnxq.ops.forms.scheme import Scheme

WEIGHTS = (2, 4)  # slots of the experts' matrices `[experts, outputs, inputs]`; their biases stand behind them
FEWEST_BITS = 4
GATE = 6  # a third matrix, for which the CPU kernel has no product
QUANTIZED_SLOTS = 13  # of QMoE: weights, scales and biases of three matrices, then zero points
ZERO_POINTS = 11  # the first slot of zero points


@register_plan("MoE", when="weight-int8", domain=MICROSOFT)
@register_plan("MoE", when="weight-int4", domain=MICROSOFT)
@register_plan("MoE", when="weight-int2", domain=MICROSOFT)
def plan_experts(site: NodeView) -> QuantizedForm:
    """Accept experts of two constant matrices that whole blocks fill."""
    scheme = _scheme(site)
    if scheme.form != "matmulnbits" or not scheme.block_size:
        raise NotQuantizable("QMoE takes weights in blocks, and the recipe stores them otherwise")
    if site.input(GATE) is not None:
        raise NotQuantizable("QMoE has no third matrix of experts on CPUs: its gate has to be joined to the first")
    if not site.node.attribute("normalize_routing_weights", 0) or site.node.attribute("use_sparse_mixer", 0):
        raise NotQuantizable("QMoE lets the shares of the chosen experts sum to 1, and these do not")
    for slot in WEIGHTS:
        weight = site.weight(slot, rank=3)
        if weight.shape[-1] % scheme.block_size:
            raise NotQuantizable(f"rows of {weight.shape[-1]} are no multiple of the block size {scheme.block_size}")
    return QuantizedForm(f"QMoE, {scheme.weight_bits}-bit experts in blocks of {scheme.block_size}", opset=7)


@register_rewrite("MoE", when="weight-int8", domain=MICROSOFT)
@register_rewrite("MoE", when="weight-int4", domain=MICROSOFT)
@register_rewrite("MoE", when="weight-int2", domain=MICROSOFT)
def rewrite_experts(site: NodeView, patch: Rewriter) -> None:
    """Let QMoE multiply by codes, with a scale and a zero point for each block."""
    scheme, node = _scheme(site), site.node
    inputs: list[Value | None] = [None] * QUANTIZED_SLOTS
    inputs[:2] = [site.value(0), site.value(1)]
    for place, slot in enumerate(WEIGHTS):
        weight, first = site.value(slot), 2 + 3 * place
        arrays = _block_arrays(patch, weight, scheme)
        made = {what: patch.constant(array, f"{weight.name}_{what}", beside=weight) for what, array in arrays.items()}
        inputs[first], inputs[first + 1], inputs[first + 2] = made["quantized"], made["scale"], site.input(slot + 1)
        inputs[ZERO_POINTS + place] = made.get("zero_point")
    while inputs[-1] is None:
        inputs.pop()
    attributes = {**node.attributes(), "expert_weight_bits": scheme.weight_bits, "block_size": scheme.block_size}
    made_value = patch.node("QMoE", inputs, outputs=[site.output.name], domain=MICROSOFT, **attributes)[0]
    patch.replace(site.output, made_value)


def _scheme(site: NodeView) -> Scheme:
    """Return the settings of the node, with as many bits as the kernel has."""
    return replace(site.scheme, name="weight-int4") if site.scheme.weight_bits < FEWEST_BITS else site.scheme


def _block_arrays(patch: Rewriter, weight: Value, scheme: Scheme) -> dict[str, np.ndarray]:
    """Return codes, scales and zero points of all experts `[experts, outputs, …]`, packed along the last axis."""
    bits = scheme.weight_bits
    if scheme.zero_points:
        blocks = patch.block_codes(weight, reduce=(2,), scheme=scheme)
    else:
        blocks = BlockCodes.symmetric(
            *patch.codes(weight, reduce=(2,), scheme=scheme, block_size=scheme.block_size), bits
        )
    arrays = {"quantized": pack_bits(blocks.codes, bits), "scale": np.ascontiguousarray(blocks.scales)}
    return arrays | ({"zero_point": pack_bits(blocks.zeros, bits)} if scheme.zero_points else {})
