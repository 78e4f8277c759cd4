"""Scales of caches of keys and values, from what the float model puts there for the samples.

Tests: `tests/stages/test_cache_scales.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime as ort

from onnxq.calibration.float_runs import float_runs, run_samples
from onnxq.data.samples import Samples, spread_samples
from onnxq.errors import DataError, RecipeError
from onnxq.ir import Model
from onnxq.ir.graph import MICROSOFT
from onnxq.lowering.coded_caches import HIGH, cached_attentions
from onnxq.progress import Observer
from onnxq.stages.prepared import Prepared
from onnxq.targets.target import load_target

SAMPLES = 32  # that the scales come from
MANTISSA = 10  # bits of a scale: sums differ in the last bits from processor to processor
CACHE_AXES = 4
SINCE = (1, 27)  # versions of onnxruntime that run such caches, which the result is compared with


def check_caches(prepared: Prepared, samples: Samples | None) -> None:
    """Refuse codes for caches where there are none, or nothing to choose their scales on.

    Raises:
        RecipeError: The model has no cache that can be coded, or its runtime does not know the operator.
        DataError: There are no samples, or the model cannot be run.

    """
    scheme = prepared.plan.recipe.scheme
    if scheme.kv_cache == "float":
        return
    if MICROSOFT not in load_target(scheme.target).domains:
        raise RecipeError(
            f"caches in int8 need GroupQueryAttention of onnxruntime, which {scheme.target} does not have",
            "Leave --kv-cache out, or choose another target.",
        )
    if tuple(int(part) for part in ort.__version__.split(".")[:2]) < SINCE:
        raise RecipeError(
            f"caches in int8 need onnxruntime 1.27, and {ort.__version__} is installed",
            "Update it, or leave --kv-cache out.",
        )
    if not cached_attentions(prepared.model):
        raise RecipeError(
            "no cache can be int8: no GroupQueryAttention has float32 caches among the inputs and outputs of the model",
            "Leave --kv-cache out, or export with onnxruntime-genai's builder.",
        )
    if samples is None or not prepared.strategy.runs:
        raise DataError(
            "scales of int8 caches come from running the model on data", "Add --data, or leave --kv-cache out."
        )


def cache_scales(prepared: Prepared, samples: Samples | None, observer: Observer) -> Mapping[str, np.ndarray]:
    """Choose a scale for each channel of each head: the greatest magnitude in some samples becomes the code 127.

    Args:
        prepared: The float model and its recipe.
        samples: Texts, with or without a cache in front of them.
        observer: Told about the step.

    Returns:
        float32 `[1, heads, 1, head]` for each output that is a cache; none if the recipe leaves caches in float.

    Raises:
        DataError: The model does not run on a sample.

    """
    if prepared.plan.recipe.scheme.kv_cache == "float" or samples is None:
        return {}
    observer.step("caches")
    most = _greatest(prepared.model, samples, observer)
    return {name: _scale(array) for name, array in most.items()}


def _greatest(model: Model, samples: Samples, observer: Observer) -> dict[str, np.ndarray]:
    """Return the greatest magnitude of each channel of each cache, `[1, heads, 1, head]`."""
    values = [value for each in cached_attentions(model) for value in each.presents]
    chosen = spread_samples(samples, SAMPLES)
    most: dict[str, np.ndarray] = {}
    runs = float_runs(model, values, {})
    for done, (_, _, caches) in enumerate(run_samples(runs, chosen.items()), 1):
        for value, cache in zip(values, caches, strict=True):
            if np.ndim(cache) != CACHE_AXES:
                raise DataError(
                    f"'{value.name}' has {np.ndim(cache)} axes, and a cache has {CACHE_AXES}", "Export it again."
                )
            found = np.abs(np.asarray(cache, np.float32)).max(axis=(0, 2), keepdims=True, initial=0)
            most[value.name] = np.maximum(most.get(value.name, found), found)
        observer.progress(done, len(chosen))
    return most


def _scale(most: np.ndarray) -> np.ndarray:
    """Return the scales for greatest magnitudes, rounded up to few bits; those of channels without values are 1."""
    mantissa, exponent = np.frexp(np.where(most > 0, most / HIGH, 1).astype(np.float64))
    return np.asarray(np.ldexp(np.ceil(mantissa * 2**MANTISSA), exponent - MANTISSA), np.float32)
