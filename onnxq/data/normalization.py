"""Find samples that are normalised otherwise than a model expects, by the outputs of its first layers.

The running mean and variance of a BatchNormalization tell the values that a model was trained with. If it was folded
into a convolution, biases do: trained biases are of the order of the values that they are added to. And they nearly
cancel what the filters make of right samples (`FoldedMeans`). A model whose first layers have neither says nothing,
and nothing is said about it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from onnxq.data.conventions import IMAGENET, UNDIVIDED, OtherValues, convention_of, other_values
from onnxq.data.first_layers import (
    MOST_FOLDED,
    BatchnormInputs,
    FirstLayers,
    FoldedMeans,
    Influence,
    LayerInputs,
    first_layers,
    folded_layers,
    influences,
    replaced,
    saturated_share,
    varied,
)
from onnxq.data.input_summary import InputSummary, short
from onnxq.data.samples import few_samples
from onnxq.data.validation import Sample
from onnxq.ir import Model, Node
from onnxq.runtime.session import SessionError
from onnxq.text import counted, join_words
from onnxq.warning import WarningLine

CODE = "wrong-normalization"
# Distances of `BatchnormInputs` on 25 models with their own data. Right data of another kind have 0.5. Conventions
# that differ by a factor of two to five have 0.6 to 1.2. 0 … 255 instead of 0 … 1 has 4 and more
SURELY_WRONG, MAYBE_WRONG, FITS, MUCH_BETTER = 1.6, 0.6, 0.5, 0.45
BARELY_MOVED, MOVED = 0.05, 0.15  # right data: 0.29 and more; 1 … 255 times too small: 0.03 and less
UNBENT = 8.0  # right data: 44 and more, unless it is 0 … 255 less a mean colour
MOST_ELEMENTS = 1 << 16  # of samples that the first layers are run on
# Shares of values at their bound: right data have up to 0.15 in a Clip, and 0.05 in a Tanh, 0.94 in one Sigmoid
CLIPPED, SATURATED = 0.25, 0.9
# The most that values that fit leave of a layer's biases, in how many layers and in which share of them. TIMES_WORSE:
# what other values leave, in the median of layers and of samples; EACH_WORSE: in four of five samples. Right samples of
# 23 models: 2.9 and less, wrong ones 3.4 to 88
EXPLAINED, LEAST_LAYERS, LEAST_SHARE, TIMES_WORSE, EACH_WORSE = 0.7, 4, 0.5, 3.3, 1.5
SAMPLES, LEAST_SAMPLES = 3, 5  # that are looked at first, and then
LIKELY = 2  # other values that are tried on more than one sample
HOPEFUL = 0.5  # of TIMES_WORSE, which values have to reach on the first sample to be tried on others
ABOUT_AS_GOOD = 0.7  # of the best
LEAST_BYTES, MOST_BYTES = 100.0, 255.5  # greatest value of pictures in 8 bit
MOST_UNIT, MOST_BEYOND = 1.5, 4 * 255.0  # of pictures of 0 … 1, and of those of 0 … 255


def normalization_warnings(
    model: Model,
    samples: Sequence[Sample],
    summaries: Mapping[str, InputSummary],
    files: Collection[str] = (),
    held: Sequence[Sample] = (),
) -> list[WarningLine]:
    """Say which inputs hold values that the model was not trained with.

    Args:
        model: The float model, its constants lifted.
        samples: A few samples, in memory.
        summaries: By input, the figures of all samples.
        files: Inputs whose values settings make of picture files.
        held: More samples, for a doubt that takes several.

    Raises:
        ModelError: The first layers cannot be evaluated.

    """
    taps = LayerInputs(model)
    inputs = [
        _Input(model, taps, samples, held, summary, name in files)
        for name, summary in summaries.items()
        if varied(samples, name)
    ]
    try:
        found = [warning for one in inputs for warning in one.warnings()]
        return found or list(_of_all(model, samples, inputs))
    except SessionError:  # other checks say that the model does not run
        return []


def _of_all(model: Model, samples: Sequence[Sample], inputs: Sequence[_Input]) -> Iterator[WarningLine]:
    """Yield a warning where BatchNormalization that depends on several inputs was trained with other values."""
    shared = [(one, one.layers.shared) for one in inputs if one.layers.shared and not one.layers.normalizations]
    if shared and SURELY_WRONG < BatchnormInputs(model, shared[0][1]).misfit(samples) < math.inf:
        values = join_words([one.values() for one, nodes in shared if nodes == shared[0][1]])
        yield WarningLine(CODE, _misfit_of(values, shared[0][1][0]), remedy([]))


def _misfit_of(values: str, node: Node) -> str:
    return f"{values} do not fit the running mean and variance of '{node.display_name}'"


class _Input:
    """One input and the layers behind it."""

    def __init__(
        self,
        model: Model,
        taps: LayerInputs,
        samples: Sequence[Sample],
        held: Sequence[Sample],
        summary: InputSummary,
        files: bool,
    ) -> None:
        self.model, self.taps, self.samples, self.held = model, taps, samples, held
        self.summary, self.files = summary, files
        self.name = summary.name
        self.layers: FirstLayers = first_layers(model, self.name)

    def warnings(self) -> list[WarningLine]:
        if self.layers.normalizations:
            return self._by_batchnorm()
        return self._by_values() or self._by_influence() or self._by_means()

    def _by_values(self) -> list[WarningLine]:
        """Look for values that no model takes."""
        if self.summary.channel_axis is None or convention_of(self.summary) is not UNDIVIDED:
            return []
        message = (
            f"{self.values()} are those of pictures of 0 … 255, with ImageNet's mean and deviation applied to them"
        )
        return [WarningLine(CODE, message, f"Divide by 255 first: {IMAGENET.recipe}.")]

    def _by_influence(self) -> list[WarningLine]:
        """Look at how much the input moves the first layers."""
        first = self._influences(1)
        if first and first[0].moved >= BARELY_MOVED and first[0].bent >= UNBENT:  # further ones take longer to run
            return []
        found = self._influences(len(self.layers.affine))
        return self._by_bias(found) if found else []

    def _influences(self, count: int) -> list[Influence]:
        layers = self.layers.affine[:count]
        return influences(self.taps, self._some(), layers, self.name) if layers else []

    def _some(self) -> list[Sample]:
        """As many samples as take little time: convolutions make many values of one."""
        return few_samples(self.samples, len(self.samples), MOST_ELEMENTS)

    def _by_batchnorm(self) -> list[WarningLine]:
        fit = BatchnormInputs(self.model, self.layers.normalizations)
        given = fit.misfit(self.samples)
        if given <= MAYBE_WRONG:
            return []

        def misfit(samples: Sequence[Sample], other: OtherValues) -> float:
            return fit.misfit(replaced(samples, self.name, other.change))

        likely = sorted(self._others(), key=lambda other: misfit(self.samples[:1], other))[:LIKELY]
        tried = [(misfit(self.samples, other), other) for other in likely]
        best, other = min(tried, key=lambda pair: pair[0], default=(given, None))
        fits = other is not None and best <= FITS and best <= MUCH_BETTER * given
        if not fits and not SURELY_WRONG < given < math.inf:
            return []
        message = _misfit_of(self.values(), self.layers.normalizations[0])
        return [WarningLine(CODE, message, remedy([other] if fits and other is not None else [], files=self.files))]

    def _by_bias(self, found: Sequence[Influence]) -> list[WarningLine]:
        first = found[0]
        if first.moved < BARELY_MOVED:
            fitting = [other for other in self._others() if self._moves(other, first.layer)]
            message = (
                f"{self.values()} move '{first.layer.display_name}' by {100 * first.moved:.2g} % of what its bias "
                "makes: they are far smaller than the model expects"
            )
            return [WarningLine(CODE, message, remedy(fitting[:2], files=self.files))]
        too_large = self._is_bytes() or self._is_odd()
        if first.bent < UNBENT and (self._is_saturating() or (too_large and _drown(found))):
            what = "pictures of 0 … 255, and the model seems" if self._is_bytes() else "far larger than the model seems"
            message = f"{self.values()} drown the bias of '{first.layer.display_name}': they are {what} to expect"
            message += " smaller values" if self._is_bytes() else ""
            how = "--preprocess normalize=unit" if self.files else "x / 255"
            how = "x / 257, which brings 16 bit to 0 … 255" if self._is_of_16_bit() else how
            return [WarningLine(CODE, message, f"Normalise them as in training, pictures for example by {how}.")]
        return []

    def _by_means(self) -> list[WarningLine]:
        """Look for values that cancel the biases of folded BatchNormalization, which these do not."""
        others = [other for other in self._others() if other.is_convention]
        layers = folded_layers(first_layers(self.model, self.name, MOST_FOLDED).affine) if others else []
        if len(layers) < LEAST_LAYERS or len(self.held) < LEAST_SAMPLES:
            return []
        try:
            means = FoldedMeans(self.model, layers)
            samples = few_samples(self.held, SAMPLES)
            first = means.unexplained(samples[:1])

            def worse_at_first(other: OtherValues) -> float:
                return _times_worse(first, means.unexplained(replaced(samples[:1], self.name, other.change)))

            hopeful = [other for other in others if worse_at_first(other) >= HOPEFUL * TIMES_WORSE]
            if not hopeful:
                return []
            given = means.unexplained(samples)
            tried = [(means.unexplained(replaced(samples, self.name, other.change)), other) for other in hopeful]
        except SessionError:  # other checks say that the model does not run
            return []
        worse = {other: _times_worse(given, left) for left, other in tried}
        best, left = max(tried, key=lambda pair: worse[pair[1]])[::-1]
        if worse[best] < TIMES_WORSE or not self._each_is_worse(means, best, left <= EXPLAINED):
            return []
        fitting = np.flatnonzero(left <= EXPLAINED)
        worst = layers[fitting[np.argmax(given[fitting])]]
        message = f"{self.values()} do not fit the biases of {counted(len(fitting), 'convolution')}, such as"
        message += f" '{worst.name}', into which BatchNormalization was folded"
        alike = [other for other in hopeful if worse[other] >= ABOUT_AS_GOOD * worse[best]]
        return [WarningLine(CODE, message, f"{remedy(alike, files=self.files)} Other kinds of pictures look so, too.")]

    def _each_is_worse(self, means: FoldedMeans, other: OtherValues, fits: np.ndarray) -> bool:
        """Whether nearly all samples leave more as they are: wrong values are all wrong, and right ones only differ."""
        times = []
        for sample in self.held:
            changed = replaced([sample], self.name, other.change)
            shares = means.unexplained([sample])[fits] / np.maximum(means.unexplained(changed)[fits], 1e-9)
            times.append(float(np.median(shares)))
        return float(np.median(times)) >= TIMES_WORSE and float(np.quantile(times, 0.2)) >= EACH_WORSE

    def _is_saturating(self) -> bool:
        """Whether the first activation that has a greatest value is mostly there."""
        for node in self.layers.bounded:
            most = CLIPPED if node.op_type == "Clip" else SATURATED
            return saturated_share(self.taps, self._some(), node) > most
        return False

    def _moves(self, other: OtherValues, layer: Node) -> bool:
        """Whether other values would move a layer, and not drown its bias."""
        changed = replaced(self._some()[:1], self.name, other.change)
        return any(
            one.moved >= MOVED and one.bent >= UNBENT for one in influences(self.taps, changed, [layer], self.name)
        )

    def _others(self) -> list[OtherValues]:
        return list(other_values(self.summary))

    def _is_bytes(self) -> bool:
        """Whether the values are those of pictures as they are stored, from 0 to 255."""
        values = self.summary.values
        if values is None or self.summary.channel_axis is None or values.least < 0:
            return False
        return LEAST_BYTES < values.greatest <= MOST_BYTES

    def _is_odd(self) -> bool:
        """Whether the values keep to no convention for pictures, and are larger than 0 … 1."""
        values = self.summary.values
        if values is None or self.summary.channel_axis is None or convention_of(self.summary) is not None:
            return False
        return values.least >= 0 and values.greatest > MOST_UNIT

    def _is_of_16_bit(self) -> bool:
        return self.summary.values is not None and self.summary.values.greatest > MOST_BEYOND

    def values(self) -> str:
        """Name the input and its range in a sentence."""
        values = self.summary.values
        assert values is not None  # the input holds floats
        return f"the values of '{self.name}' ({short(values.least)} … {short(values.greatest)})"


def _times_worse(given: np.ndarray, other: np.ndarray) -> float:
    """Return how many times as much given values leave of biases as others do; 0 where the others do not fit."""
    fits = other <= EXPLAINED
    enough = fits.sum() >= max(LEAST_LAYERS, LEAST_SHARE * len(other))
    return float(np.median(given[fits] / np.maximum(other[fits], 1e-9))) if enough else 0.0


def _drown(found: Sequence[Influence]) -> bool:
    """Whether nothing is left of the biases of several layers."""
    return len(found) > 1 and all(one.bent < UNBENT for one in found)


def remedy(fitting: Sequence[OtherValues], *, files: bool = False) -> str:
    """Say how to prepare samples, by what would fit; `files`: settings make them of pictures."""
    if not fitting:
        more = ", by --preprocess" if files else ""
        return f"Prepare the samples as in training{more}: the same range, mean and deviation."
    words = [
        f"{other.short} (--preprocess {other.setting})" if files and other.setting else other.words for other in fitting
    ]
    return f"Prepare the samples as in training; what fits: {', or '.join(words)}."
