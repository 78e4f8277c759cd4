"""Kernels of several models timed in turn: what else a machine does meets all of them, and the least times count."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import onnxruntime as ort

from onnxq.planning.benchmark import kernel_times

ROUNDS = 3
SECONDS = 0.1  # for the runs of one model in one round
Feeds = Mapping[str, np.ndarray]


class Engine(Protocol):
    """What runs models and says how long that takes."""

    target: str
    """The target whose kernels these are; models are written for it where that matters."""

    small: tuple[int, ...]
    """Sides of small maps that Convs are measured on besides."""

    def describe(self) -> str:
        """Return its name and version."""

    def kernel_times(self, model: bytes, feeds: Feeds, seconds: float) -> dict[str, float]:
        """Return the nanoseconds of each kernel type, summed over the nodes of that type in one run."""

    def run_time(self, model: bytes, feeds: Feeds, runs: int) -> float:
        """Return the least nanoseconds of a whole run of a model as it stands, not optimised."""


class Native:
    """onnxruntime on this processor."""

    target = "cpu"
    small = ()

    def describe(self) -> str:
        """Return its name and version."""
        return f"onnxruntime {ort.__version__}"

    def kernel_times(self, model: bytes, feeds: Feeds, seconds: float) -> dict[str, float]:
        """Return the nanoseconds of each kernel type, summed over the nodes of that type in one run."""
        return kernel_times(model, feeds, seconds)

    def run_time(self, model: bytes, feeds: Feeds, runs: int) -> float:
        """Return the least nanoseconds of a whole run of a model as it stands, not optimised."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        times = []
        for _ in range(runs):
            start = time.perf_counter_ns()
            session.run(None, dict(feeds))
            times.append(time.perf_counter_ns() - start)
        return float(min(times))


class Measuring:
    """The engine that is measured; a script may choose another one before it measures."""

    engine: Engine = Native()


def turns(
    models: Sequence[bytes], feeds: Feeds, rounds: int = ROUNDS, seconds: float = SECONDS
) -> list[dict[str, float]]:
    """Return the least times of each kernel type of each model in nanoseconds."""
    found: list[dict[str, float]] = [{} for _ in models]
    for _ in range(rounds):
        for least, model in zip(found, models, strict=True):
            for kind, took in Measuring.engine.kernel_times(model, feeds, seconds).items():
                least[kind] = min(took, least.get(kind, took))
    return found


def least_times(model: bytes, feeds: Feeds) -> dict[str, float]:
    """Return the least times of each kernel type of one model in nanoseconds."""
    return turns([model], feeds)[0]
