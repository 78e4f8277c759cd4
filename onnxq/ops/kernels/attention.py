"""Attention and RotaryEmbedding of ONNX, from operator set 23 on.

https://onnx.ai/onnx/operators/onnx__Attention.html, https://onnx.ai/onnx/operators/onnx__RotaryEmbedding.html.
As in onnxruntime, a token that sees no other gets zeros.

Tests: `tests/ops/test_onnx_attention.py`.
"""

from __future__ import annotations

import math

import numpy as np

from onnxq.ops.kernels.arrays import Array, NotCovered, in_float32
from onnxq.ops.kernels.registry import kernel

# Numbers of this size and more stand for infinity in a mask, and leave scores out: the lowest float16 is -65504
MASKED = 6e4


@kernel("Attention", since=23)
def attention(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    nonpad_kv_seqlen: Array | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int = 0,
    q_num_heads: int = 0,
    qk_matmul_output_mode: int = 0,
    scale: float = 0.0,
    softcap: float = 0.0,
    softmax_precision: int = 0,
    output_count: int = 1,
) -> Array | tuple[Array, ...]:
    """Let queries attend to keys behind a cache; inputs are `[batch, length, heads * head]` or four axes.

    Raises:
        NotCovered: The logits are asked for as well; the values have 16 bits, whose sums have an order of their own;
            or `nonpad_kv_seqlen` gives each text a length.

    """
    if nonpad_kv_seqlen is not None or query.dtype != np.float32:
        raise NotCovered("Attention of 16 bits or of padded keys is left to the reference of onnx")
    if output_count > 3:
        raise NotCovered("logits of Attention as an output are not supported", "Export without them.")
    flat = query.ndim == 3
    q = split_heads(query, q_num_heads) if flat else query
    k, v = (split_heads(each, kv_num_heads) if flat else each for each in (key, value))
    if past_key is not None and past_value is not None:
        k, v = np.concatenate([past_key, k], axis=2), np.concatenate([past_value, v], axis=2)
    share = q.shape[1] // k.shape[1]
    wide = [np.repeat(each, share, axis=1) if share > 1 else each for each in (k, v)]
    logits = (q @ wide[0].swapaxes(-1, -2)) * q.dtype.type(scale or 1 / math.sqrt(q.shape[-1]))
    logits = softcap * np.tanh(logits / softcap) if softcap else logits
    if is_causal:
        before = 0 if past_key is None else past_key.shape[2]
        logits = np.where(np.tri(logits.shape[-2], logits.shape[-1], before, dtype=bool), logits, -np.inf)
    result = _probabilities(_masked(logits, attn_mask)) @ wide[1]
    result = result.astype(query.dtype, copy=False)
    result = join_heads(result) if flat else result
    return (result, k, v)[:output_count] if output_count > 1 else result


@kernel("RotaryEmbedding", since=23)
@in_float32
def rotary_embedding(
    x: Array,
    cos_cache: Array,
    sin_cache: Array,
    position_ids: Array | None = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Array:
    """Rotate pairs of the first elements of each head by angles of each place, or of tables that places look up."""
    heads = split_heads(x, num_heads) if x.ndim == 3 else x
    cos, sin = (table if position_ids is None else table[position_ids] for table in (cos_cache, sin_cache))
    half = (rotary_embedding_dim or heads.shape[-1]) // 2
    result = rotate(heads, cos[..., :half], sin[..., :half], interleaved=bool(interleaved))
    return join_heads(result) if x.ndim == 3 else result


def rotate(x: Array, cos: Array, sin: Array, *, interleaved: bool) -> Array:
    """Rotate pairs of the first elements of each head.

    Args:
        x: `[batch, heads, length, head]`.
        cos: `[batch, length, rotated / 2]`; the elements beyond `rotated` stay.
        sin: As `cos`.
        interleaved: Whether a pair is of neighbours, or of elements half of `rotated` apart.

    """
    half = cos.shape[-1]
    cos, sin = cos[:, None], sin[:, None]
    result = x.copy()
    one, two = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(half), slice(half, 2 * half))
    result[..., one] = x[..., one] * cos - x[..., two] * sin
    result[..., two] = x[..., two] * cos + x[..., one] * sin
    return result


def split_heads(x: Array, count: int) -> Array:
    """Return `[batch, heads, length, head]` of `[batch, length, heads * head]`."""
    return x.reshape(*x.shape[:2], count, -1).swapaxes(1, 2)


def join_heads(x: Array) -> Array:
    """Return `[batch, length, heads * head]` of `[batch, heads, length, head]`."""
    return np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape[0], x.shape[2], -1)


def _masked(logits: Array, mask: Array | None) -> Array:
    """Add a mask, or hide what a boolean one leaves out; the lowest number of the type hides as infinity does."""
    if mask is None:
        return logits
    if mask.dtype == np.bool_:
        return np.asarray(np.where(mask, logits, -np.inf))
    return np.asarray(logits + np.where(mask <= np.finfo(mask.dtype).min, mask.dtype.type(-np.inf), mask))


def _probabilities(logits: Array) -> Array:
    """Return the softmax of the last axis; zeros where all are hidden."""
    highest = logits.max(axis=-1, keepdims=True)
    weights = np.exp(logits - np.where(np.isneginf(highest), logits.dtype.type(0), highest))
    total = weights.sum(axis=-1, keepdims=True)
    return np.asarray(weights / np.where(total == 0, weights.dtype.type(1), total))
