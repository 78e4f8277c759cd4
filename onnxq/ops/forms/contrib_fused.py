"""Fused operators of `com.microsoft` in exported models: computed in float, their weights stored in 8 bit.

Inputs and attributes: ContribOperators.md of onnxruntime.
"""

from __future__ import annotations

from onnxq.ir import Tensor
from onnxq.ir.graph import MICROSOFT
from onnxq.ops.forms.family import (
    MINIMUM_STORED_ELEMENTS,
    NodeView,
    NotQuantizable,
    QuantizedForm,
    Rewriter,
    register_float_reason,
    register_plan,
    register_rewrite,
    stored_form,
)

DOMAIN = MICROSOFT
# Slots that may hold a weight, and the axes that share a scale: those that the operator sums over. In a table, a row.
WEIGHTS: dict[str, dict[int, tuple[int, ...]]] = {
    "Attention": {1: (0,)},
    "FusedConv": {1: (1, 2, 3, 4)},
    "EmbedLayerNormalization": {2: (1,), 3: (1,), 4: (1,)},
    "FusedMatMul": {0: (-1,), 1: (-2,)},
    "FusedMatMulActivation": {0: (-1,), 1: (-2,)},
    "GemmFastGelu": {1: (0,)},
    "FusedGemm": {0: (1,), 1: (0,)},
}
TRANSPOSES = ("transA", "transB")
NO_WEIGHT = (
    *("MultiHeadAttention", "GroupQueryAttention", "DecoderMaskedMultiHeadAttention", "PackedAttention"),
    *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "SimplifiedLayerNormalization"),
    *("Gelu", "FastGelu", "BiasGelu", "QuickGelu", "BiasSplitGelu", "RotaryEmbedding", "BiasAdd"),
)
register_float_reason(
    "it has no weight of its own: those of the products before it are quantized", *NO_WEIGHT, domain=DOMAIN
)


@register_plan(*WEIGHTS, when="weight-int8", domain=DOMAIN)
def plan_fused(site: NodeView) -> QuantizedForm:
    """Accept constant weights that are large enough to be worth storing in 8 bit."""
    found = list(_large(site).values())
    return stored_form(site, found[0] if found else site.weight(max(WEIGHTS[site.node.op_type]), rank=2))


def _large(site: NodeView) -> dict[int, Tensor]:
    found = {}
    for slot in WEIGHTS[site.node.op_type]:
        try:
            weight = site.weight(slot, rank=2)
        except NotQuantizable:
            continue
        if weight.size >= MINIMUM_STORED_ELEMENTS:
            found[slot] = weight
    return found


@register_rewrite(*WEIGHTS, when="weight-int8", domain=DOMAIN)
def rewrite_fused(site: NodeView, patch: Rewriter) -> None:
    """Let the node read float weights that the file holds in 8 bit."""
    for slot, weight in _large(site).items():
        rank = len(weight.shape)
        reduce = tuple(axis for axis in WEIGHTS[site.node.op_type][slot] if axis < rank)
        if slot < len(TRANSPOSES) and site.node.attribute(TRANSPOSES[slot], 0):
            reduce = tuple({-1: -2, -2: -1, 0: 1, 1: 0}[axis] for axis in reduce)
        patch.rewire(site.node, slot, patch.stored(site.value(slot), reduce=reduce, scheme=site.scheme))
