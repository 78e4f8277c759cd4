"""The loss at the outputs if one weight alone is rounded, for all weights in one pass over the model.

Each weight has a run of its own, a probe. It follows the float model up to the layers that read the weight. They take
the weight rounded to nearest in 4 bits, and the probe goes on in float. All probes advance together, from one weight
to the next, so each weight is read once. Errors of single weights add up at the outputs as long as they are small.
Chosen codes, in any bits, lose less or more than that. How much is found on some channels of each weight, on what it
reads in the float model.

Tests: `tests/search/test_mixed_bits.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from onnxq.data.generated_text import text_input
from onnxq.evaluator import Evaluator, Run, Step, arithmetic
from onnxq.ir import Model, Value
from onnxq.ir.storage.scratch_file import Spool
from onnxq.ir.storage.shelf import Shelf
from onnxq.ops.forms.block_codes import BlockCodes
from onnxq.progress import working
from onnxq.rounding.block_solver import solve_blocks
from onnxq.rounding.layer_by_layer import (
    MAPPED,
    Arrival,
    BlockJob,
    Inputs,
    MeasuredInput,
    advance_runs,
    mapped_bytes,
    measured_input,
)
from onnxq.rounding.weights import WeightKey
from onnxq.runtime.memory import keep_freed_blocks
from onnxq.runtime.workers import run_in_order
from onnxq.search.resolution import resolved_noise
from onnxq.verification.error_stats import arrays

WORK = 6e12  # multiplications of all probes: about two minutes on two cores
MOST_SAMPLES = 4
CHANNELS = 128  # of a weight, for which codes are chosen
LONGEST = 256  # of blocks, which MatMulNBits multiplies
TOGETHER = 256  # channels that are rounded at a time
IN_CACHE = 1 << 17  # logits that are compared at a time: 1 MB
BITS = 4  # of probes
SCALE = 4  # bytes of a block's scale, at most
TINY = 1e-300


class Coding(NamedTuple):
    """How a weight is coded.

    Attributes:
        bits: Of a code and of a zero point.
        block: Codes that share a scale and a zero point.

    """

    bits: int
    block: int

    def row_bytes(self, n: int, scale: int = SCALE) -> int:
        """Return the bytes of codes, scales and zero points of a row, with so many bytes for a scale."""
        blocks = -(-n // self.block)
        return blocks * self.block * self.bits // 8 + -(-blocks * self.bits // 8) + scale * blocks


def measure_losses(
    model: Model, jobs: Sequence[BlockJob], samples: Sequence[Mapping[str, Any]], spool: Spool | None = None
) -> dict[WeightKey, dict[Coding, float]]:
    """Measure what the outputs lose if one weight alone is rounded, in blocks as its job says but for the bits.

    The loss of a decoder is the Kullback-Leibler divergence of the next token. Elsewhere it is the sum of squared
    errors of the outputs by their squared sizes.

    Args:
        model: The float model.
        jobs: The weights; layers inside bodies of control flow are left out.
        samples: What to measure on; as many are probed as the time for it allows, one at least.
        spool: Of a large model: says in which folder live tensors are kept.

    Returns:
        The loss of each weight by its coding, at a resolution of 0.01 dB; none without samples.

    """
    if not samples:
        return {}
    place = nullcontext() if spool is None else Shelf(spool.folder)
    with place as shelf, working("bits") as advance, arithmetic():
        probes = _Probes(model, jobs, samples, shelf)
        keep_freed_blocks()
        for count in probes.run():
            advance(count, len(jobs))
        return probes.losses()


class _Probes:
    """The runs of samples through the float model, and those with one weight rounded."""

    def __init__(
        self,
        model: Model,
        jobs: Sequence[BlockJob],
        samples: Sequence[Mapping[str, Any]],
        shelf: Shelf | None,
    ) -> None:
        self.large, self._shelf = shelf is not None, shelf
        evaluator = Evaluator(model, wide=not self.large, changing={job.weight for job in jobs})
        self.jobs = {node: job for job in jobs for node in job.readers if node.graph is model.graph}
        last = max((index for index, step in enumerate(evaluator.steps) if step.node in self.jobs), default=-1)
        # One probe is run after the other behind the last weight: logits take much memory
        self._steps, self._rest = evaluator.steps[: last + 1], evaluator.steps[max(last, 0) :]
        decoder = text_input(model)
        self.outputs = [decoder.logits] if decoder is not None else list(model.graph.outputs)
        self.judge = _divergence if decoder is not None else _relative_error
        self.exact = [evaluator.begin(sample) for sample in samples]
        for run in self.exact:
            run.keep.update(self.outputs)
        self.probed = _affordable(model, jobs, samples)
        self.runs: dict[WeightKey, list[Run]] = {}
        self.left = {job.key: {node for node, one in self.jobs.items() if one is job} for job in jobs}
        self.shares: dict[WeightKey, dict[Coding, float]] = {}
        self._known: Inputs = {}

    def run(self) -> Iterator[int]:
        """Run all nodes in front of the last one with a weight; yield how many weights have probes."""
        waiting: list[Step] = []  # each run goes through all of them before the next one does
        for step in self._steps:
            job = self.jobs.get(step.node)
            begins = job is not None and job.key not in self.runs
            if begins or mapped_bytes([*waiting, step]) > MAPPED:
                self._advance(waiting)
            if begins:
                self._begin(step)
                yield len(self.runs)
            waiting.append(step)
        del waiting[-1:]
        self._advance(waiting)

    def _begin(self, step: Step) -> None:
        """Begin the probes of a weight that a node is the first to read."""
        job = self.jobs[step.node]
        weight = _rounded(job, np.float32 if self.large else np.float64)
        self.runs[job.key] = [_with(run.copy(), job.weight, weight) for run in self.exact[: self.probed]]
        arrival = Arrival(step, job.readers[step.node], self.exact)
        measured = measured_input([arrival], self._known, large=self.large)
        self.shares[job.key] = error_shares(job, measured)

    def _advance(self, waiting: list[Step]) -> None:
        """Run nodes that wait everywhere, and release rounded weights behind them; none wait any more."""
        if not waiting:
            return
        advance_runs(waiting, [*self.exact, *chain.from_iterable(self.runs.values())], self._shelf)
        for job in [self.jobs[step.node] for step in waiting if step.node in self.jobs]:
            self.left[job.key].difference_update(step.node for step in waiting)
            if not self.left[job.key]:
                for run in self.runs[job.key]:
                    run.values[job.weight] = self.exact[0].values[job.weight]
        waiting.clear()

    def losses(self) -> dict[WeightKey, dict[Coding, float]]:
        """Bring all runs to their end, and return the loss of each weight by its coding."""
        self._known.clear()
        references = [self._finish(run) for run in self.exact[: self.probed]]

        def mean(key: WeightKey) -> float:
            losses = [self.judge(one, self._finish(run)) for one, run in zip(references, self.runs[key], strict=True)]
            self.runs[key].clear()
            return float(np.mean(losses))

        room = 2 * sum(array.nbytes for outputs in references[:1] for array in outputs)
        means = run_in_order(mean, self.runs, task_bytes=room) if self.large else map(mean, self.runs)
        return {
            key: {coding: resolved_noise(loss * share) for coding, share in self.shares[key].items()}
            for key, loss in zip(self.runs, means, strict=True)
        }

    def _finish(self, run: Run) -> list[np.ndarray]:
        for step in self._rest:
            run.step(step)
        return [_joined(run.values[value]) for value in self.outputs]


def _affordable(model: Model, jobs: Sequence[BlockJob], samples: Sequence[Mapping[str, Any]]) -> int:
    """Return on how many samples all probes can run: half of the model each, for each row of the largest input."""
    sizes = (np.shape(array) for array in samples[0].values())
    rows = max((math.prod(size[:-1] if len(size) > 2 else size) for size in sizes), default=1)
    work = len(jobs) / 2 * max(rows, 1) * max(model.weight_bytes / np.dtype(np.float32).itemsize, 1)
    return int(np.clip(WORK // work, 1, min(MOST_SAMPLES, len(samples))))


def _with(run: Run, weight: Value, array: np.ndarray) -> Run:
    run.values[weight] = array
    return run


def _rounded(job: BlockJob, dtype: type[np.floating[Any]]) -> np.ndarray:
    """Return a weight rounded to nearest, each block on the grid from its least to its greatest element."""
    node = next(iter(job.readers))
    rows = job.finite_rows(node)
    parts = (rows[start : start + TOGETHER] for start in range(0, len(rows), TOGETHER))
    return job.rows().filled((_nearest(part, job.coding.block_size) for part in parts), dtype)


def _nearest(rows: np.ndarray, block: int) -> np.ndarray:
    """Return float32 rows `[channels, n]` in 4 bits."""
    top, n = 2**BITS - 1, rows.shape[1]
    cut = np.pad(np.asarray(rows, np.float32), ((0, 0), (0, -n % block))).reshape(len(rows), -1, block)
    low, high = np.minimum(cut.min(axis=2), 0), np.maximum(cut.max(axis=2), 0)
    scales = ((high - low) / top).astype(np.float32)
    scales[scales == 0] = 1  # zeros, and numbers so small that a step of them is none
    zeros = np.rint(-low / scales)
    codes = np.clip(np.rint(cut / scales[..., None]) + zeros[..., None], 0, top)
    flat = codes.reshape(len(rows), -1)[:, :n].astype(np.uint8)
    return BlockCodes(flat, scales, zeros.astype(np.uint8)).dequantized(1, block)


def error_shares(job: BlockJob, measured: MeasuredInput) -> dict[Coding, float]:
    """Return the error that chosen codes leave by that of nearest codes in 4 bits, on some channels.

    With 8 bits, steps are 17 times as short as with 4, and errors their square. With 4 bits, blocks may be longer, as
    long as that saves bytes.
    """
    rows = job.finite_rows(next(iter(job.readers)))
    some, block = rows[:: max(len(rows) // CHANNELS, 1)], job.coding.block_size
    moments = measured.moments
    total = moments.total()
    plain = float(total.errors(_nearest(some, block) - some).sum())
    shares = {}
    for coding in (Coding(2, block), *_of_four_bits(block, some.shape[1])):
        codes = solve_blocks(some, moments, *coding, quick=True, known=measured.trusted).codes
        error = float(total.errors(codes.dequantized(1, coding.block) - some).sum())
        shares[coding] = error / plain if plain > 0 else 1.0
    return {**shares, Coding(8, block): shares[Coding(BITS, block)] / 17**2}


def _of_four_bits(block: int, n: int) -> Iterator[Coding]:
    """Yield codings of 4 bits with longer and longer blocks, as long as that saves bytes; last blocks are full."""
    coding = Coding(BITS, block)
    yield coding
    while coding.block < LONGEST:
        longer = Coding(BITS, 2 * coding.block)
        if longer.row_bytes(n) >= coding.row_bytes(n):
            return
        yield longer
        coding = longer


def _divergence(expected: Sequence[np.ndarray], got: Sequence[np.ndarray]) -> float:
    """Return the mean Kullback-Leibler divergence of next tokens from those of float logits `[..., tokens]`."""
    both = [logits[0].reshape(-1, logits[0].shape[-1]) for logits in (expected, got)]
    height, found = max(IN_CACHE // both[0].shape[1], 1), []
    for start in range(0, len(both[0]), height):
        one, two = (np.array(rows[start : start + height], np.float64) for rows in both)
        for rows in (one, two):
            rows -= rows.max(axis=1, keepdims=True)
        apart = one - two
        np.exp(one, out=one)
        np.exp(two, out=two)
        sums = one.sum(axis=1)
        found.append(np.einsum("rt,rt->r", one, apart) / sums + np.log(two.sum(axis=1) / sums))
    return float(np.concatenate(found).mean())


def _joined(value: Any) -> np.ndarray:
    """Return an output as an array: of a sequence, all elements."""
    return value if isinstance(value, np.ndarray) else np.concatenate([np.empty(0), *map(np.ravel, arrays(value))])


def _relative_error(expected: Sequence[np.ndarray], got: Sequence[np.ndarray]) -> float:
    """Return the squared error of outputs by their squared sizes: all of it for one that has another shape."""
    total = 0.0
    for one, two in zip(expected, got, strict=True):
        if one.dtype.kind == "f" and one.shape != two.shape:
            total += 1.0
        elif one.dtype.kind == "f":
            wide = np.asarray(one, np.float64)
            total += float(np.square(two - wide).sum() / (np.square(wide).sum() + TINY))
    return total
