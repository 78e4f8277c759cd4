"""Rows of caches without a token are no part of a comparison."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from decoders import HEAD, KV_HEADS, genai_decoder

from onnxq import compare
from onnxq.verification.sliding_caches import SlidingCaches

WINDOW, ROWS = 6, 9


def sliding_decoder() -> onnx.ModelProto:
    """A decoder whose caches hold the last tokens alone."""
    proto = genai_decoder(1)
    attention = next(each for each in proto.graph.node if each.op_type == "GroupQueryAttention")
    next(each for each in attention.attribute if each.name == "local_window_size").i = WINDOW
    attention.attribute.append(onnx.helper.make_attribute("sliding_window_cache", 1))
    return proto


def feeds(count: int) -> dict[str, np.ndarray]:
    caches = {f"past_key_values.0.{part}": np.zeros((1, KV_HEADS, ROWS, HEAD), np.float32) for part in ("key", "value")}
    ids = np.random.default_rng(count).integers(0, 64, (1, count))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), **caches}


@pytest.mark.parametrize(("count", "held"), [(4, 4), (9, 9), (10, 6), (12, 8)])
def test_rows_behind_the_tokens_are_zero(count, held):
    names = ["logits", "present.0.key", "present.0.value"]
    arrays = [np.full((1, KV_HEADS, ROWS, HEAD), np.nan) for _ in names]
    SlidingCaches(sliding_decoder(), names[1:]).clear(feeds(count), names, arrays)
    assert np.isnan(arrays[0]).all()
    for cache in arrays[1:]:
        assert np.isnan(cache[:, :, :held]).all()
        assert not cache[:, :, held:].any()


def test_a_model_differs_in_nothing_from_itself():
    proto = sliding_decoder()
    found = compare(proto, proto, [feeds(count) for count in (3, 5, 20)], latency=False)
    assert [output.sqnr for output in found.outputs] == [float("inf")] * 3


def test_other_models_are_left_alone():
    arrays = [np.full((1, KV_HEADS, ROWS, HEAD), np.nan)]
    SlidingCaches(genai_decoder(1), ["present.0.key"]).clear(feeds(3), ["present.0.key"], arrays)
    assert np.isnan(arrays[0]).all()
