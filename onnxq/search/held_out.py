"""Split samples into those that variants are fitted on and those that judge them, held out.

Tests: `tests/search/test_held_out.py`, which tests `search/sqnr_evaluator.py` and `search/logits.py`, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from onnxq.data.advice import SAMPLES
from onnxq.data.readers import read_iterable
from onnxq.data.samples import PYTHON, Sample, Samples, few_samples, spread_samples, wrap_samples
from onnxq.ir import Model
from onnxq.ir.storage.scratch_file import Spool
from onnxq.search.float_outputs import FloatOutputs
from onnxq.search.sqnr_evaluator import SqnrEvaluator
from onnxq.search.trials.channel_trial import ChannelTrial
from onnxq.stages.prepared import Prepared

TRIAL_SAMPLES, FEW_TRIALS = 24, 8  # and what is left of them where a run of the model takes long
FITTING_SAMPLES = 128  # two halves of which are fitted and judged in the end
FOLDS = 4  # of those samples
MORE = 4  # times as many samples are in folds where a run is short
REST = 72  # further samples, whose tensors are measured and which judge nothing
SEARCH_SAMPLES, FEW_SEARCHES = 8, 4  # for variants that are only ranked, or that gain a lot
# Nanoseconds of a run by the table of kernel times, from which on fewer samples are taken; twice as many on a slower
# processor. Hundreds of runs are most of the time that quantizing a segmenter or detector of large pictures takes
LONG_RUN = 5e7
MOST_ELEMENTS = 1 << 26  # of the inputs of all samples together: they are in memory at the same time


class HoldoutSplit:
    """Samples in two halves, one to fit on and one to judge on; float outputs are computed once, when first needed.

    Args:
        baseline: The float model, which must not change.
        samples: All samples.
        run_time: What the float model takes for a sample, in nanoseconds by the table: the same on every machine.
        scratch: For a large model, whose variants run in segments: a folder for their codes.

    Attributes:
        room: How many times as many samples as usual there is time for, `MORE` at most.
        searched: How many samples variants are ranked on.
        scratch: The folder; None for a model in memory.

    """

    def __init__(self, baseline: Model, samples: Samples, run_time: float = 0.0, scratch: Path | None = None) -> None:
        self.baseline = baseline
        self.samples = samples
        self.scratch = scratch
        self._known: FloatOutputs | None = None
        self._channel_trials: dict[int, ChannelTrial] = {}
        self.room = LONG_RUN / max(run_time, LONG_RUN / MORE)
        self._share = min(self.room, 1.0)
        self.searched = max(int(SEARCH_SAMPLES * self._share), FEW_SEARCHES)

    @property
    def grouped(self) -> int:
        """How many samples groups of nodes are run on."""
        return max(self.searched // 2, 1)

    @property
    def shareable(self) -> bool:
        """Whether a copy of this process may judge variants, and read samples, at the same time."""
        return self.samples.shareable and not self.streamed

    @property
    def streamed(self) -> bool:
        """Whether variants run in segments, one after another, because they are large."""
        return self.scratch is not None

    @contextmanager
    def spool(self) -> Iterator[Spool | None]:
        """Open a file for codes of variants, which are gone with them; None where they stay in memory."""
        if self.scratch is None:
            yield None
            return
        with Spool(self.scratch) as spool:
            yield spool

    @cached_property
    def _few(self) -> dict[int, Sample]:
        return self._spread(self._share)

    @cached_property
    def _more(self) -> dict[int, Sample]:
        """Those, or more where a run is short."""
        return self._few if self.room == self._share else self._few_among(self._spread(self.room))

    def expected_count(self, share: float) -> int:
        """Return how many samples are tried on, which are not read for it: fewer are taken where they are large."""
        wanted = max(int(TRIAL_SAMPLES * min(share, self.room)), FEW_TRIALS)
        return wanted if self.samples.count is None else min(wanted, self.samples.count)

    def _spread(self, share: float) -> dict[int, Sample]:
        return spread_samples(self.samples, max(int(TRIAL_SAMPLES * share), FEW_TRIALS), MOST_ELEMENTS, 2)

    @cached_property
    def halves(self) -> tuple[Samples, Samples] | None:
        """Some samples in two sets, in turn: to fit on, and to judge on; None where there are too few."""
        if len(self._few) < 2:
            return None
        first, second = self._sets(self._few, 2)
        return first, second

    @cached_property
    def fitting_halves(self) -> tuple[Samples, Samples] | None:
        """More of the samples in two sets, in turn: each judges what is fitted on the other; None where too few."""
        taken = self._few_among(spread_samples(self.samples, self.expected_fitting(), MOST_ELEMENTS, 2))
        if len(taken) < 2 or list(taken) == list(self._few):
            return self.halves
        first, second = self._sets(taken, 2)
        return first, second

    def expected_fitting(self) -> int:
        """Return how many samples are in those sets, at most; fewer are taken where they are large."""
        return max(int(FITTING_SAMPLES * self._share), TRIAL_SAMPLES)

    def folds(self) -> tuple[list[Samples], Samples | None]:
        """Return a few sets of samples, in turn, each to judge on what is chosen on all others; at least two.

        There are more than in the halves where a run is short: gains differ much from sample to sample. Some samples
        are in neither set, evenly taken, to measure and not to judge on; None where there are none.
        """
        taken = self._more
        left = [place for place in range(self.samples.count or 0) if place not in taken]
        count = min(len(left), max(int(REST * self._share), 1))
        chosen = {left[index * len(left) // count] for index in range(count)}

        def read() -> Iterator[Sample]:
            return (sample for place, sample in enumerate(self.samples) if place in chosen)

        rest = self._wrapped(read, sorted(chosen)) if chosen else None
        return self._sets(taken, min(FOLDS, len(taken))), rest

    def few_of_all(self, most: int) -> Samples:
        """Return all samples, or so many of them where there are more, evenly taken."""
        if self.samples.count is not None and self.samples.count <= most:
            return self.samples
        taken = spread_samples(self.samples, most, MOST_ELEMENTS, 2)
        return self._wrapped(list(taken.values()), list(taken))

    def _few_among(self, taken: dict[int, Sample]) -> dict[int, Sample]:
        """Return the same samples, those of the halves as the arrays that were run already."""
        return {place: self._few.get(place, sample) for place, sample in taken.items()}

    def evaluator(self, samples: Samples) -> SqnrEvaluator:
        """Return what judges variants on some samples; those that were run before are not run again."""
        made = SqnrEvaluator(self.baseline, samples, self._known, self.scratch)
        self._known = made.known
        return made

    def few(self, samples: Samples) -> SqnrEvaluator:
        """Return what judges variants on as many of some samples as are in a half to judge on."""
        most = max(self.expected_count(self._share) // 2, 1)
        return self.evaluator(self._wrapped(few_samples(samples, most)))

    def _sets(self, taken: Mapping[int, Sample], count: int) -> list[Samples]:
        samples, places = list(taken.values()), list(taken)
        return [self._wrapped(samples[first::count], places[first::count]) for first in range(count)]

    def _wrapped(
        self, samples: list[Sample] | Callable[[], Iterator[Sample]], numbers: Sequence[int] | None = None
    ) -> Samples:
        """Return some of the samples as a stream of their own."""
        inputs = self.samples.inputs
        if callable(samples):  # ours, which a copy of this process may read as well as the data
            source = replace(read_iterable(samples, SAMPLES, inputs), shareable=self.samples.shareable)
            made = Samples([source], inputs, PYTHON)
        else:
            made = wrap_samples(samples, inputs)
        made.numbers, made.made_up = numbers, self.samples.made_up
        return made

    @cached_property
    def judge(self) -> SqnrEvaluator:
        """The float outputs on the half to judge on; ValueError where `halves` is None."""
        return self.evaluator(self.held_out)

    @cached_property
    def swapped_evaluator(self) -> SqnrEvaluator:
        """The float outputs on the half to fit on, for what is fitted on the other; ValueError as for `judge`."""
        return self.evaluator(self.half(0))

    @cached_property
    def ranking_evaluator(self) -> SqnrEvaluator:
        """The float outputs on a few of all samples."""
        few = few_samples(self._few.values(), self.searched)
        return self.evaluator(self._wrapped(few))

    @cached_property
    def group_evaluator(self) -> SqnrEvaluator:
        """The float outputs on half of those, on which groups of nodes are run."""
        few = few_samples(few_samples(self._few.values(), self.searched), self.grouped)
        return self.evaluator(self._wrapped(few))

    @cached_property
    def goal_evaluator(self) -> SqnrEvaluator:
        """The float outputs on all samples that are tried on: where one is much larger, it decides what a few say."""
        if len(self._few) <= self.searched:
            return self.ranking_evaluator
        return self.evaluator(self._wrapped(list(self._few.values())))

    @cached_property
    def fine_evaluator(self) -> SqnrEvaluator:
        """The float outputs on all samples that are tried on, and on more where a run is short."""
        if self._more is self._few:
            return self.goal_evaluator
        return self.evaluator(self._wrapped(list(self._more.values())))

    @property
    def held_out(self) -> Samples:
        """The half to judge on; ValueError as for `judge`."""
        return self.half(1)

    def half(self, which: int) -> Samples:
        """Return one of the halves; ValueError as for `judge`."""
        if self.halves is None:
            raise ValueError("there are too few samples to hold half of them out")
        return self.halves[which]

    def channel_trial(self, prepared: Prepared, half: int) -> ChannelTrial:
        """Return what a half of the samples shows of a model's channels, measured once; ValueError as for `judge`."""
        known = self._channel_trials.get(half)
        if known is None or known.model is not prepared.model:
            known = self._channel_trials[half] = ChannelTrial(prepared, self.half(half), self.scratch)
        return known
