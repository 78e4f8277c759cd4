"""The SQNR to expect on other samples: half of the samples judge a model that is fitted on the other half.

Codes of weights and ranges of activations follow the samples that they are chosen on. The error on those samples is
therefore less than on others, by 6 dB for small networks with long rows. A model is fitted on one half of the samples.
All other choices are settled by then: which nodes are quantized, which channels are rescaled, how ranges are chosen. It
is judged on the half that it has not seen, and so is the model that is fitted on all samples. The difference is the
overfitting of a half. Codes are those that were chosen on this half before, to see whether they serve others. Those of
layers that read many rows are not chosen on a half: they are as good on others.

Differences are averaged over samples in dB. One sample in ten that leaves all ranges would otherwise decide alone, and
as many other samples may have none or two of its kind. Samples whose outputs are next to zero count less. They may
differ by 20 dB, as where no wake word is said, and change nothing in the SQNR of all.

Clear cases give probabilities of 0 and 1 whatever the logits lose, and one case in between is most of the error of all.
As many others hold one more such case than was seen in less than half of the draws. So what is expected follows the
samples, and the lower end of the interval allows for one. There, probabilities have no more than the logits that they
are made of, on samples that chose nothing. A probability in between is off by a half at most, however far logits are.
A classifier of lines has 68 dB where all are clear, its logits 32, and others have 31.

Tests: `tests/search/test_cross_validation.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from onnxq.calibration.stats import Stats
from onnxq.data.samples import Samples
from onnxq.errors import OnnxqError
from onnxq.ir import Model
from onnxq.lowering.rewrite import rewrite
from onnxq.planning.decision import Choices
from onnxq.rounding.layer_by_layer import block_jobs
from onnxq.runtime.fork import in_copy
from onnxq.search.logits import ScoreError
from onnxq.search.sqnr_evaluator import MOST, SqnrEvaluator
from onnxq.search.variants import Variants
from onnxq.stages.measure import choose_qparams, complete, settled_kinds
from onnxq.stages.replan import copy_prepared, exclude_unreached_bodies
from onnxq.verification.error_stats import Difference, SampleDifferences
from onnxq.verification.records import Comparison, CrossValidation

NORMAL_90 = 1.645  # standard errors on either side that hold nine in ten values
# Standard deviation in dB between sets of samples, beyond what single samples show. The interval holds 17 of 21 real
# models with it and 12 without; three of the others have samples of another kind. See docs/benchmarks/real-models.md
BETWEEN_SETS = 1.5
DECIBEL = 10 / math.log(10)  # of a factor, in units of its logarithm


@dataclass(frozen=True)
class Overfitting:
    """How much less the error of an output is on samples that a model is fitted on.

    Attributes:
        output: Name of the output.
        gain: dB by which samples are better if they are fitted on, for a model fitted on a half.
        error: Standard error of it.
        spread: Standard error of the SQNR over all samples, in dB.

    """

    output: str
    gain: float
    error: float
    spread: float


class Logits(NamedTuple):
    """How far the values are in front of a Softmax or Sigmoid that gives an output.

    Attributes:
        sqnr: Their ratio in dB.
        gain: dB by which that is better on samples that a model is fitted on.
        signal: Squared size of an output that lies in between, in relation to that of a sample.
        noise: What the error of the logits makes of it, in the same unit, if it followed them in a line.

    """

    sqnr: float
    gain: float = 0.0
    signal: float = 0.0
    noise: float = 0.0

    def limit(self, sqnr: float, share: float, count: int) -> float:
        """Return the SQNR in dB that others still have if one of them lies in between.

        Args:
            sqnr: What samples show of it.
            share: Share of the gain that others lose.
            count: How many samples show it; one more lies in between.

        """
        if sqnr == -math.inf:  # nothing is lower
            return sqnr
        lost = share * max(self.gain, 0.0)
        made = self.noise * 10 ** (lost / 10)
        made *= self.signal / (self.signal + made) if made > 0 else 1.0  # a probability is off by a half at most
        noise = count * 10 ** (-sqnr / 10) + made
        between = 10 * math.log10((count + self.signal) / noise) if noise > 0 else sqnr
        return min(sqnr, self.sqnr - lost, between)


class CrossValidated(NamedTuple):
    """The overfitting of each output that the halves show.

    Attributes:
        outputs: That of each.
        samples: How many samples there were in both halves.
        logits: Of outputs that are probabilities, by name.

    """

    outputs: tuple[Overfitting, ...]
    samples: int
    logits: Mapping[str, Logits] = {}

    def expected(self, comparison: Comparison, count: int) -> CrossValidation | None:
        """Return what to expect of a model that is fitted on all samples.

        The error of what is fitted to m samples is by a/m too small on those and by a/m too large on others. The halves
        show the sum for m samples and for all n, 1/m + 1/n; a model fitted on n has 2/n.

        Args:
            comparison: Of that model, on the samples that it is fitted on.
            count: How many those are.

        """
        half = self.samples / 2
        share = 2 * half / (half + count)
        fitted = {output.name: output.sqnr for output in comparison.measured()}
        known = [one for one in self.outputs if one.output in fitted]
        if not known:
            return None
        seen = [fitted[one.output] - share * max(one.gain, 0.0) for one in known]
        doubtful = [
            self.logits[one.output].limit(sqnr, share, count) if one.output in self.logits else sqnr
            for sqnr, one in zip(seen, known, strict=True)
        ]
        expected = [sqnr if sqnr < math.inf else least for sqnr, least in zip(seen, doubtful, strict=True)]
        place = min(range(len(known)), key=lambda at: expected[at])
        sqnr, worst = expected[place], known[place]
        width = _width(worst, share) if math.isfinite(sqnr) else 0.0
        lows = [
            least - _width(one, share) for least, one in zip(doubtful, known, strict=True) if one.output in self.logits
        ]
        return CrossValidation(worst.output, sqnr, min([sqnr - width, *lows]), sqnr + width, self.samples)


def _width(one: Overfitting, share: float) -> float:
    """Return half of the interval that holds the SQNR of as many others in nine of ten cases, in dB."""
    sets = 2 * one.spread**2 + BETWEEN_SETS**2  # of these samples, and of as many others
    return NORMAL_90 * math.sqrt(sets + (share * one.error) ** 2)


def cross_validate(variants: Variants, choices: Choices) -> CrossValidated | None:
    """Measure how much better samples are that ranges and codes are chosen on.

    Args:
        variants: The quantized model and its samples.
        choices: What was settled for single nodes.

    Returns:
        None where there are too few samples, where nothing is fitted on them, or where a half cannot be fitted: its
        weights are in blocks, which are rounded layer by layer, or a body runs in the other half only.

    """
    halves = variants.split.fitting_halves
    if halves is None or block_jobs(variants.prepared.plan):
        return None
    if not variants.planned(choices).calibrated() and not variants.weights.fitted:
        return None
    fitting, judging = halves

    def fitted() -> _JudgedModel:
        return _judged(judge, fitted_on_half(variants, choices, fitting))

    try:
        judge = variants.split.evaluator(judging)
        copies = variants.split.shareable and variants.half is not None  # else codes of the whole are those of the half
        with in_copy(fitted, copies=copies) as found:
            whole, half = _judged(judge, variants.model(choices)), found()
    except OnnxqError:  # the comparison says what is wrong
        return None
    if whole.differences is None or half.differences is None:
        return None
    samples = len(whole.differences) + (fitting.count or len(whole.differences))
    outputs = tuple(overfitting(judge.counted, whole.differences, half.differences, samples))
    return CrossValidated(outputs, samples, _logits(judge, whole, half, whole.differences))


class _JudgedModel(NamedTuple):
    """How far a model is from the float model: by sample and output, and the scores in front of probabilities."""

    differences: SampleDifferences | None
    scores: Mapping[str, ScoreError]


def _judged(judge: SqnrEvaluator, model: Model) -> _JudgedModel:
    differences = judge.differences(model)
    return _JudgedModel(differences, {} if differences is None else judge.score_errors(model))


def _logits(
    judge: SqnrEvaluator, whole: _JudgedModel, half: _JudgedModel, seen: SampleDifferences
) -> dict[str, Logits]:
    """Compare the scores that give outputs which are probabilities, for models fitted on all samples and on a half."""
    before, after = whole.scores, half.scores
    sizes = {name: sum(row[place].signal for row in seen) / len(seen) for place, name in enumerate(judge.counted)}
    return {
        name: Logits(
            found.sqnr,
            float(np.clip(found.sqnr, -MOST, MOST) - np.clip(after[name].sqnr, -MOST, MOST)),
            found.signal / sizes[name],
            found.noise / sizes[name],
        )
        for name, found in before.items()
        if name in after and sizes.get(name, 0.0) > 0
    }


def fitted_on_half(variants: Variants, choices: Choices, fitting: Samples) -> Model:
    """Quantize with ranges and codes from the first half."""
    spare, half = copy_prepared(variants.prepared, choices), variants.half
    measured = Stats() if half is None else half.stats
    measured = complete(measured, spare, fitting, settled_kinds(spare.plan, None, fitting))
    spare = exclude_unreached_bodies(spare, measured)
    weights = variants.weights if half is None else half.weights.completed(variants.weights)
    return rewrite(spare.model, spare.plan, choose_qparams(spare.plan, measured), weights)


def overfitting(
    names: Sequence[str], seen: SampleDifferences, unseen: SampleDifferences, samples: int
) -> Iterator[Overfitting]:
    """Compare each output on samples that a model was fitted on with the same samples where it was not.

    Args:
        names: The outputs.
        seen: For each sample, how each output of the model differs that was fitted on it.
        unseen: The same for a model that was not.
        samples: How many samples the first model was fitted on.

    """
    count = len(seen)
    for place, name in enumerate(names):
        before, after = (np.clip([row[place].sqnr for row in rows], -MOST, MOST) for rows in (seen, unseen))
        gains, weights = before - after, _weights([row[place] for row in seen], [row[place] for row in unseen])
        gain = float(weights @ gains)
        error = math.sqrt(count / (count - 1) * float(weights**2 @ (gains - gain) ** 2)) if count > 1 else 0.0
        spread = _spread([row[place] for row in seen]) * math.sqrt(count / samples)
        yield Overfitting(name, gain, error, spread)


def _weights(seen: Sequence[Difference], unseen: Sequence[Difference]) -> np.ndarray:
    """Return what each sample counts, in all 1: alike, but for those with less than their part of signal and noise."""
    signal, before, after = (
        _shares(values)
        for values in ([one.signal for one in seen], [one.noise for one in seen], [one.noise for one in unseen])
    )
    return _shares(np.minimum(np.maximum(signal, (before + after) / 2), 1 / len(seen)))


def _shares(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return each value by the sum of all, or equal parts where that is no number above zero."""
    array = np.asarray(values, np.float64)
    total = float(array.sum())
    return array / total if 0 < total < math.inf else np.full(len(array), 1 / len(array))


def _spread(differences: Sequence[Difference]) -> float:
    """Return the standard error in dB of a ratio of sums over samples, by the delta method."""
    noise, signal = (np.array([getattr(one, name) for one in differences]) for name in ("noise", "signal"))
    count = len(differences)
    if count < 2 or not noise.sum() or not signal.sum():
        return 0.0
    off = noise - signal * (noise.sum() / signal.sum())
    return DECIBEL * math.sqrt(count / (count - 1) * float(off @ off)) / float(noise.sum())
