"""Figures of decoders: perplexity, greedy choices, and the latency of one token and of a prompt.

Tests: `tests/verification/test_decoding.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from onnxq.data.generated_text import TextInput, is_causal, text_input
from onnxq.data.samples import Samples
from onnxq.errors import OnnxqError
from onnxq.ir import Model, infer_types
from onnxq.progress import Observer, OnSample, working
from onnxq.runtime.load_memory import load_memory
from onnxq.runtime.session import ModelSource, SessionError, open_session, run_session, runs_in_segments
from onnxq.verification.compare import time_pair
from onnxq.verification.metrics.by_name import metric_of_name
from onnxq.verification.metrics.greedy import CONTINUED, TEXTS
from onnxq.verification.records import Decoding, Latency, MetricComparison
from onnxq.verification.user_metric import WatchedMetric, compare_metric

PAST, PROMPT = 64, 128  # tokens in the cache, if there is one, in front of one token; and tokens that are read at once
JUDGED, JUDGED_IN_SEGMENTS = 32, 8  # samples whose perplexity is measured
SECONDS, FOR_ONE = 2.0, 5.0  # that the float model may take to go on with texts, and with a single one


def measure_decoding(
    model: Model,
    float_model: ModelSource,
    quantized: ModelSource,
    samples: Samples,
    observer: Observer,
    known: Iterable[MetricComparison | None] = (),
) -> Decoding | None:
    """Measure a decoder of token ids as its users judge it.

    Args:
        model: The float model, which says what each input takes.
        float_model: What is run of it.
        quantized: The quantized model.
        samples: Texts.
        observer: Told about the step, if the model is a decoder.
        known: Metrics that have been measured, and need not be again; of two of one name the last counts.

    Returns:
        The figures; None for a model that is no decoder, or does not run. Greedy choices of a slow model are left out.
        A model that runs in segments has its perplexity alone.

    """
    infer_types(model)
    found = text_input(model)
    if found is None:
        return None
    measured = partial(_metric, float_model=float_model, quantized=quantized, progress=observer.progress)
    metrics: dict[str, MetricComparison | None] = {one.name: one for one in known if one is not None}
    in_segments = runs_in_segments(float_model)
    if not in_segments or "perplexity" not in metrics:
        observer.step("decoding")
    if in_segments:
        if "perplexity" not in metrics:
            metrics["perplexity"] = measured("perplexity", samples=samples.limit(JUDGED_IN_SEGMENTS))
        judged = metrics["perplexity"]
        return None if judged is None else Decoding(judged, None, None, None, 0)
    try:
        both = open_session(float_model, threads=1), open_session(quantized, threads=1)
        name = found.logits.name
        one = np.random.default_rng(0).integers(0, found.tokens, (1, found.length))
        if not is_causal(found, one, lambda ids: np.asarray(run_session(both[0], [name], found.feeds(ids))[0])):
            return None
        with working("latency"):
            prompt = _timed(both, found, PROMPT, 0)
            past = PAST if found.caches else 0
            token = None if _is_fixed(found) else _timed(both, found, 1, past)
        if "perplexity" not in metrics:
            metrics["perplexity"] = measured("perplexity", samples=samples.limit(JUDGED))
        texts = 0 if prompt is None else _affordable(CONTINUED * prompt.float_ms / 1e3)
        if "greedy" not in metrics and texts:
            metrics["greedy"] = measured("greedy", samples=samples.limit(min(texts, TEXTS)))
    except (OnnxqError, SessionError):  # the comparison has said what is wrong
        return None
    return Decoding(
        metrics.get("perplexity"), metrics.get("greedy"), token, prompt, past, _loads(float_model, quantized)
    )


def watched_perplexity(model: Model, samples: Samples) -> WatchedMetric | None:
    """Return what measures the perplexity of a decoder on runs that are made anyway; None where it has none.

    Args:
        model: The float model.
        samples: What it is run on.

    """
    infer_types(model)
    metric = metric_of_name("perplexity")
    if text_input(model) is None or metric is None:
        return None
    try:
        return WatchedMetric(metric, samples)
    except OnnxqError:
        return None


def _loads(float_model: ModelSource, quantized: ModelSource) -> tuple[int, int] | None:
    one, two = load_memory(float_model), load_memory(quantized)
    return None if one is None or two is None else (one, two)


def _affordable(seconds: float) -> int:
    """Return how many texts the float model may go on with, by what it takes for one."""
    return max(int(SECONDS // seconds), int(seconds <= FOR_ONE))


def _is_fixed(found: TextInput) -> bool:
    return isinstance((found.ids.shape or ())[1], int)


def _timed(both: tuple[Any, Any], found: TextInput, length: int, past: int) -> Latency | None:
    """Time tokens behind a cache; None where the model takes no so many."""
    ids = np.random.default_rng(1).integers(0, found.tokens, (1, found.length if _is_fixed(found) else length))
    try:
        return time_pair(*both, found.feeds(ids, past))
    except SessionError:
        return None


def _metric(
    name: str, float_model: ModelSource, quantized: ModelSource, samples: Samples, progress: OnSample
) -> MetricComparison | None:
    """Measure a metric; None where the samples do not have what it needs."""
    try:
        with working(name):
            return compare_metric(name, float_model, quantized, samples, progress=progress)
    except OnnxqError:
        return None
