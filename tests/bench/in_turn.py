"""Two models timed in turn, so that what else a machine does meets both: for the benchmarks beside this file."""

from __future__ import annotations

import time

import numpy as np
import onnxruntime as ort


def model_times(before: bytes, after: bytes, feeds: dict[str, np.ndarray], runs: int) -> list[float]:
    """Give the median times of both models, run in turn on one thread, in microseconds."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    sessions = [ort.InferenceSession(each, options, providers=["CPUExecutionProvider"]) for each in (before, after)]
    times = np.zeros((runs, 2))
    for run in range(runs):
        for column, session in enumerate(sessions):
            start = time.perf_counter()
            session.run(None, feeds)
            times[run, column] = time.perf_counter() - start
    return [float(t) * 1e6 for t in np.median(times, axis=0)]
