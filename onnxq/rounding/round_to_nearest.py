"""Round large weights to nearest, in blocks of rows, several blocks at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from onnxq.calibration.qparams import TINY
from onnxq.ir.storage.scratch_file import Spool
from onnxq.rounding.saturation_limits import SummationOrder, least_pair_scales
from onnxq.targets.host import available_processors

BLOCK = 1 << 17  # elements at a time, which stay in the cache: 436 MB take 0.2 s, with eight times as many 0.55
AHEAD = 4  # blocks that wait to be written


def nearest_codes(
    weight: np.ndarray,
    axes: tuple[int, ...],
    floor: np.ndarray | None,
    spool: Spool,
    limit: int = 127,
    summed: SummationOrder | None = None,
) -> tuple[np.ndarray, np.ndarray] | None:
    """Quantize a weight to symmetric int8 as `nearest_rows` does, to the bit, without turning or copying it whole.

    Args:
        weight: float32, at least one axis.
        axes: Axes that share a scale, ascending.
        floor: Least scales, broadcasting against the scales.
        spool: Where the codes go.
        limit: The largest code.
        summed: How a kernel sums that may saturate; scales are then such that no pair of neighbours does.

    Returns:
        int8 codes of the weight's shape, and float32 scales of the same rank with 1 along `axes`; None where the
        weight holds NaN or infinity.

    """
    blocks = _blocks(weight)
    with ThreadPoolExecutor(available_processors()) as pool:
        peaks = list(pool.map(lambda block: _peak(weight[block], axes), blocks))
        peak = np.maximum.reduce(peaks) if 0 in axes else np.concatenate(peaks)
        if not np.isfinite(peak).all():
            return None
        scales = _covering(peak, limit)
        if summed is not None:
            least = list(pool.map(lambda block: least_pair_scales(weight[block], axes, summed), blocks))
            pairs = np.maximum.reduce(least) if 0 in axes else np.concatenate(least)
            scales = np.maximum(scales, pairs.astype(np.float32))
        if floor is not None:
            scales = np.where(peak == 0, floor, np.maximum(scales, floor)).astype(np.float32)

        def code(block: slice) -> np.ndarray:
            return _code(weight[block], scales if 0 in axes else scales[block], limit)

        return spool.fill(_ahead(pool, code, blocks), np.dtype(np.int8), weight.shape), scales


def nearest_rows(rows: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Round rows to symmetric codes, each with the scale that covers its largest element.

    Args:
        rows: Float `[channels, n]`, finite; computed with as float32.
        limit: The largest code.

    Returns:
        int8 codes, int16 where they are larger, and float32 scales `[channels]`, 1 for rows of zeros.

    """
    rows = np.asarray(rows, np.float32)
    scales = _covering(np.maximum(rows.max(axis=1, initial=0), -rows.min(axis=1, initial=0)), limit)
    return _code(rows, scales[:, None], limit), scales


def _covering(peak: np.ndarray, limit: int) -> np.ndarray:
    return np.where(peak == 0, np.float32(1), np.maximum(peak / np.float32(limit), TINY)).astype(np.float32)


def _blocks(weight: np.ndarray) -> list[slice]:
    rows = max(BLOCK // max(weight[:1].size, 1), 1)
    rows += rows % 2  # neighbours along the first axis are in the same block
    return [slice(start, start + rows) for start in range(0, len(weight), rows)]


def _peak(block: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Largest magnitude along `axes`; NaN where there is one."""
    peak: np.ndarray = np.maximum(block.max(axis=axes, keepdims=True), -block.min(axis=axes, keepdims=True))
    return peak


def _code(block: np.ndarray, scales: np.ndarray, limit: int) -> np.ndarray:
    codes: np.ndarray = block / scales
    np.clip(codes, -limit, limit, out=codes)
    np.rint(codes, out=codes)
    return codes.astype(np.int8 if limit < 128 else np.int16)


def _ahead(
    pool: ThreadPoolExecutor, work: Callable[[slice], np.ndarray], blocks: Sequence[slice]
) -> Iterator[np.ndarray]:
    """Return the results in order, a few of them made ahead, so that no more than those are in memory."""
    waiting: deque[Future[np.ndarray]] = deque()
    for block in blocks:
        waiting.append(pool.submit(work, block))
        if len(waiting) > AHEAD:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
