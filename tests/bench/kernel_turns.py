"""Kernels of several models timed in turn: what else a machine does meets all of them, and the least times count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from onnxq.quant.benchmark import kernel_times

ROUNDS = 3
SECONDS = 0.1  # for the runs of one model in one round


def turns(
    models: Sequence[bytes], feeds: Mapping[str, np.ndarray], rounds: int = ROUNDS, seconds: float = SECONDS
) -> list[dict[str, float]]:
    """Return the least times of each kernel type of each model in nanoseconds."""
    found: list[dict[str, float]] = [{} for _ in models]
    for _ in range(rounds):
        for least, model in zip(found, models, strict=True):
            for kind, time in kernel_times(model, feeds, seconds).items():
                least[kind] = min(time, least.get(kind, time))
    return found


def least_times(model: bytes, feeds: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the least times of each kernel type of one model in nanoseconds."""
    return turns([model], feeds)[0]
