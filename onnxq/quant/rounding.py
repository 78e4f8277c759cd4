"""Which integer codes and scales a weight gets: of least error at the layer's output, where samples were measured.

With the second moments H of what a layer reads, the mean squared error of its output is `diag(D H Dᵀ)`, D being the
change of the weight. Scales are predicted in closed form, codes follow by error feedback (GPTQ) and coordinate descent,
scales once more by least squares. How far H is to be trusted is decided on samples that it was not made of, and a
channel that gains nothing on those is rounded to nearest.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from onnxq.quant.blas import single_threaded_blas
from onnxq.quant.code_search import RoundedWeight, Search, shows_something
from onnxq.quant.descent import nearest
from onnxq.quant.gram import Gram
from onnxq.quant.moments import LayerMoments
from onnxq.quant.scales import ScaleLayout, storable

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class RoundingJob:
    """What `choose_codes` is asked for; `readers` are names for the report, `quick` leaves out most of the search."""

    rows: np.ndarray
    moments: LayerMoments | None = None
    bits: int = 8
    per_tensor: bool = False
    block_size: int | None = None
    minimum_scale: np.ndarray | None = None
    noise: float = 0.0
    readers: tuple[str, ...] = ()
    quick: bool = False


def choose_all(jobs: Mapping[K, RoundingJob], *, threads: int | None = None) -> dict[K, RoundedWeight]:
    """Choose codes for many weights, several at a time; the number of threads changes no bit.

    Args:
        jobs: What to do.
        threads: How many at a time; one for each processor by default.

    """
    workers = threads or os.cpu_count() or 1
    with single_threaded_blas(), ThreadPoolExecutor(workers) as pool:
        return dict(zip(jobs, pool.map(_choose, jobs.values()), strict=True))


def choose_codes(
    rows: np.ndarray,
    moments: LayerMoments | None,
    *,
    bits: int = 8,
    per_tensor: bool = False,
    block_size: int | None = None,
    minimum_scale: np.ndarray | None = None,
    noise: float = 0.0,
) -> RoundedWeight:
    """Choose symmetric codes and scales for a weight.

    Args:
        rows: Float `[channels, n]`, finite; for a Conv `weight.reshape(channels, -1)`.
        moments: Second moments of the layer's input, measured or assumed (`prior_moments`); None chooses scales by the
            weight's own squared error.
        bits: 2 to 8; codes go from `1 - 2^(bits-1)` to `2^(bits-1) - 1`.
        per_tensor: One scale for all channels.
        block_size: A scale for each so many consecutive elements of a row, instead of one a row.
        minimum_scale: `[channels]`, or one for all; scales are not made smaller.
        noise: Variance that is added to each element of the input, `scale² / 12` where it is quantized.

    Returns:
        Codes of which no channel has a greater held-out error than rounded to nearest (with `per_tensor`, no layer).

    Raises:
        ValueError: The rows do not fit the moments, or `bits` is out of range.

    """
    with single_threaded_blas():
        return _choose(RoundingJob(rows, moments, bits, per_tensor, block_size, minimum_scale, noise))


def bias_shift(rows: np.ndarray, rounded: RoundedWeight, moments: LayerMoments) -> np.ndarray:
    """Give what rounding adds to the mean of each output channel, float64 `[channels]`: to be taken off the bias."""
    return moments.total().shift(rounded.dequantized().astype(np.float64) - rows)


def _choose(job: RoundingJob) -> RoundedWeight:
    if not 2 <= job.bits <= 8:
        raise ValueError(f"codes of {job.bits} bits are not offered")
    rows = np.asarray(job.rows, np.float64)
    layout = ScaleLayout(rows.shape, job.per_tensor, job.block_size)
    limit = 2 ** (job.bits - 1) - 1
    floor = layout.floor(job.minimum_scale)
    covering = storable(np.maximum(layout.peak(np.abs(rows)) / limit, floor))
    if job.moments is not None and job.moments.unfolding.n != rows.shape[1]:
        raise ValueError(f"rows of {rows.shape[1]} elements do not fit moments of {job.moments.unfolding.n}")
    total = _noisy(job.moments.total(), job.noise) if job.moments is not None else None
    if total is None or not rows.size or not shows_something(total):
        scales = layout.least_error(rows, covering, limit, floor)
        codes = nearest(rows, layout.expand(scales), limit)
        return RoundedWeight(codes.astype(np.int8), layout.shaped(scales), "weight error")
    assert job.moments is not None
    halves = total, total
    if not job.moments.assumed:
        halves = _noisy(job.moments.fitted(), job.noise), _noisy(job.moments.held_out(), job.noise)
    result = Search(rows, layout, limit, floor, covering, quick=job.quick).run(*halves, total)
    assumed = job.moments.assumed and result.method == "output error"
    return replace(result, method="assumed inputs", gain=0.0) if assumed else result


def _noisy(gram: Gram, noise: float) -> Gram:
    if not noise:
        return gram
    matrix = gram.matrix.copy()
    np.einsum("pbb->pb", matrix)[:] += noise
    return Gram(matrix, gram.mean, gram.rows)
