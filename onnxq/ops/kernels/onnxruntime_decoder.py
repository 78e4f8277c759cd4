"""Operators of onnxruntime that saved decoders consist of: attention with a cache, rotations, norms, Gelu.

Inputs, attributes and defaults: ContribOperators.md of onnxruntime. Its CPU kernels leave the cache behind the last
token of a sequence undefined; it is zero here.
"""

from __future__ import annotations

import math

import numpy as np

from onnxq.ir.graph import MICROSOFT
from onnxq.ops.kernels.activation import gelu
from onnxq.ops.kernels.arrays import Array, NotCovered, at_least_float32, in_float32, normalize_axis
from onnxq.ops.kernels.attention import join_heads, rotate, split_heads
from onnxq.ops.kernels.registry import kernel

CACHE_BITS, CODES = 8, 128  # of a coded cache; codes are from -128 to 127


@kernel("SimplifiedLayerNormalization")
def simplified_layer_normalization(
    x: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1, output_count: int = 1
) -> Array | tuple[Array, Array]:
    """Compute x / sqrt(mean(x²) + epsilon) * scale over the axes from `axis` on, and the factor."""
    axes = tuple(range(normalize_axis(axis, x.ndim), x.ndim))
    wide = at_least_float32(x)
    inverse = 1 / np.sqrt(np.mean(wide * wide, axis=axes, keepdims=True) + wide.dtype.type(epsilon))
    y = (wide * inverse * scale).astype(x.dtype, copy=False)
    return (y, inverse) if output_count > 1 else y


@kernel("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_simplified_layer_normalization(
    x: Array, skip: Array, gamma: Array, bias: Array | None = None, *, epsilon: float = 1e-5, output_count: int = 1
) -> Array | tuple[Array | None, ...]:
    """Normalise x + skip + bias by its root mean square; the last of four outputs is the sum."""
    total = x + skip if bias is None else x + skip + bias
    y = simplified_layer_normalization(total, gamma, epsilon=epsilon)
    assert not isinstance(y, tuple)
    return (y, None, None, total)[:output_count] if output_count > 1 else y


@kernel("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(
    x: Array,
    skip: Array,
    gamma: Array,
    beta: Array | None = None,
    bias: Array | None = None,
    *,
    epsilon: float = 1e-5,
    output_count: int = 1,
) -> Array | tuple[Array | None, ...]:
    """Normalise x + skip + bias over its last axis; the last of four outputs is the sum."""
    total = x + skip if bias is None else x + skip + bias
    wide = at_least_float32(total)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    inverse = 1 / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + wide.dtype.type(epsilon))
    y = centred * inverse * gamma
    y = (y if beta is None else y + beta).astype(x.dtype, copy=False)
    return (y, None, None, total)[:output_count] if output_count > 1 else y


@kernel("Gelu", domain=MICROSOFT)
def gelu_of_onnxruntime(x: Array) -> Array:
    """x/2 (1 + erf(x / √2))."""
    return gelu(x)


@kernel("BiasGelu", domain=MICROSOFT)
@in_float32
def bias_gelu(x: Array, bias: Array) -> Array:
    """Gelu of x + bias."""
    return gelu(x + bias)


@kernel("FastGelu", domain=MICROSOFT)
@in_float32
def fast_gelu(x: Array, bias: Array | None = None) -> Array:
    """Gelu of x + bias, in its form with tanh."""
    return gelu(x if bias is None else x + bias, approximate="tanh")


@kernel("RotaryEmbedding", domain=MICROSOFT)
@in_float32
def rotary_embedding(
    x: Array,
    position_ids: Array,
    cos_cache: Array,
    sin_cache: Array,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Array:
    """Rotate `[batch, length, hidden]` or `[batch, heads, length, head]`, positions as ids or as the first one."""
    batch, length = x.shape[0], x.shape[-2]
    head = 2 * cos_cache.shape[1] if not rotary_embedding_dim else x.shape[-1] // num_heads
    heads = split_heads(x, x.shape[-1] // head) if x.ndim == 3 else x
    places = position_ids.reshape(-1, 1) + np.arange(length) if position_ids.size == 1 else position_ids
    places = np.broadcast_to(places, (batch, length))
    result = rotate(heads, cos_cache[places], sin_cache[places], interleaved=bool(interleaved))
    return join_heads(result) if x.ndim == 3 else result


@kernel("GroupQueryAttention", domain=MICROSOFT)
@in_float32
def group_query_attention(
    query: Array,
    key: Array | None,
    value: Array | None,
    past_key: Array | None,
    past_value: Array | None,
    seqlens_k: Array,
    total_sequence_length: Array,
    cos_cache: Array | None = None,
    sin_cache: Array | None = None,
    position_ids: Array | None = None,
    attention_bias: Array | None = None,
    head_sink: Array | None = None,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    *,
    num_heads: int,
    kv_num_heads: int,
    scale: float = 0.0,
    do_rotary: int = 0,
    rotary_interleaved: int = 0,
    local_window_size: int = -1,
    softcap: float = 0.0,
    k_quant_type: str = "NONE",
    v_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,
    sliding_window_cache: int = 0,
    output_count: int = 1,
) -> Array | tuple[Array, ...]:
    """Let each query attend to the cache and to the tokens in front of it; queries share heads of keys and values.

    `seqlens_k` is the number of tokens of each sequence, this call's included, less one. Keys and values of a call
    without a past may be shorter than its queries: then what follows them is padding. With scales, a cache holds int8
    codes, of this call's tokens as well. A sliding one has the last tokens alone, in order from its first row on.
    """
    scales = _cache_scales({k_quant_type, v_quant_type}, k_scale, v_scale, kv_cache_bit_width)
    parts = _split_packed(query, num_heads, kv_num_heads) if key is None or value is None else (query, key, value)
    q, k, v = map(split_heads, parts, (num_heads, kv_num_heads, kv_num_heads))
    batch, length, total = len(q), q.shape[2], int(np.asarray(total_sequence_length).reshape(-1)[0])
    counts = np.asarray(seqlens_k).reshape(-1).astype(np.int64) + 1
    before = np.zeros(batch, np.int64) if length == total else counts - length
    if (before < 0).any():
        raise NotCovered("a sequence is shorter than what follows its cache", "Put the same length into the mask.")
    places = before[:, None] + np.arange(length)
    own = places if position_ids is None else position_ids
    if do_rotary:
        q, k = _rotated((q, k), cos_cache, sin_cache, own, interleaved=bool(rotary_interleaved))
    rows = 0 if past_key is None else past_key.shape[2]
    window = local_window_size if sliding_window_cache and rows else 0
    pasts = [_unrolled(past, before, total, window) if past is not None else None for past in (past_key, past_value)]
    room = total if window else max(total, rows)
    new = [_cache_codes(each, factor) for each, factor in zip((k, v), scales, strict=False)] or (k, v)
    keys, values = (_cache(*each, places, before, room) for each in zip(pasts, new, strict=True))
    meant = [each * factor.astype(q.dtype) for each, factor in zip((keys, values), scales, strict=False)]
    wide = [np.repeat(each, num_heads // kv_num_heads, axis=1) for each in meant or (keys, values)]
    logits = _logits(q, wide[0], scale, softcap, attention_bias)
    logits = np.where(_seen(places, room, local_window_size)[:, None], logits, -np.inf)
    result = join_heads(_attended(logits, wide[1], head_sink).astype(q.dtype, copy=False))
    both = (_rolled(each, counts, rows, window) for each in (keys, values))
    return (result, *both)[:output_count] if output_count > 1 else result


def _seen(places: Array, room: int, window: int) -> Array:
    """Return whether each query may attend to each place, `[batch, length, room]`."""
    seen = np.arange(room) <= places[..., None]
    return np.asarray(seen if window < 0 else seen & (np.arange(room) > places[..., None] - window))


def held_rows(count: int, rows: int, window: int) -> int:
    """Return how many tokens a cache of so many rows holds behind `count`; it drops several at once."""
    dropped = rows - window + 1
    return count if count <= rows else count - dropped * -(-(count - rows) // dropped)


def _unrolled(past: Array, before: Array, room: int, window: int) -> Array:
    """Return a cache of the last tokens as one of all, zero where they are dropped; one of all as it is."""
    if not window:
        return past
    result = np.zeros((*past.shape[:2], room, past.shape[3]), past.dtype)
    for index, count in enumerate(before):
        held = held_rows(int(count), past.shape[2], window)
        result[index, :, count - held : count] = past[index, :, :held]
    return result


def _rolled(cache: Array, counts: Array, rows: int, window: int) -> Array:
    """Return a cache of the last tokens from one of all, zero behind them; one of all as it is without a window."""
    if not window:
        return cache
    result = np.zeros((*cache.shape[:2], rows, cache.shape[3]), cache.dtype)
    for index, count in enumerate(counts):
        held = held_rows(int(count), rows, window)
        result[index, :, :held] = cache[index, :, count - held : count]
    return result


def _logits(q: Array, keys: Array, scale: float, softcap: float, bias: Array | None) -> Array:
    logits = q @ keys.swapaxes(-1, -2) * q.dtype.type(scale or 1 / math.sqrt(q.shape[-1]))
    logits = softcap * np.tanh(logits / softcap) if softcap else logits
    if bias is not None:
        logits[..., : bias.shape[-1]] += bias
    return np.asarray(logits)


def _rotated(
    both: tuple[Array, Array], cos: Array | None, sin: Array | None, places: Array, *, interleaved: bool
) -> tuple[Array, Array]:
    """Rotate queries and keys by rows of tables."""
    if cos is None or sin is None:
        raise NotCovered("there is no table of rotations", "Give cos_cache and sin_cache.")
    q, k = (rotate(each, cos[places], sin[places], interleaved=interleaved) for each in both)
    return q, k


@kernel("MultiHeadAttention", domain=MICROSOFT)
@in_float32
def multi_head_attention(
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    bias: Array | None = None,
    key_padding_mask: Array | None = None,
    attention_bias: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    *,
    num_heads: int,
    mask_filter_value: float = -10000.0,
    scale: float = 0.0,
    unidirectional: int = 0,
    output_count: int = 1,
) -> Array | tuple[Array, ...]:
    """Let each query attend to the keys; keys of `[batch, heads, length, head]` are those of an encoder.

    Raises:
        NotCovered: Queries, keys and values are packed into one tensor, or a mask has a form that is not known here.

    """
    if key is None or value is None or query.ndim != 3:
        raise NotCovered("packed queries, keys and values are not supported", "Export them apart.")
    width = query.shape[-1]
    if bias is not None:
        query = query + bias[:width]
        if key.ndim == 3:
            key, value = key + bias[width : width + key.shape[-1]], value + bias[width + key.shape[-1] :]
    q = split_heads(query, num_heads)
    k, v = (split_heads(each, num_heads) if each.ndim == 3 else each for each in (key, value))
    if past_key is not None and past_value is not None and key.ndim == 3:
        k, v = np.concatenate([past_key, k], axis=2), np.concatenate([past_value, v], axis=2)
    logits = q @ k.swapaxes(-1, -2) * q.dtype.type(scale or 1 / math.sqrt(q.shape[-1]))
    if attention_bias is not None:
        logits = logits + attention_bias
    logits = _masked(logits, key_padding_mask, mask_filter_value)
    if unidirectional:
        places = np.arange(logits.shape[-2])[:, None] + logits.shape[-1] - logits.shape[-2]
        logits = np.where(np.arange(logits.shape[-1]) <= places, logits, -np.inf)
    result = join_heads(_attended(logits, v).astype(q.dtype, copy=False))
    return (result, k, v)[:output_count] if output_count > 1 else result


def _masked(logits: Array, mask: Array | None, filler: float) -> Array:
    """Put a value where a mask `[batch, keys]` is 0, or behind the lengths `[batch]` of sequences."""
    if mask is None:
        return logits
    batch, keys = len(logits), logits.shape[-1]
    if mask.shape == (batch,):
        mask = np.arange(keys) < mask[:, None]
    if mask.shape != (batch, keys):
        raise NotCovered(f"a mask of {list(mask.shape)} is not supported", "Export it as [batch, keys].")
    return np.asarray(np.where(mask[:, None, None] != 0, logits, logits.dtype.type(filler)))


def _attended(logits: Array, values: Array, sink: Array | None = None) -> Array:
    """Return the values by the softmax of logits; a sink of each head, a logit, takes a share for nothing."""
    most = logits.max(axis=-1, keepdims=True)
    beyond = None if sink is None else sink.reshape(1, -1, 1, 1).astype(logits.dtype)
    most = most if beyond is None else np.maximum(most, beyond)
    weights = np.exp(logits - most)
    sums = weights.sum(axis=-1, keepdims=True)
    weights /= sums if beyond is None else sums + np.exp(beyond - most)
    return np.asarray(weights @ values)


def _split_packed(packed: Array, heads: int, kv_heads: int) -> tuple[Array, Array, Array]:
    size = packed.shape[-1] // (heads + 2 * kv_heads)
    q, k, v = np.split(packed, [heads * size, (heads + kv_heads) * size], axis=-1)
    return q, k, v


def _cache_scales(types: set[str], k_scale: Array | None, v_scale: Array | None, bits: int) -> list[Array]:
    """Return the scales of keys and values; none for a cache of floats."""
    if types == {"NONE"}:
        return []
    if "NONE" in types or k_scale is None or v_scale is None or bits != CACHE_BITS:
        raise NotCovered("of coded caches, only keys and values of 8 bits with scales are supported", "Export it so.")
    return [k_scale, v_scale]


def _cache_codes(x: Array, scale: Array) -> Array:
    """Return int8 codes of `[batch, heads, length, head]`, the scale of one element or `[1, heads, 1, head]`."""
    return np.asarray(np.clip(np.rint(x / scale), -CODES, CODES - 1).astype(np.int8))


def _cache(past: Array | None, new: Array, places: Array, before: Array, room: int) -> Array:
    """Return the cache with what is new at its places, `[batch, heads, room, head]`."""
    result = np.zeros((new.shape[0], new.shape[1], room, new.shape[3]), new.dtype)
    for index, count in enumerate(before):
        if past is not None:
            result[index, :, :count] = past[index, :, :count]
        result[index, :, places[index]] = new[index].swapaxes(0, 1)
    return result
