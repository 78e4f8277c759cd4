"""Measure a calibration in several processes of this machine; the bytes are those of one.

Threads wait for each other where a model computes many small tensors, for most of that is Python. Blocks of samples are
measured in processes instead, this one among them, and their sums are added in the order of `onnxq.calibration.blocks`.

Tests: `tests/distributed/test_calibration_processes.py`.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxq.calibration.blocks import GROUP, Blocks, BlockSums
from onnxq.calibration.shard_file import pack_sums, unpack_sums
from onnxq.calibration.stats import Stats
from onnxq.data.remote import is_remote, share_fetched
from onnxq.distributed.builds import SAME_FILES, enter
from onnxq.distributed.shards import Calibration, OpenCalibration, open_calibration
from onnxq.errors import DataError, OnnxqError
from onnxq.progress import Observer, Silent
from onnxq.runtime.custom_ops import register_custom_ops
from onnxq.runtime.fork import can_fork, run_forked
from onnxq.runtime.ort_session import LIBRARIES
from onnxq.runtime.processes import ProcessEnded, Processes, tell
from onnxq.runtime.workers import worker_count
from onnxq.targets.host import one_processor

WORTH = 16_000  # nodes times samples from which on a second process gains more than its start takes: about four seconds
WORTH_COPIES = 2_000  # the same of copies of this process, which start at once
MOST_MOMENTS = 4 << 20  # bytes of second moments of a block that are worth a process of its own
# Memory of a process: a constant, and a factor for each byte of weights
BYTES, BYTES_PER_BYTE = 250 << 20, 8
LOOK = 0.2  # seconds between two looks at how far the others are


@dataclass(frozen=True)
class Part:
    """A calibration that another process is to measure some blocks of.

    Attributes:
        asked: The calibration.
        origin: What it measures and with what; see `OpenCalibration.origin`.
        folder: The working folder, which paths start in.
        custom_ops: Libraries of custom operators.

    """

    asked: Calibration
    origin: Mapping[str, Any]
    folder: str
    custom_ops: tuple[str, ...]

    def open(self) -> OpenCalibration:
        """Open it, if the files are still the same ones.

        Raises:
            DataError: One of them has changed.

        """
        enter(self.folder)
        for library in self.custom_ops:
            register_custom_ops(library)
        opened = open_calibration(self.asked, Silent())
        if opened.origin(1) != self.origin:
            raise DataError(f"{self.asked.model} or its data changed during the run", SAME_FILES)
        return opened


def measure_all(opened: OpenCalibration, observer: Observer) -> Stats:
    """Measure all blocks of a calibration: in as many processes as there are processors, where that is faster.

    Args:
        opened: The calibration.
        observer: Told how many samples are done.

    Raises:
        DataError, ModelError: As `calibrate`; of several errors, the one of the first sample.

    """
    spans, model = _spans(opened), opened.prepared.model
    nodes = sum(1 for _ in model.graph.walk())
    copies = opened.samples.shareable and model.residency.quick and can_fork()
    if copies and len(spans) > 1 and nodes * opened.blocks.samples >= WORTH_COPIES:
        return _measure_in_copies(opened, spans, observer)
    weights = model.weight_bytes
    jobs = min(worker_count(BYTES + BYTES_PER_BYTE * weights), len(spans))
    if jobs > 1 and _is_worth_it(opened, nodes):
        whole = _measure_together(opened, spans, jobs, observer).whole
        assert whole is not None
        return whole
    return opened.measure_whole(observer)


def _measure_in_copies(opened: OpenCalibration, spans: Sequence[range], observer: Observer) -> Stats:
    """Measure spans of blocks in copies of this process, which have the model and the data open."""
    blocks, size = opened.blocks, BYTES_PER_BYTE * opened.prepared.model.weight_bytes
    observer.progress(0, blocks.samples)

    def done(spans_done: int, _: int) -> None:
        observer.progress(spans_done * blocks.samples // len(spans), blocks.samples)

    sums = BlockSums(blocks)
    for found in run_forked(lambda span: opened.measure(span, Silent()), spans, done=done, task_bytes=size):
        sums.take_in(found)
    whole = sums.whole
    assert whole is not None
    return whole


def _is_worth_it(opened: OpenCalibration, nodes: int) -> bool:
    """Decide by counts alone; what runs Python of the user or feeds states from step to step stays in one process."""
    data = opened.asked.data
    readable = bool(data) and all(is_remote(one) or os.path.exists(one) for one in data)
    return (
        nodes * opened.blocks.samples >= WORTH
        and readable
        and opened.asked.model.is_file()
        and bool(sys.executable)
        and opened.prepared.strategy.tries_variants
        and not any("state" in one.settings for one in opened.samples.preparations)
    )


def _spans(opened: OpenCalibration) -> Sequence[range]:
    """Cut the blocks into whole groups, whose sums are small; a single group into its blocks."""
    count = opened.blocks.count
    if count > GROUP:
        return [range(start, min(start + GROUP, count)) for start in range(0, count, GROUP)]
    if opened.layers.bytes > MOST_MOMENTS:
        return [range(count)]
    return [range(block, block + 1) for block in range(count)]


def _measure_together(opened: OpenCalibration, spans: Sequence[range], jobs: int, observer: Observer) -> BlockSums:
    """Measure spans of blocks: the others begin with the first one, this process with the last one."""
    asked, blocks = opened.asked, opened.blocks
    part = pickle.dumps(Part(asked, opened.origin(1), os.getcwd(), tuple(LIBRARIES)))
    sums, errors = BlockSums(blocks), dict[int, OnnxqError]()
    progress = _Progress(blocks, observer)

    def here(at: int) -> None:
        try:
            sums.take_in(opened.measure(spans[at], progress.of(spans[at].start)))
        except OnnxqError as error:
            errors[at] = error

    shared = share_fetched()
    with Processes(jobs - 1, sharers=jobs, hear=progress.hear, variables=shared) as processes, one_processor():
        futures = [processes.submit(measure_span, part, span.start, span.stop) for span in spans]
        for at in reversed(range(len(spans))):
            if errors or any(_failed(future) for future in futures) or not futures[at].cancel():
                break
            here(at)
        if any(_failed(future) for future in futures):  # those that wait are behind it
            for future in futures:
                future.cancel()
        left = {at: future for at, future in enumerate(futures) if not future.cancelled()}
        while wait(left.values(), LOOK).not_done:
            progress.show()
        for at, future in left.items():
            try:
                sums.take_in(unpack_sums(future.result(), blocks))
            except ProcessEnded:  # it was killed, for lack of memory perhaps
                here(at)
            except OnnxqError as error:
                errors[at] = error
    if errors:
        raise errors[min(errors)]
    progress.show()
    return sums


def _failed(future: Future[Any]) -> bool:
    return future.done() and not future.cancelled() and isinstance(future.exception(), OnnxqError)


class _Progress:
    """Adds up how many samples each process has measured."""

    def __init__(self, blocks: Blocks, observer: Observer) -> None:
        self._blocks, self._observer = blocks, observer
        self._done: dict[int, int] = {}
        self.show()

    def hear(self, told: tuple[int, int]) -> None:
        """Note how many samples of the span that starts with a block are done."""
        self._done.update([told])

    def show(self) -> None:
        """Tell the observer, in the thread that runs the library."""
        self._observer.progress(sum(list(self._done.values())), self._blocks.samples)

    def of(self, start: int) -> Observer:
        """Return an observer of a span that this process measures."""
        return _Here(self, start)


class _Here(Silent):
    def __init__(self, progress: _Progress, start: int) -> None:
        self._progress, self._start = progress, start

    def progress(self, done: int, total: int | None) -> None:
        self._progress.hear((self._start, done))
        self._progress.show()


class _There(Silent):
    def __init__(self, start: int) -> None:
        self._start = start

    def progress(self, done: int, total: int | None) -> None:
        tell((self._start, done))


_opened: dict[bytes, OpenCalibration] = {}  # in a process of `Processes`: what its tasks measure


def measure_span(part: bytes, start: int, stop: int) -> dict[str, np.ndarray]:
    """Measure some blocks in a process of `Processes`.

    Args:
        part: A pickled `Part`.
        start: The first block.
        stop: The one behind the last.

    Returns:
        What `pack_sums` gives.

    """
    if part not in _opened:
        _opened.clear()
        _opened[part] = pickle.loads(part).open()
    return pack_sums(_opened[part].measure(range(start, stop), _There(start)))
