"""Small attentions with masks of all kinds, and samples for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from helpers import build, floats, node

from onnxq.data.samples import input_specs, wrap_samples
from onnxq.ir import load
from onnxq.search.held_out import HoldoutSplit
from onnxq.stages.prepare import prepare
from onnxq.stages.prepared import Prepared

HEADS, LENGTH, WIDTH = 4, 32, 8
LOWEST = float(np.finfo(np.float32).min)
CAUSAL = np.triu(np.ones((LENGTH, LENGTH), np.float32), 1) > 0


def causal(depth: float) -> np.ndarray:
    """A mask of what comes later."""
    return np.where(CAUSAL, np.float32(depth), np.float32(0))


def attention(
    masking: Sequence[onnx.NodeProto],
    weights: Mapping[str, np.ndarray] | None = None,
    inputs: Mapping[str, Any] | None = None,
    *,
    scores: str = "x",
    behind: Sequence[onnx.NodeProto] = (),
    columns: int = 16,
    outputs: Sequence[str] = ("y",),
    opset: int = 17,
) -> onnx.ModelProto:
    """Scores `s` of queries and keys, nodes that make `x` of them, its Softmax `p`, and what becomes of the values.

    Args:
        masking: Those nodes.
        weights: What they read.
        inputs: What else they read.
        scores: What they call what the Softmax reads.
        behind: Nodes between the Softmax and the values, which make `safe`.
        columns: Of the weight behind.
        outputs: Of the model.
        opset: Its operator set.

    """
    nodes = [
        node("MatMul", "q k", "s"),
        *masking,
        node("Softmax", scores, "p", axis=-1),
        *behind,
        node("MatMul", "safe v" if behind else "p v", "h"),
        node("MatMul", "h w", "y"),
    ]
    read: dict[str, Any] = {
        "q": ["batch", HEADS, LENGTH, WIDTH],
        "k": ["batch", HEADS, WIDTH, LENGTH],
        "v": ["batch", HEADS, LENGTH, WIDTH],
    }
    known = {"w": floats(WIDTH, columns, seed=5), **(weights or {})}
    return build(nodes, read | dict(inputs or {}), list(outputs), known, opset)


def feeds(seed: int, scale: float = 1.0, batch: int = 1, **more: np.ndarray) -> dict[str, np.ndarray]:
    """Queries, keys and values; scores have a standard deviation of 2.8 times the scale."""
    return {
        "q": floats(batch, HEADS, LENGTH, WIDTH, seed=3 * seed, scale=scale),
        "k": floats(batch, HEADS, WIDTH, LENGTH, seed=3 * seed + 1),
        "v": floats(batch, HEADS, LENGTH, WIDTH, seed=3 * seed + 2),
        **more,
    }


def ready_for(
    proto: onnx.ModelProto, samples: Sequence[Mapping[str, np.ndarray]], folder: Path, recipe: Any = "auto", **more: Any
) -> tuple[Prepared, HoldoutSplit]:
    """A model that is ready to be quantized, and samples to judge it on."""
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    prepared = prepare(load(path), recipe, with_data=True, **more)
    wrapped = wrap_samples(list(samples), input_specs(prepared.model))
    return prepared, HoldoutSplit(prepared.model.copy(), wrapped)
