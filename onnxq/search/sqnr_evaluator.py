"""Measure how far quantized models are from the float model, on samples that both run on.

The scores in front of a final Softmax or Sigmoid are measured like outputs. If all samples are clear cases,
probabilities are 0 and 1 whatever the scores lose, and the loss shows only on other samples. If outputs hold picks by
scores, boxes for example, all models take the float model's picks. The values that are picked from are measured like an
output.

Tests: `tests/search/test_held_out.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from onnxq.calibration.float_runs import UNPREPARED
from onnxq.data.samples import Sample, Samples
from onnxq.errors import DataError, ModelError
from onnxq.ir import Model
from onnxq.ir.segment import Segment, cut_changed
from onnxq.ir.storage.shelf import release_array
from onnxq.ops.kernels.attention import MASKED
from onnxq.progress import tried, working
from onnxq.runtime.fork import can_fork, run_forked
from onnxq.runtime.in_memory import EncodedModel, InMemory, encode, encode_part
from onnxq.runtime.ort_session import load_hint
from onnxq.runtime.session import InSegments, SessionError, open_session, run_session, run_side_by_side
from onnxq.runtime.workers import run_in_order
from onnxq.search.early_stopping import FIRST_SAMPLES, Incumbent, NoiseLimit, RequiredGain, StoppingRule
from onnxq.search.float_outputs import NOT_RUN, FloatOutputs, FloatTensors
from onnxq.search.logits import SLOPES, ScoreError, flattening, scores, shared_axes
from onnxq.search.resolution import gained, round_to_resolution
from onnxq.verification.detections import find_selection, replay_selections
from onnxq.verification.error_stats import ANY_AXIS, Difference, SampleDifferences
from onnxq.verification.output_records import with_sqnr

# dB, from which on nothing is given for more: agreement is complete long before, and what a trial gains is often chance
ENOUGH = 50.0
MOST = 100.0  # dB either way, beyond which nothing is gained or lost

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
MakeModel = Callable[[], Model | None]
_Judged = SampleDifferences | None  # None of a model that does not run


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


class SqnrEvaluator:
    """Measures how far quantized models are from the float one, whose outputs are computed once.

    Args:
        baseline: The float model.
        samples: What to run; fewer where their outputs are large.
        known: Of an evaluator of the same model: what it knows of samples, which is added to.
        scratch: For large models, which run in segments, one after another: a folder for the float model's outputs.

    """

    def __init__(
        self, baseline: Model, samples: Samples, known: FloatOutputs | None = None, scratch: Path | None = None
    ) -> None:
        self._selection = find_selection(baseline)
        self._scores = scores(baseline, self._selection.read)
        self._shared = [shared_axes(value, baseline.opset) for value in self._scores.values()]
        self._measured = [*(output.name for output in baseline.graph.outputs), *self._selection.read]
        self._outputs = len(self._measured)
        self._made_up = samples.made_up
        measured = [*self._measured, *(value.name for value in self._scores.values())]
        names = list(dict.fromkeys([*measured, *self._selection.picked]))
        self._expected: list[_Expected] = []
        self._streamed = scratch is not None
        self.known = FloatOutputs(baseline, names, scratch) if known is None else known
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
                    if kept > self.known.room:
                        break
        except SessionError as error:
            raise ModelError(NOT_RUN.format(error), load_hint(error) if self._made_up else UNPREPARED) from error
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

    def noises(self, models: Iterable[Model], inside: FloatTensors | None = None) -> Iterator[np.ndarray]:
        """Yield the same for several models, some of which are judged at the same time.

        Args:
            models: Made as they are needed, by the thread that asks.
            inside: Tensors of the float model of which they are copies with changes, for these samples: they run from
                their first change on.

        """
        return map(self._noise, self._all_judged(models, inside=inside))

    def float_tensors(self, model: Model, shapes: Mapping[str, tuple[int, ...]]) -> FloatTensors | None:
        """Return tensors of a float model for the samples; None where variants have to run whole.

        Args:
            model: A model that gives the same outputs as the float model.
            shapes: Of values whose sizes it leaves open.

        """
        if self._streamed or self._selection or not model.is_typed:
            return None
        try:
            return FloatTensors(model, [expected.sample for expected in self._expected], shapes)
        except SessionError:
            return None

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
        """Return how far the scores in front of a Softmax or Sigmoid are, by the output that comes of them.

        Logarithms of probabilities lose what their scores lose in every case, clear or not: they show it themselves.
        """
        judged = self._judged(model)
        if judged is None:
            return {}
        found = {}
        names = self._names(model)[self._outputs :]
        for place, (output, name) in enumerate(zip(self._scores, names, strict=True)):
            reader = flattening(self._scores[output]).op_type
            if name is not None and reader in SLOPES:
                total = Difference(ratio_only=True, lengths=ANY_AXIS)
                for parts in judged:
                    total.merge(parts[self._outputs + place])
                found[output] = ScoreError.of(total, reader)
        return found

    def _judged(self, model: Model) -> _Judged:
        """Run a model on the samples, several at a time."""
        with working("judge") as advance:
            judged = self._run_quantized(model, advance)
        tried()
        return judged

    def _all_judged(
        self, models: Iterable[Model], rule: StoppingRule | None = None, inside: FloatTensors | None = None
    ) -> Iterator[_Judged]:
        """Run several models; one about which a rule has decided does not run on further samples."""
        run = partial(self._run_quantized, rule=rule, inside=inside)
        for judged in self._in_order(run, models):
            with working("judge"):  # what has gone by since the last one
                tried()
            yield judged

    def _run_quantized(
        self,
        model: Model,
        advance: Callable[[int, int | None], None] | None = None,
        rule: StoppingRule | None = None,
        inside: FloatTensors | None = None,
    ) -> _Judged:
        """Compare what a variant gives with what the float model does, sample by sample; None if it does not run."""
        names = self._names(model)
        wanted = list(dict.fromkeys(name for name in names if name is not None))
        part = None if inside is None else cut_changed(model, inside.model, inside.names, wanted)
        if part is not None and inside is not None:
            return self._run_part(model, part, names, inside)
        source, fed = self._source(model, wanted)
        judged = {} if isinstance(source, InSegments) else self.known.judged(source.digest)
        before = {key: judged[key] for one in self._expected if (key := self.known.key(one.sample)) in judged}
        new = [one for one in self._expected if self.known.key(one.sample) not in before]
        made: list[list[Difference]] = []

        def compared(expected: _Expected, got: list[Any]) -> list[Difference]:
            return self._differences(expected, names, dict(zip(wanted, got, strict=True)))

        try:
            with closing(self._runs(source, fed, wanted, new, compared)) as runs:
                for index, expected in enumerate(self._expected):
                    key = self.known.key(expected.sample)
                    parts = before.get(key) if key is not None else None
                    if parts is None:
                        parts = next(runs)
                    if key is not None:
                        judged[key] = parts
                    made.append(parts)
                    if advance is not None:
                        advance(index + 1, len(self._expected))
                    if rule is not None and rule.is_decided(made):
                        break
        except SessionError:
            return None
        return made

    def _run_part(self, model: Model, part: Segment, names: Sequence[str | None], inside: FloatTensors) -> _Judged:
        """Do the same with the part of a variant that its changes reach; all else is what the float model gives."""
        wanted, read = ([value.name for value in values] for values in (part.outputs, part.inputs))
        names = [name if name in wanted else None for name in names]
        if not wanted:
            return [self._differences(expected, names, {}) for expected in self._expected]
        made = []
        try:
            session = open_session(encode_part(model, part), threads=1, exact=True)
            for expected in self._expected:
                tensors = inside.of(expected.sample)
                got = run_session(session, wanted, {name: tensors[name] for name in read})
                made.append(self._differences(expected, names, dict(zip(wanted, got, strict=True))))
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
                if self._streamed and isinstance(expected.arrays[place], np.ndarray):
                    release_array(expected.arrays[place])
        return parts

    def _in_order(self, run: Callable[[_Item], _Result], items: Iterable[_Item]) -> Generator[_Result, None, None]:
        """Yield the result for each item, several at a time where models are in memory."""
        if self._streamed:
            return (run(item) for item in items)
        return run_in_order(run, items, task_bytes=self._bytes)

    def _source(self, model: Model, wanted: Sequence[str]) -> tuple[EncodedModel | InSegments, Mapping[str, str]]:
        """Make a model ready for onnxruntime that takes its picks as inputs, and return these inputs by name."""
        picked = self._expected[0].picked
        fed: Mapping[str, str] = {}
        if picked:
            model, fed = replay_selections(model, picked, wanted)
        values = model.graph.values
        taps = [] if picked else [values[name] for name in wanted if not values[name].is_output]
        return InSegments(model, taps, checked=False) if self._streamed else encode(InMemory(model, taps)), fed

    def _runs(
        self,
        source: EncodedModel | InSegments,
        fed: Mapping[str, str],
        wanted: Sequence[str],
        several: Sequence[_Expected],
        use: Callable[[_Expected, list[Any]], _Result],
    ) -> Generator[_Result, None, None]:
        """Yield what is made of the wanted values of each sample, some at a time."""
        if not several:
            return
        session = open_session(source, threads=1, exact=True)
        feeds = [one.sample | {given: one.picked[name] for name, given in fed.items()} for one in several]

        def used(place: int, got: list[Any]) -> _Result:
            return use(several[place], got)

        yield from run_side_by_side(session, wanted, feeds, used, task_bytes=self._bytes)

    def _counts(self) -> list[bool]:
        """Tell which outputs count: no labels if there are others, no picks, and no probabilities of random numbers.

        Those are clear cases mostly: a detector finds nothing. Their scores tell more.
        """
        dtypes = [str(getattr(array, "dtype", "")) for array in self._expected[0].arrays[: self._outputs]]
        counts = [
            counted and name not in self._selection.picked and not (self._made_up and name in self._scores)
            for name, counted in zip(self._measured, with_sqnr(dtypes), strict=True)
        ]
        return counts + [True] * len(self._scores)

    def _relative(self, place: int, array: Any) -> Any:
        """Take from scores what a Softmax does not see, and what random numbers do not change: the mean."""
        axes = None
        if place >= self._outputs:
            axes = self._shared[place - self._outputs] or ((0, None) if self._made_up else None)
        if axes is None or not array.size:
            return array
        over = tuple(range(array.ndim)[slice(*axes)])
        if axes == (0, None) and array.size == 1:  # nothing would be left of it
            return array
        array = array.astype(np.promote_types(array.dtype, np.float32), copy=False)  # float16 holds no sums
        kept = np.abs(array) < MASKED
        if kept.all():
            return array - array.mean(axis=over, keepdims=True)
        mean = array.sum(axis=over, keepdims=True, where=kept) / np.maximum(kept.sum(axis=over, keepdims=True), 1)
        return array - mean.astype(array.dtype)

    def constant_share(self, model: Model) -> float:
        """Return which share of the squared error of the worst value is the same in all samples, 0 to 1.

        Chance leaves `1/n` of the error of n samples in their mean, which is taken off. It is 1 where sizes differ
        between samples, for a sequence, for one sample, and where the model does not run.
        """
        noise = self.noise(model)
        worst = int(noise.argmax())
        name = self._names(model)[worst]
        if name is None or not np.isfinite(noise[worst]) or len(self._expected) < 2:
            return 1.0
        source, fed = self._source(model, [name])
        total: np.ndarray | None = None
        energy = 0.0
        with closing(self._runs(source, fed, [name], self._expected, lambda _, got: got)) as runs:
            for expected, (got,) in zip(self._expected, runs, strict=True):
                if not (isinstance(got, np.ndarray) and isinstance(expected.arrays[worst], np.ndarray)):  # a sequence
                    return 1.0
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

    def sqnr_towards(self, model: Model, goal: float) -> float:
        """Return the ratio, or that of a part of the samples where these make more noise than a goal allows to all."""
        if goal == -np.inf:  # any noise is allowed
            return self.sqnr(model)
        allowed = np.where(self._counts(), self._signals * 10 ** (-goal / 10), np.inf)
        with working("judge") as advance:
            judged = self._run_quantized(model, advance, NoiseLimit(allowed))
        tried()
        return self._sqnr(judged)

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
            incumbent = self._incumbent(first, figure, least)
            yield incumbent.reached
            yield from map(incumbent.figure_of, self._all_judged(models, incumbent.required))

    def _incumbent(self, first: Model, figure: Callable[[_Judged], float], least: float) -> Incumbent:
        """Judge the model that all others have to gain on."""
        judged = self._judged(first)
        required = None if judged is None else RequiredGain(self._ratios(judged), self._ratios, least)
        return Incumbent(figure, figure(judged), required, len(self._expected))

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
        if len(ways) > 1 and can_fork() and not self._streamed:
            incumbent = self._incumbent(before(), figure, least)

            def gain_of(way: MakeModel) -> float | None:
                model = way()
                if model is None:
                    return None
                return incumbent.gain(self._run_quantized(model, rule=incumbent.required))

            return run_forked(gain_of, ways, done=_Trials().tell, task_bytes=self._bytes)
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
            gains[number] = gained(reached[0], after)
        return gains

    def gain(self, before: Model, after: Model) -> float:
        """Return how much nearer to float the second of two models is, in dB, of a typical sample."""
        worse, better = self.typicals([before, after])
        return better - worse


def worst_decibels(noise: np.ndarray) -> float:
    """Return the signal-to-quantization-noise ratio of the worst of some errors by their sizes, in dB."""
    worst = float(noise.max(initial=0.0))
    return float("inf") if worst == 0 else -10 * float(np.log10(worst))
