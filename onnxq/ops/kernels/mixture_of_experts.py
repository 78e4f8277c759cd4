"""MoE of onnxruntime: each token is read by the experts that its router likes best.

Inputs, attributes and defaults: ContribOperators.md of onnxruntime. Its CPU kernel wants gates and values of SwiGLU in
turn. Left to others: shares that do not sum to 1, and a third matrix of experts.
"""

from __future__ import annotations

import numpy as np

from onnxq.ir.graph import MICROSOFT
from onnxq.ops.kernels.activation import gelu, sigmoid
from onnxq.ops.kernels.arrays import Array, NotCovered, in_float32
from onnxq.ops.kernels.registry import kernel
from onnxq.ops.kernels.softmax import softmax


@kernel("MoE", domain=MICROSOFT)
@in_float32
def mixture_of_experts(
    x: Array,
    router: Array,
    first: Array,
    first_bias: Array | None,
    second: Array,
    second_bias: Array | None = None,
    third: Array | None = None,
    *,
    k: int = 1,
    activation_type: str = "relu",
    normalize_routing_weights: int = 0,
    use_sparse_mixer: int = 0,
    swiglu_fusion: int = 0,
    swiglu_limit: float | None = None,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
) -> Array:
    """Sum the best experts of each row by their shares.

    Args:
        x: `[..., width]`.
        router: Logits `[rows, experts]`.
        first: `[experts, inner, width]`; of SwiGLU twice as many rows.
        first_bias: `[experts, inner]`.
        second: `[experts, width, inner]`.
        second_bias: `[experts, width]`.
        third: Not covered.
        k: How many experts read a row.
        activation_type: Between both matrices.
        normalize_routing_weights: Whether shares are a Softmax of the chosen logits; not covered otherwise.
        use_sparse_mixer: Not covered.
        swiglu_fusion: 1 where gates and values are in turn; not covered otherwise.
        swiglu_limit: What gates are cut at from above, and values on both sides.
        activation_alpha: Of SwiGLU, which is `gate * sigmoid(alpha * gate) * (value + beta)`.
        activation_beta: Likewise.

    """
    gated = activation_type == "swiglu"
    if not normalize_routing_weights or use_sparse_mixer or third is not None or (gated and swiglu_fusion != 1):
        raise NotCovered("its routing, or the order of its gates")
    rows = x.reshape(-1, x.shape[-1])
    chosen = np.argsort(-router, axis=1, kind="stable")[:, :k]
    shares = softmax(np.take_along_axis(router, chosen, axis=1), axis=1)
    made = np.zeros_like(rows)
    for expert in np.unique(chosen):
        places, ranks = np.nonzero(chosen == expert)
        inner = rows[places] @ first[expert].T
        inner = inner if first_bias is None else inner + first_bias[expert]
        inner = (
            _gated(inner, swiglu_limit, activation_alpha, activation_beta)
            if gated
            else _activated(inner, activation_type)
        )
        read = inner @ second[expert].T
        read = read if second_bias is None else read + second_bias[expert]
        made[places] += read * shares[places, ranks, None]
    return made.reshape(x.shape)


def _gated(x: Array, limit: float | None, alpha: float, beta: float) -> Array:
    """Multiply values by their gates, which stand in turn."""
    gate, value = x[:, 0::2], x[:, 1::2]
    if limit is not None:
        gate, value = np.minimum(gate, limit), np.clip(value, -limit, limit)
    found: Array = gate * sigmoid(gate * gate.dtype.type(alpha)) * (value + gate.dtype.type(beta))
    return found


def _activated(x: Array, kind: str) -> Array:
    if kind == "relu":
        return np.maximum(x, 0)
    if kind == "silu":
        return x * sigmoid(x)
    if kind == "gelu":
        return gelu(x, approximate="tanh")
    if kind == "identity":
        return x
    raise NotCovered(f"activation {kind}")
