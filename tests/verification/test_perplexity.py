"""Perplexity is e to the mean loss of next tokens."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import build, floats, node

from onnxq.pipeline.quantize import quantize
from onnxq.planning.recipe import in_blocks
from onnxq.search.budget import Budget
from onnxq.verification.perplexity import negative_perplexity

RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.standard_normal((4, 5, 7)).astype(np.float32)
NEXT = RANDOM.integers(0, 7, (4, 5))


def test_it_is_that_of_the_definition_whatever_the_batches():
    chances = np.exp(LOGITS.astype(np.float64))
    chances /= chances.sum(-1, keepdims=True)
    told = np.take_along_axis(chances, NEXT[..., None], -1)
    expected = -np.exp(-np.log(told).mean())
    for parts in ([LOGITS], list(LOGITS[:, None]), [LOGITS[:1], LOGITS[1:]]):
        found = negative_perplexity({"present": [np.zeros((1, 2))] * 4, "logits": parts}, {"_next": [NEXT]})
        assert found == pytest.approx(expected, rel=1e-12)
    assert negative_perplexity({"y": [np.zeros((4, 5, 7))]}, {"_next": [NEXT]}) == pytest.approx(-7)


def test_negative_tokens_and_large_logits():
    part = NEXT.copy()
    part[:, 3:] = -100
    expected = negative_perplexity({"y": [LOGITS[:, :3]]}, {"_next": [NEXT[:, :3]]})
    assert negative_perplexity({"y": [LOGITS + 1e4]}, {"_next": [part]}) == pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize(
    ("outputs", "labels", "message"),
    [
        ({"y": [LOGITS[0]]}, {"_next": [NEXT]}, "no output holds logits"),
        ({"y": [LOGITS]}, {"_w": [np.zeros((4, 5))]}, "no next tokens"),
        ({"y": [LOGITS]}, {"_next": [NEXT[:3]]}, "3 rows, and the samples have 4"),
        ({"y": [LOGITS]}, {"_next": [NEXT[:, :4]]}, r"next tokens are \[4, 4\]"),
    ],
)
def test_what_does_not_fit_is_told(outputs, labels, message):
    with pytest.raises(ValueError, match=message):
        negative_perplexity(outputs, labels)


def test_a_run_takes_it_as_a_metric(tmp_path):
    weights = {"table": floats(24, 32, seed=1), "w": floats(32, 24, scale=0.3)}
    nodes = [node("Gather", "table x", "e"), node("MatMul", "e w", "y")]
    model = build(nodes, {"x": [1, 5]}, ["y"], weights, 21)
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    onnx.save(model, tmp_path / "m.onnx")
    ids = RANDOM.integers(0, 24, (12, 5)).astype(np.int64)
    np.savez(tmp_path / "d.npz", x=ids, _next=np.roll(ids, -1, axis=1))
    budget = Budget(None, "onnxq.verification.perplexity:negative_perplexity", 1e6)
    data, target = [tmp_path / "d.npz"], tmp_path / "q.onnx"
    report = quantize(tmp_path / "m.onnx", in_blocks(4), data=data, output=target, budget=budget)
    assert report.comparison is not None
    assert report.comparison.metric is not None
    table, w = weights["table"], weights["w"]
    expected = negative_perplexity({"y": [table[ids] @ w]}, {"_next": [np.roll(ids, -1, axis=1)]})
    assert report.comparison.metric.float_value == pytest.approx(expected, rel=1e-4)
