"""Measure on a few samples how far quantized models are from the float model.

The scores in front of a final Softmax or Sigmoid are measured like outputs. If all samples are clear cases,
probabilities are 0 and 1 whatever the scores lose, and the loss shows only on other samples. If outputs hold picks by
scores, boxes for example, all models take the float model's picks. The values that are picked from are measured like an
output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from onnxq.data.samples import Sample, Samples, few_samples, spread_samples, wrap_samples
from onnxq.errors import DataError, ModelError
from onnxq.ir import Model, Node, Value
from onnxq.ir.operator_traits import Trait, operators_with
from onnxq.progress import tried, working
from onnxq.runtime.fork import can_fork, run_forked
from onnxq.runtime.in_memory import EncodedModel, InMemory, encode
from onnxq.runtime.session import SessionError, open_session, run_session
from onnxq.runtime.workers import run_in_order
from onnxq.search.channel_trial import ChannelTrial
from onnxq.search.float_outputs import KEPT_BYTES, FloatOutputs
from onnxq.search.resolution import round_to_resolution
from onnxq.stages.prepared import Prepared
from onnxq.verification.detections import find_selection, replay_selections
from onnxq.verification.error_stats import ANY_AXIS, Difference
from onnxq.verification.output_records import with_sqnr

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
# dB, from which on nothing is given for more: agreement is complete long before, and what a trial gains is often chance
ENOUGH = 50.0
MOST = 100.0  # dB either way, beyond which nothing is gained or lost
# A variant that is sure not to gain enough is given up after so many samples; Student's t is 6 in one case of 200
FIRST_SAMPLES, SURE = 4, 6.0
MISSED = 1 + 1e-6  # times the noise at which a goal is met: a variant that makes more is not run on further samples
MASKED = 1e30  # from which on a score is one that a mask leaves out
FLATTENING = ("Softmax", "LogSoftmax", "Sigmoid")
# Operators that may stand between those and the output: they move values, or code them
BETWEEN = operators_with(Trait.IN_ORDER) | {"Transpose", "QuantizeLinear", "DequantizeLinear"}


MakeModel = Callable[[], Model | None]
_Judged = list[list[Difference]] | None  # of each sample, of each value; None of a model that does not run


class _Expected(NamedTuple):
    """The float model's results for a sample: the measured values, and by name its picks."""

    sample: Sample
    arrays: list[Any]
    picked: dict[str, np.ndarray]


@dataclass
class _Trials:
    """Counts trials that copies of this process carry out; each takes what has gone by since the last one."""

    counted: int = 0

    def tell(self, done: int, _: int) -> None:
        """Note how many are done in all."""
        while self.counted < done:
            self.counted += 1
            with working("judge"):
                tried()


class ScoreError(NamedTuple):
    """How far scores are, in front of the Softmax or Sigmoid that makes probabilities of them.

    Attributes:
        sqnr: Their ratio in dB.
        signal: Squared size of probabilities that lie in between: of two classes that are alike, or of one by itself.
        noise: What the error of the scores makes of those. A class has the slope 1/4 in the difference of two scores,
            or in its own.

    """

    sqnr: float
    signal: float
    noise: float

    @classmethod
    def of(cls, scores: Difference, reader: str) -> ScoreError:
        """Take it from all scores of some samples, and the operator that reads them; logarithms get 0."""
        error = scores.noise / max(scores.elements, 1)
        signal, slope = {"Softmax": (1 / 2, 1 / 4), "Sigmoid": (1 / 4, 1 / 16)}.get(reader, (0.0, 0.0))
        return cls(scores.sqnr, signal, slope * error)


class SqnrEvaluator:
    """Measures how far quantized models are from the float one, whose outputs are computed once.

    Args:
        baseline: The float model.
        samples: What to run; fewer where their outputs are large.
        known: Of an evaluator of the same model: what it knows of samples, which is added to.

    """

    def __init__(self, baseline: Model, samples: Samples, known: FloatOutputs | None = None) -> None:
        self._selection = find_selection(baseline)
        self._scores = scores(baseline, self._selection.read)
        self._shared = [shared_axes(value, baseline.opset) for value in self._scores.values()]
        self._measured = [*(output.name for output in baseline.graph.outputs), *self._selection.read]
        self._outputs = len(self._measured)
        measured = [*self._measured, *(value.name for value in self._scores.values())]
        names = list(dict.fromkeys([*measured, *self._selection.picked]))
        self._expected: list[_Expected] = []
        self.known = FloatOutputs(baseline, names) if known is None else known
        with working("judge") as advance:
            self._run_float(samples, measured, advance)
        self._bytes = self.known.bytes  # about what a variant takes to be judged

    def _run_float(self, samples: Samples, measured: list[str], advance: Callable[[int, int | None], None]) -> None:
        """Compute what the float model makes of each sample, as far as there is room to keep it."""
        kept = 0
        try:
            with closing(self.known.of(samples)) as runs:
                for computed in runs:
                    kept += computed.nbytes
                    arrays = [computed.outputs[name] for name in measured]
                    picked = self._selection.of(computed.outputs)
                    self._expected.append(_Expected(computed.sample, arrays, picked))
                    advance(len(self._expected), samples.count)
                    if kept > KEPT_BYTES:
                        break
        except SessionError as error:
            raise ModelError(
                f"onnxruntime cannot run the float model: {error}", "Check the float model first."
            ) from error
        if not self._expected:
            raise DataError("there are no samples to judge a model on", "Give at least one.")
        count = len(self._expected)  # of data that are in some order, the first are spread evenly
        first = [index * count // FIRST_SAMPLES for index in range(min(count, FIRST_SAMPLES))]
        rest = [index for index in range(count) if index not in first]
        self._expected = [self._expected[index] for index in dict.fromkeys([*first, *rest])]

    def noise(self, model: Model) -> np.ndarray:
        """Return the squared error by the squared size: of outputs, of what is picked from, then of scores.

        It is infinite if a model does not run. It is 0 for values that the model no longer has. It is 0 for labels and
        counts, too, if there are other outputs: their agreement is measured elsewhere.
        """
        return self._noise(self._judged(model))

    def noises(self, models: Iterable[Model]) -> Iterator[np.ndarray]:
        """Yield the same for several models, some of which are judged at the same time.

        Args:
            models: Made as they are needed, by the thread that asks.

        """
        return map(self._noise, self._all_judged(models))

    @property
    def counted(self) -> list[str]:
        """Names of the outputs that count, and of what is picked from."""
        return [name for name, counts in zip(self._measured, self._counts(), strict=False) if counts]

    def differences(self, model: Model) -> list[list[Difference]] | None:
        """Return how the outputs of `counted` differ, sample by sample; None if the model does not run."""
        judged, counts = self._judged(model), self._counts()[: self._outputs]
        if judged is None:
            return None
        return [[one for one, counted in zip(each, counts, strict=False) if counted] for each in judged]

    def score_errors(self, model: Model) -> dict[str, ScoreError]:
        """Return how far the scores in front of a Softmax or Sigmoid are, by the output that comes of them."""
        judged = self._judged(model)
        if judged is None:
            return {}
        found = {}
        names = self._names(model)[self._outputs :]
        for place, (output, name) in enumerate(zip(self._scores, names, strict=True)):
            if name is not None:
                total = Difference(ratio_only=True, lengths=ANY_AXIS)
                for parts in judged:
                    total.merge(parts[self._outputs + place])
                found[output] = ScoreError.of(total, flattening(self._scores[output]).op_type)
        return found

    def _judged(self, model: Model) -> _Judged:
        """Run a model on the samples, several at a time."""
        with working("judge") as advance:
            judged = self._run_quantized(model, advance)
        tried()
        return judged

    def _all_judged(self, models: Iterable[Model], bar: _Bar | None = None) -> Iterator[_Judged]:
        """Run several models; one that cannot clear the bar runs on the first few samples only."""
        run = partial(self._run_quantized, bar=bar)
        for judged in run_in_order(run, models, task_bytes=self._bytes):
            with working("judge"):  # what has gone by since the last one
                tried()
            yield judged

    def _run_quantized(
        self, model: Model, advance: Callable[[int, int | None], None] | None = None, bar: _Bar | _Limit | None = None
    ) -> _Judged:
        """Compare what a variant gives with what the float model does, sample by sample; None if it does not run."""
        names = self._names(model)
        wanted = list(dict.fromkeys(name for name in names if name is not None))
        encoded, fed = self._encoded(model, wanted)
        judged = self.known.judged(encoded.digest)
        before = {key: judged[key] for one in self._expected if (key := self.known.key(one.sample)) in judged}
        new = [one for one in self._expected if self.known.key(one.sample) not in before]
        made: list[list[Difference]] = []
        try:
            run = self._runner(encoded, fed, wanted) if new else _runs_nothing
            with closing(run_in_order(run, new, task_bytes=self._bytes)) as runs:
                for index, expected in enumerate(self._expected):
                    key = self.known.key(expected.sample)
                    parts = before.get(key) if key is not None else None
                    if parts is None:
                        parts = self._differences(expected, names, dict(zip(wanted, next(runs), strict=True)))
                    if key is not None:
                        judged[key] = parts
                    made.append(parts)
                    if advance is not None:
                        advance(index + 1, len(self._expected))
                    if bar is not None and bar.out_of_reach(made):
                        break
        except SessionError:
            return None
        return made

    def _names(self, model: Model) -> list[str | None]:
        """Return what a model calls each measured value, and the scores; None for those that it no longer has."""
        found = scores(model, self._selection.read)
        names = [name if name in model.graph.values else None for name in self._measured]
        return names + [found[name].name if name in found else None for name in self._scores]

    def _noise(self, judged: _Judged) -> np.ndarray:
        """Return the noise over all samples, `[values]`."""
        if judged is None:
            return np.full(len(self._measured) + len(self._scores), np.inf)
        totals = [Difference(ratio_only=True, lengths=ANY_AXIS) for _ in judged[0]]
        for parts in judged:
            for total, part in zip(totals, parts, strict=True):
                total.merge(part)
        return self._counted(totals)

    def _counted(self, differences: Sequence[Difference]) -> np.ndarray:
        """Return the noise of each value; none of those that do not count."""
        return np.where(self._counts(), [10 ** (-difference.sqnr / 10) for difference in differences], 0.0)

    def _ratios(self, judged: _Judged) -> np.ndarray:
        """Return the ratios of single samples in dB, `[samples, values]`, at most `MOST` either way."""
        if judged is None:
            return np.full((1, len(self._measured) + len(self._scores)), -MOST)
        noise = np.array([self._counted(parts) for parts in judged])
        return np.asarray(-10 * np.log10(np.clip(noise, 10 ** (-MOST / 10), 10 ** (MOST / 10))))

    def _differences(
        self, expected: _Expected, names: Sequence[str | None], got: Mapping[str, Any]
    ) -> list[Difference]:
        """Compare what a variant gives for a sample with what the float model does."""
        parts = [Difference(ratio_only=True, lengths=ANY_AXIS) for _ in names]
        for place, name in enumerate(names):
            if name is not None:
                pair = (self._relative(place, array) for array in (expected.arrays[place], got[name]))
                parts[place].add(*pair)
        return parts

    def _encoded(self, model: Model, wanted: Sequence[str]) -> tuple[EncodedModel, Mapping[str, str]]:
        """Write a model for onnxruntime that takes its picks as inputs, and return these inputs by name."""
        picked = self._expected[0].picked
        if picked:
            following, fed = replay_selections(model, picked, wanted)
            return encode(InMemory(following)), fed
        values = model.graph.values
        return encode(InMemory(model, [values[name] for name in wanted if not values[name].is_output])), {}

    @staticmethod
    def _runner(
        encoded: EncodedModel, fed: Mapping[str, str], wanted: Sequence[str]
    ) -> Callable[[_Expected], list[Any]]:
        session = open_session(encoded, threads=1, exact=True)

        def run(expected: _Expected) -> list[Any]:
            picks = {given: expected.picked[name] for name, given in fed.items()}
            return run_session(session, wanted, {**expected.sample, **picks})

        return run

    def _counts(self) -> list[bool]:
        """Tell which outputs count: no labels if there are others, and no picks."""
        dtypes = [str(getattr(array, "dtype", "")) for array in self._expected[0].arrays[: self._outputs]]
        counts = [
            counted and name not in self._selection.picked
            for name, counted in zip(self._measured, with_sqnr(dtypes), strict=True)
        ]
        return counts + [True] * len(self._scores)

    def _relative(self, place: int, array: Any) -> Any:
        """Take from scores what a Softmax does not see: the mean."""
        axes = self._shared[place - self._outputs] if place >= self._outputs else None
        if axes is None or not array.size:
            return array
        over = tuple(range(array.ndim)[slice(*axes)])
        kept = np.abs(array) < MASKED
        if kept.all():
            return array - array.mean(axis=over, keepdims=True)
        mean = array.sum(axis=over, keepdims=True, where=kept) / np.maximum(kept.sum(axis=over, keepdims=True), 1)
        return array - mean.astype(array.dtype)

    def constant_share(self, model: Model) -> float:
        """Return which share of the squared error of the worst value is the same in all samples, 0 to 1.

        Chance leaves `1/n` of the error of n samples in their mean, which is taken off. It is 1 where sizes differ
        between samples, where there is one sample, and where the model does not run.
        """
        noise = self.noise(model)
        worst = int(noise.argmax())
        name = self._names(model)[worst]
        if name is None or not np.isfinite(noise[worst]) or len(self._expected) < 2:
            return 1.0
        encoded, fed = self._encoded(model, [name])
        total: np.ndarray | None = None
        energy = 0.0
        with closing(run_in_order(self._runner(encoded, fed, [name]), self._expected, task_bytes=self._bytes)) as runs:
            for expected, (got,) in zip(self._expected, runs, strict=True):
                pair = [self._relative(worst, array) for array in (expected.arrays[worst], got)]
                if pair[0].shape != pair[1].shape or (total is not None and total.shape != pair[0].shape):
                    return 1.0
                error = np.subtract(*pair, dtype=np.float64)
                total = error if total is None else total + error
                energy += float(np.vdot(error, error))
        count = len(self._expected)
        if total is None or not energy:
            return 1.0
        mean = float(np.vdot(total, total)) / energy / count
        return min(max((count * mean - 1) / (count - 1), 0.0), 1.0)

    def sqnr(self, model: Model) -> float:
        """Return the signal-to-quantization-noise ratio of the worst output or scores in dB, `round_to_resolution`."""
        return self._sqnr(self._judged(model))

    def reaches(self, model: Model, goal: float) -> bool:
        """Tell whether the ratio is a goal or more; not all samples are run where a part of them misses it already."""
        limit = np.where(self._counts(), self._signals * 10 ** (-goal / 10) * MISSED, np.inf)
        with working("judge") as advance:
            judged = self._run_quantized(model, advance, _Limit(limit))
        tried()
        complete = judged is not None and len(judged) == len(self._expected)
        return complete and self._sqnr(judged) >= goal

    @cached_property
    def _signals(self) -> np.ndarray:
        """The squared size of each value in all samples, `[values]`."""
        totals = [Difference(ratio_only=True, lengths=ANY_AXIS) for _ in self._expected[0].arrays]
        for expected in self._expected:
            for place, (total, array) in enumerate(zip(totals, expected.arrays, strict=True)):
                relative = self._relative(place, array)
                total.add(relative, relative)
        return np.array([total.signal for total in totals])

    def sqnrs(self, models: Iterable[Model], *, least: float | None = None) -> Iterator[float]:
        """Yield the same for several models; see `noises` and `typicals`."""
        return self._compared(models, self._sqnr, least)

    def _sqnr(self, judged: _Judged) -> float:
        return round_to_resolution(min(self._worst(self._noise(judged))))

    def worst(self, model: Model) -> tuple[float, float]:
        """Return the signal-to-quantization-noise ratio of the worst output and that of the worst scores in dB."""
        return self._worst(self.noise(model))

    def _worst(self, noise: np.ndarray) -> tuple[float, float]:
        return worst_decibels(noise[: self._outputs]), worst_decibels(noise[self._outputs :])

    def typical(self, model: Model) -> float:
        """Return the mean ratio of single samples in dB, of the worst output or scores, `round_to_resolution`.

        It says better than `sqnr` what a change does: where sizes differ much, that is about the largest of a few.
        """
        return self._typical(self._judged(model))

    def typicals(self, models: Iterable[Model], *, least: float | None = None) -> Iterator[float]:
        """Yield the same for several models; see `noises`.

        Args:
            models: Made as they are needed.
            least: dB that all others have to gain on the first one, which is judged before they are made. A model that
                cannot, by its first samples, is not run on the rest; what it gained on those is added to what the first
                one reached.

        """
        return self._compared(models, self._typical, least)

    def _typical(self, judged: _Judged) -> float:
        return round_to_resolution(float(self._ratios(judged).mean(axis=0).min(initial=MOST)))

    def _compared(
        self, models: Iterable[Model], figure: Callable[[_Judged], float], least: float | None
    ) -> Iterator[float]:
        if least is None:
            yield from map(figure, self._all_judged(models))
            return
        models = iter(models)
        for first in models:
            over = self._comparison(first, figure, least)
            yield over.reached
            yield from map(over.figure_of, self._all_judged(models, over.bar))

    def _comparison(self, first: Model, figure: Callable[[_Judged], float], least: float) -> _Over:
        """Judge the model that all others have to gain on."""
        judged = self._judged(first)
        bar = None if judged is None else _Bar(self._ratios(judged), self._ratios, least)
        return _Over(figure, figure(judged), bar, len(self._expected))

    def sqnr_gains(self, before: Callable[[], Model], ways: Sequence[MakeModel], *, least: float) -> list[float | None]:
        """Return what variants gain over a model in dB, by `sqnr`; several are made and judged at the same time.

        Args:
            before: Makes the model.
            ways: Each makes a variant, or gives None where it would be the same.
            least: See `typicals`.

        """
        return self._gains(self._sqnr, before, ways, least)

    def typical_gains(
        self, before: Callable[[], Model], ways: Sequence[MakeModel], *, least: float
    ) -> list[float | None]:
        """Return the same by `typical`."""
        return self._gains(self._typical, before, ways, least)

    def _gains(
        self, figure: Callable[[_Judged], float], before: Callable[[], Model], ways: Sequence[MakeModel], least: float
    ) -> list[float | None]:
        if len(ways) > 1 and can_fork():
            over = self._comparison(before(), figure, least)

            def gained(way: MakeModel) -> float | None:
                model = way()
                return None if model is None else over.gain(self._run_quantized(model, bar=over.bar))

            return run_forked(gained, ways, done=_Trials().tell, task_bytes=self._bytes)
        changing: list[int] = []

        def models() -> Iterator[Model]:
            for number, way in enumerate(ways):
                model = way()
                if model is None:
                    continue
                if not changing:
                    yield before()
                changing.append(number)
                yield model

        reached = list(self._compared(models(), figure, least))
        gains: list[float | None] = [None] * len(ways)
        for number, after in zip(changing, reached[1:], strict=True):
            gains[number] = after - reached[0]
        return gains

    def gain(self, before: Model, after: Model) -> float:
        """Return how much nearer to float the second of two models is, in dB, of a typical sample."""
        worse, better = self.typicals([before, after])
        return better - worse


def _runs_nothing(_: _Expected) -> list[Any]:
    return []


class _Limit:
    """Noise that a variant may make of each value in all samples, `[values]`."""

    def __init__(self, most: np.ndarray) -> None:
        self._most = most
        self._noise = np.zeros(len(most))

    def out_of_reach(self, made: _Judged) -> bool:
        """Tell whether the samples so far made more; asked once behind each sample."""
        if made:
            self._noise += [part.noise for part in made[-1]]
        return bool((self._noise > self._most).any())


class _Bar:
    """The gain that variants need over a model, held against their first samples.

    Args:
        before: Ratios of the model in dB, `[samples, values]`; its worst value decides.
        ratios: Gives the same of a variant, of as many samples as it ran on.
        least: dB to gain.

    """

    def __init__(self, before: np.ndarray, ratios: Callable[[_Judged], np.ndarray], least: float) -> None:
        self._worst = int(before.mean(axis=0).argmin())
        self._before, self._ratios, self._least = before[:, self._worst], ratios, least

    def out_of_reach(self, made: _Judged) -> bool:
        """Tell after the first samples, and only then, whether a variant is sure not to gain as much."""
        if made is None or len(made) != FIRST_SAMPLES or len(self._before) < 2 * FIRST_SAMPLES:
            return False
        gains = self._gains(made)
        return bool(gains.mean() + SURE * gains.std(ddof=1) / np.sqrt(len(gains)) < self._least)

    def gain(self, made: _Judged) -> float:
        """Return what a variant gains on the samples that it ran on."""
        return round_to_resolution(float(self._gains(made).mean()))

    def _gains(self, made: _Judged) -> np.ndarray:
        after = self._ratios(made)[:, self._worst]
        return np.asarray(after - self._before[: len(after)])


@dataclass(frozen=True)
class _Over:
    """The model that variants have to gain on.

    Attributes:
        figure: Of what a model gave.
        reached: That of this one, in dB.
        bar: What variants have to clear; None if it does not run.
        samples: How many samples a variant runs on that may gain enough.

    """

    figure: Callable[[_Judged], float]
    reached: float
    bar: _Bar | None
    samples: int

    def figure_of(self, judged: _Judged) -> float:
        """Return the figure of a variant; what it gains on its first samples, where it was not run on the rest."""
        few = self.bar is not None and judged is not None and len(judged) < self.samples
        return self.reached + self.bar.gain(judged) if few and self.bar is not None else self.figure(judged)

    def gain(self, judged: _Judged) -> float:
        """Return what a variant gains, in dB."""
        return self.figure_of(judged) - self.reached


def worst_decibels(noise: np.ndarray) -> float:
    """Return the signal-to-quantization-noise ratio of the worst of some errors by their sizes, in dB."""
    worst = float(noise.max(initial=0.0))
    return float("inf") if worst == 0 else -10 * float(np.log10(worst))


class HoldoutSplit:
    """Samples in two halves, one to fit on and one to judge on; float outputs are computed once, when first needed.

    Args:
        baseline: The float model, which must not change.
        samples: All samples.
        run_time: What the float model takes for a sample, in nanoseconds by the table: the same on every machine.

    Attributes:
        room: How many times as many samples as usual there is time for, `MORE` at most.
        searched: How many samples variants are ranked on.

    """

    def __init__(self, baseline: Model, samples: Samples, run_time: float = 0.0) -> None:
        self.baseline = baseline
        self.samples = samples
        self._known: FloatOutputs | None = None
        self._channel_trials: dict[int, ChannelTrial] = {}
        self.room = LONG_RUN / max(run_time, LONG_RUN / MORE)
        self._share = min(self.room, 1.0)
        self.searched = max(int(SEARCH_SAMPLES * self._share), FEW_SEARCHES)

    @property
    def shareable(self) -> bool:
        """Whether a copy of this process may judge variants, and read samples, at the same time."""
        return self.samples.shareable

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
        """Yield a few sets of samples, in turn, each to judge on what is chosen on all others; at least two.

        There are more than in the halves where a run is short: gains differ much from sample to sample. Some samples
        are in neither set, evenly taken, to measure and not to judge on; None where there are none.
        """
        taken = self._more
        left = [place for place in range(self.samples.count or 0) if place not in taken]
        count = min(len(left), max(int(REST * self._share), 1))
        chosen = {left[index * len(left) // count] for index in range(count)}

        def read() -> Iterator[Sample]:
            return (sample for place, sample in enumerate(self.samples) if place in chosen)

        rest = wrap_samples(read, self.samples.inputs) if chosen else None
        if rest is not None:
            rest.numbers = sorted(chosen)
        return self._sets(taken, min(FOLDS, len(taken))), rest

    def few_of_all(self, most: int) -> Samples:
        """Return all samples, or so many of them where there are more, evenly taken."""
        if self.samples.count is not None and self.samples.count <= most:
            return self.samples
        taken = spread_samples(self.samples, most, MOST_ELEMENTS, 2)
        few = wrap_samples(list(taken.values()), self.samples.inputs)
        few.numbers = list(taken)
        return few

    def _few_among(self, taken: dict[int, Sample]) -> dict[int, Sample]:
        """Return the same samples, those of the halves as the arrays that were run already."""
        return {place: self._few.get(place, sample) for place, sample in taken.items()}

    def evaluator(self, samples: Samples) -> SqnrEvaluator:
        """Return what judges variants on some samples; those that were run before are not run again."""
        made = SqnrEvaluator(self.baseline, samples, self._known)
        self._known = made.known
        return made

    def few(self, samples: Samples) -> SqnrEvaluator:
        """Return what judges variants on as many of some samples as are in a half to judge on."""
        most = max(self.expected_count(self._share) // 2, 1)
        return self.evaluator(wrap_samples(few_samples(samples, most), self.samples.inputs))

    def _sets(self, taken: Mapping[int, Sample], count: int) -> list[Samples]:
        samples, places = list(taken.values()), list(taken)
        sets = [wrap_samples(samples[first::count], self.samples.inputs) for first in range(count)]
        for first, found in enumerate(sets):
            found.numbers = places[first::count]
        return sets

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
        return self.evaluator(wrap_samples(few, self.samples.inputs))

    @cached_property
    def goal_evaluator(self) -> SqnrEvaluator:
        """The float outputs on all samples that are tried on: where one is much larger, it decides what a few say."""
        if len(self._few) <= self.searched:
            return self.ranking_evaluator
        return self.evaluator(wrap_samples(list(self._few.values()), self.samples.inputs))

    @cached_property
    def fine_evaluator(self) -> SqnrEvaluator:
        """The float outputs on all samples that are tried on, and on more where a run is short."""
        if self._more is self._few:
            return self.goal_evaluator
        return self.evaluator(wrap_samples(list(self._more.values()), self.samples.inputs))

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
            known = self._channel_trials[half] = ChannelTrial(prepared, self.half(half))
        return known


def scores(model: Model, read: Sequence[str] = ()) -> dict[str, Value]:
    """Find what stands in front of the Softmax or Sigmoid that outputs come from, or other values, by their names."""
    found: dict[str, Value] = {}
    values = model.graph.values
    for output in [*model.graph.outputs, *(values[name] for name in read if name in values)]:
        node = output.producer
        while node is not None and not node.domain and node.op_type in BETWEEN and node.inputs[0] is not None:
            node = node.inputs[0].producer
        before = node.inputs[0] if node is not None and node.op_type in FLATTENING and not node.domain else None
        if before is not None and before.producer is not None and not before.is_output:
            found[output.name] = before
    return found


def flattening(value: Value) -> Node:
    """Return the Softmax or Sigmoid that reads scores."""
    return next(use.node for use in value.uses if use.node.op_type in FLATTENING)


def shared_axes(value: Value, opset: int) -> tuple[int, int | None] | None:
    """Tell over which axes a Softmax that reads the value normalises, as the ends of a slice; None for a Sigmoid.

    Before opset 13 it is everything from its axis on, 1 by default.
    """
    node = flattening(value)
    if node.op_type == "Sigmoid":
        return None
    axis = int(node.attribute("axis", -1 if opset >= 13 else 1))
    return (axis, None) if opset < 13 or axis == -1 else (axis, axis + 1)
