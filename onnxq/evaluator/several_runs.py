"""A node of several runs, one for each sample: at the same time where its tensors are large.

Tests: `tests/search/test_bias_correction.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from onnxq.evaluator.run import Run
from onnxq.evaluator.schedule import Step
from onnxq.runtime.workers import submit_alone, worker_count

WORTH = 1 << 21  # bytes that a node reads and gives, below which handing it to a thread costs more than it saves
ComputeNode = Callable[[Sequence[Run], Step], None]


@contextmanager
def several_runs() -> Iterator[ComputeNode]:
    """Yield what computes a node in each of several runs; they may run different schedules at different times."""
    count = worker_count()
    with ThreadPoolExecutor(count, thread_name_prefix="onnxq-run") as pool:

        def compute(runs: Sequence[Run], step: Step) -> None:
            if step.fixed:
                _share(runs, step)
                return
            for number, run in enumerate(runs):
                run.compute(step)
                if number == 0 and count > 1 and _bytes(run, step) >= WORTH:
                    break
            else:
                return
            shares = [runs[1 + first :: count] for first in range(min(count, len(runs) - 1))]
            others = [submit_alone(pool, _compute_all, share, step) for share in shares]
            for other in others:
                other.result()

        yield compute


def _compute_all(runs: Sequence[Run], step: Step) -> None:
    for run in runs:
        run.compute(step)


def _share(runs: Sequence[Run], step: Step) -> None:
    """Compute a node that reads constants alone in one run, and give all others what it gave."""
    for run in runs[:1]:
        run.compute(step)
    for run in runs[1:]:
        run.values.update((value, runs[0].values[value]) for value in step.node.makes)


def _bytes(run: Run, step: Step) -> int:
    """Return the bytes of what a node reads and gives, as far as that is arrays."""
    arrays = (run.values.get(value) for value in (*step.node.inputs, *step.node.outputs) if value is not None)
    return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
