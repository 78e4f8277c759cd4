"""The result of comparing two models: figures for every output, latency, and thresholds that are met or missed.

Tests: `tests/verification/test_compare.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from onnxq.errors import CheckFailed
from onnxq.text import counted, decibels, format_drop, milliseconds, size, size_change, speed_change
from onnxq.verification.output_records import MISSED, SelectionComparison, sqnr_missed, with_sqnr
from onnxq.verification.output_records import OutputComparison as OutputComparison
from onnxq.warning import WarningLine


@dataclass(frozen=True)
class Latency:
    """Time for one run on the first sample, one thread, both models in turn.

    Attributes:
        float_ms: Median of the float model in milliseconds.
        quantized_ms: Median of the quantized model in milliseconds.
        ratio: Median over the pairs of quantized time by float time.
        pairs: How many pairs of runs were timed.

    """

    float_ms: float
    quantized_ms: float
    ratio: float
    pairs: int


@dataclass(frozen=True)
class LayerComparison:
    """How one tensor that both models hold differs, and where that comes from.

    Attributes:
        node: The node of the float model that makes it, by name, or by its first output where it has none.
        op_type: Its operator, with the domain where that is not ai.onnx.
        tensor: The tensor.
        sqnr: Signal-to-quantization-noise ratio of the tensor in dB, everything before it included.
        own: The same, counting only what this node adds: its float operator on the quantized model's inputs against
            what the quantized model gives. Infinite where it adds nothing.
        inherited: The same, counting only what its inputs bring: its float operator on the quantized model's inputs
            against the float tensor.
        max_abs: Largest absolute difference of the tensor.
        rescaled: Whether the quantized model holds the tensor with its channels multiplied by constants, which its
            readers undo; all figures are for the tensor without those factors.

    """

    node: str
    op_type: str
    tensor: str
    sqnr: float
    own: float
    inherited: float
    max_abs: float
    rescaled: bool = False


@dataclass(frozen=True)
class MetricComparison:
    """The value of a metric for both models.

    Attributes:
        name: Of the metric, or where the function is, as the user wrote it.
        float_value: Of the float model.
        quantized_value: Of the quantized model.
        lower_is_better: Whether a smaller value is better, as of perplexity.
        doubt: What looks wrong about the labels, by the float model; empty where nothing does.
        is_distance: Whether the value is the distance to the float model itself, so that a difference says nothing.

    """

    name: str
    float_value: float
    quantized_value: float
    lower_is_better: bool = False
    doubt: str = ""
    is_distance: bool = False

    @property
    def drop(self) -> float:
        """How much worse the quantized model is; negative if it is better."""
        return 0.0 - self.change if self.lower_is_better else self.change

    @property
    def change(self) -> float:
        """The float value minus the quantized one."""
        return self.float_value - self.quantized_value

    def missed(self, max_drop: float) -> list[str]:
        """Say by how much more the value fell than it may; nothing where it did not."""
        if self.drop <= max_drop:
            return []
        if math.isnan(self.drop):
            return [f"{self.name} went from {self.float_value:.6g} to {self.quantized_value:.6g}: no drop can be told"]
        how = "rose" if self.lower_is_better else "fell"
        return [f"{self.name} {how} by {self.drop:.4g}, {self.drop - max_drop:.4g} more than {max_drop:g}"]

    def change_words(self) -> str:
        """Say for people how far the value changed."""
        return "to the float model" if self.is_distance else format_drop(self.change)


@dataclass(frozen=True)
class SampleError:
    """How far the outputs of one sample are off.

    Attributes:
        index: Its place among the samples, counted from 0.
        output: Its worst output.
        sqnr: Signal-to-quantization-noise ratio of that output in dB.

    """

    index: int
    output: str
    sqnr: float


@dataclass(frozen=True)
class CrossValidation:
    """The error to expect on other samples, by models that are fitted on half of the samples.

    Attributes:
        output: The worst output.
        sqnr: Its signal-to-quantization-noise ratio in dB that is expected on other samples.
        low: Lower end of an interval that holds the ratio of as many others in nine of ten cases.
        high: Upper end of it.
        samples: How many samples there were in both halves.

    """

    output: str
    sqnr: float
    low: float
    high: float
    samples: int

    @property
    def sentence(self) -> str:
        """The figure in words, and the samples that it was measured on."""
        if not math.isfinite(self.sqnr):
            figure = decibels(self.sqnr)
        else:
            figure = f"{self.sqnr:.1f} dB ({self.low:.1f} to {self.high:.1f})"
        judged = f"by models fitted on one half of {counted(self.samples, 'sample')} and judged on the other"
        return f"expected on other samples: {figure}, {judged}"


@dataclass(frozen=True)
class Contribution:
    """The error that quantizing one node adds to the outputs.

    Attributes:
        node: The node by name, or by its first output where it has none.
        op_type: Its operator.
        tensor: Its first output.
        scheme: What it became.
        noise: Squared error of the worst output by its squared size, with only this node quantized.
        share: Of the sum over all nodes, 0 to 1.
        exact: Whether it is that of the node alone, or its part of what a group of nodes makes.

    """

    node: str
    op_type: str
    tensor: str
    scheme: str
    noise: float
    share: float
    exact: bool


@dataclass(frozen=True)
class Decoding:
    """A decoder as its users judge it.

    Attributes:
        perplexity: None where the samples are no texts.
        greedy: Percentage of equal choices over 64 tokens; None where the model is too slow for that.
        token: Latency of one token; None where the length is fixed.
        prompt: Latency of 128 tokens, or of the fixed length.
        past: How many tokens are in the cache in front of the one.
        load_bytes: Memory that loading float and the quantized model takes at most; None where it is not known.

    """

    perplexity: MetricComparison | None
    greedy: MetricComparison | None
    token: Latency | None
    prompt: Latency | None
    past: int
    load_bytes: tuple[int, int] | None = None

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return for each figure a name, that of float, that of the quantized model, and the change."""
        found = []
        for metric in (self.perplexity, self.greedy):
            if metric is not None:
                values = f"{metric.float_value:.6g}", f"{metric.quantized_value:.6g}"
                found.append((metric.name, *values, format_drop(metric.change)))
        behind = f" behind {self.past}" if self.past else ""
        for name, latency in ((f"one token{behind}", self.token), ("a prompt", self.prompt)):
            if latency is not None:
                before, after = latency.float_ms, latency.quantized_ms
                times = milliseconds(before, after), milliseconds(after, before)
                found.append((name, *times, speed_change(latency.ratio)))
        if self.load_bytes is not None:
            one, two = self.load_bytes
            found.append(("memory at load", size(one), size(two), size_change(one, two)))
        return found


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`.

    Attributes:
        outputs: One for each output of the model, in its order.
        samples: Number of samples both models ran on.
        latency: None where it was not asked for.
        layers: One for each tensor that both models hold, in graph order; empty where nobody asked.
        no_layers: Why there are none, where somebody asked.
        metric: None where nobody asked.
        decoding: Of a decoder in memory, with data; None of all else.
        selection: What the outputs hold of what is picked by scores; None where nothing is.
        warnings: Which samples go beyond what the quantized model was calibrated for.
        worst_samples: The samples that are off most, the worst first; none that is equal.

    """

    outputs: tuple[OutputComparison, ...]
    samples: int
    latency: Latency | None = None
    layers: tuple[LayerComparison, ...] = ()
    no_layers: str | None = None
    metric: MetricComparison | None = None
    decoding: Decoding | None = None
    selection: SelectionComparison | None = None
    warnings: tuple[WarningLine, ...] = ()
    worst_samples: tuple[SampleError, ...] = ()

    def worst_layers(self, count: int) -> list[LayerComparison]:
        """The layers that add most to the error by themselves, without those that add nothing."""
        adding = [layer for layer in self.layers if layer.own < math.inf]
        return sorted(adding, key=lambda layer: layer.own)[:count]

    @property
    def worst_sqnr(self) -> float:
        """The least signal-to-quantization-noise ratio in dB of any output, or of what is picked from for one."""
        return min((output.sqnr for output in self.measured()), default=math.inf)

    def measured(self) -> list[OutputComparison]:
        """Outputs whose SQNR means something, and what is picked from for them.

        Labels and counts have none, unless there is nothing else.
        """
        picks = self.selection.picks if self.selection is not None else ()
        found = [output for output in self.outputs if output.name not in picks] + self._read()
        counts = with_sqnr([output.dtype for output in found])
        return [output for output, counted in zip(found, counts, strict=True) if counted]

    def _read(self) -> list[OutputComparison]:
        return list(self.selection.read) if self.selection is not None else []

    def selected(self) -> list[str]:
        """Say which outputs hold what is picked by scores, and how much of that is the same."""
        return [] if self.selection is None else self.selection.said()

    def spoilt(self) -> list[str]:
        """Say for every output where only the quantized model gives NaN or infinity how often it does."""
        return [
            f"'{output.name}' holds NaN or infinity {output.spoilt} times, in the float model never"
            for output in self.outputs
            if output.spoilt
        ]

    def uncompared(self) -> list[OutputComparison]:
        """List outputs that were not compared: the float model gives nothing but NaN."""
        return [output for output in self.outputs if not output.is_compared]

    def undefined(self) -> list[str]:
        """Say for every output how often the float model gives NaN itself."""
        return [
            f"'{output.name}' is NaN {output.undefined} of {output.elements} times in the float model: left out here"
            for output in self.outputs
            if output.undefined
        ]

    def missed(
        self,
        *,
        min_sqnr: float | None = None,
        max_abs: float | None = None,
        min_agreement: float | None = None,
        min_cosine: float | None = None,
        max_drop: float | None = None,
    ) -> list[str]:
        """Say for every threshold what misses it and by how much; an empty list where all is well.

        Args:
            min_sqnr: Least signal-to-quantization-noise ratio in dB.
            max_abs: Largest absolute difference allowed.
            min_agreement: Least percentage of equal decisions.
            min_cosine: Least cosine; outputs of text have none.
            max_drop: How far the metric may fall, in its own unit.

        Raises:
            CheckFailed: `min_agreement` is given and no output has decisions to compare, or `max_drop` and no metric
                was measured.

        """
        limits = {"min_sqnr": min_sqnr, "max_abs": max_abs, "min_agreement": min_agreement, "min_cosine": min_cosine}
        found = [
            f"output '{output.name}' {sentence}"
            for output in self.outputs
            for name, limit in limits.items()
            if limit is not None and (sentence := MISSED[name](output, limit))
            if name != "min_sqnr" or output in self.measured()
        ]
        if any(limit is not None for limit in limits.values()):
            nothing = "is NaN in the float model, every time: there is nothing to compare"
            found += [f"output '{output.name}' {nothing}" for output in self.uncompared()]
        found += [
            f"'{read.name}', from which outputs are picked, {sentence}"
            for read in self._read()
            if min_sqnr is not None and read in self.measured() and (sentence := sqnr_missed(read, min_sqnr))
        ]
        if min_agreement is not None and all(output.agreement is None for output in self.outputs):
            raise CheckFailed("no output has classes whose agreement could be measured", "Use --min-sqnr instead.")
        if max_drop is not None:
            if self.metric is None:
                raise CheckFailed("no metric was measured that could have dropped", "Name one with --metric.")
            found += self.metric.missed(max_drop)
        return found
