"""Attention and RotaryEmbedding of operator set 23 against onnxruntime's kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import floats, run
from onnx import TensorProto, helper

from onnxq.ops.kernels.attention import attention, rotary_embedding

HEADS, KV_HEADS, SIZE = 4, 2, 16
KINDS = {"float32": TensorProto.FLOAT, "bool": TensorProto.BOOL, "int64": TensorProto.INT64}


def single(op_type: str, feeds: dict[str, np.ndarray], outputs: list[str], **attributes: Any) -> list[np.ndarray]:
    """Run one operator in onnxruntime."""
    step = helper.make_node(op_type, list(feeds), outputs, **attributes)
    inputs = [helper.make_tensor_value_info(n, KINDS[str(a.dtype)], list(a.shape)) for n, a in feeds.items() if n]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph([step], "g", inputs, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    return run(model.SerializeToString(), {name: array for name, array in feeds.items() if name})


def masks(batch: int, length: int, total: int) -> dict[str, np.ndarray]:
    """Causal masks of several kinds; a row of the last text sees nothing."""
    seen = np.broadcast_to(np.tri(length, total, total - length, dtype=bool), (batch, 1, length, total)).copy()
    seen[-1, :, 0] = False
    lowest = np.finfo(np.float32).min
    kinds = {str(low): np.where(seen, 0, low).astype(np.float32) for low in (-np.inf, lowest, -1e30, -1e9, -1e4)}
    return {**kinds, "bool": seen, "heads": floats(batch, HEADS, length, total, seed=4), "flat": kinds[str(-1e9)][0, 0]}


@pytest.mark.parametrize("kind", masks(1, 1, 1))
@pytest.mark.parametrize("past", [0, 3])
def test_it_attends_as_onnxruntime_does(kind: str, past: int) -> None:
    batch, length = 2, 4
    feeds = {
        "q": floats(batch, length, HEADS * SIZE, seed=1), "k": floats(batch, length, KV_HEADS * SIZE, seed=2),
        "v": floats(batch, length, KV_HEADS * SIZE, seed=3), "mask": masks(batch, length, length + past)[kind],
        "past_k": floats(batch, KV_HEADS, past, SIZE, seed=5), "past_v": floats(batch, KV_HEADS, past, SIZE, seed=6),
    }  # fmt: skip
    told = {"q_num_heads": HEADS, "kv_num_heads": KV_HEADS, "scale": 0.3}
    expected = single("Attention", feeds, ["y", "k2", "v2"], **told)
    made = attention(*feeds.values(), **told, output_count=3)  # type: ignore[arg-type]
    for ours, theirs in zip(made, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-6)


@pytest.mark.parametrize("rotated", [SIZE, SIZE // 2])
@pytest.mark.parametrize("looked_up", [False, True])
def test_it_rotates_as_onnxruntime_does(rotated: int, looked_up: bool) -> None:
    shape = (7, rotated // 2) if looked_up else (2, 3, rotated // 2)
    feeds = {"x": floats(2, 3, HEADS * SIZE), "cos": floats(*shape, seed=1), "sin": floats(*shape, seed=2)}
    if looked_up:
        feeds["places"] = np.array([[3, 0, 6], [1, 1, 5]])
    expected = single("RotaryEmbedding", feeds, ["y"], num_heads=HEADS, rotary_embedding_dim=rotated)[0]
    made = rotary_embedding(*feeds.values(), num_heads=HEADS, rotary_embedding_dim=rotated)
    np.testing.assert_allclose(made, expected, atol=1e-6)
