"""The record of a run, from which all outputs of a report are written.

Tests: `tests/report/test_report.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import onnx

from onnxq.data.input_summary import InputSummary
from onnxq.data.pictures.sheet import Thumbnail
from onnxq.data.reading import Preparation
from onnxq.errors import OutputError
from onnxq.ir import Model
from onnxq.planning.decision import FOR_LIMIT, FOR_SIZE
from onnxq.planning.planner import Plan, node_key
from onnxq.report.activations import Activation
from onnxq.report.details import LayerSize, Limit, OperatorTime
from onnxq.report.result_warnings import result_warnings
from onnxq.rounding.saturation_cures import SaturationCure
from onnxq.rounding.summary import RoundingSummary
from onnxq.targets.timings import Timings
from onnxq.text import FLOAT
from onnxq.verification.families import FamilyFigures
from onnxq.verification.records import Comparison, Contribution, CrossValidation
from onnxq.warning import WarningLine

WEIGHT_ONLY = "weight"  # what schemes begin with that leave activations float


@dataclass(frozen=True)
class NodeReport:
    """The decision about one node and its effects.

    Attributes:
        name: Its name, or the name of its first output where it has none.
        op_type: Operator, with its domain where that is not ai.onnx.
        scheme: What it became, or None where it stayed float.
        reason: The sentence that says so.

    """

    name: str
    op_type: str
    scheme: str | None
    reason: str


@dataclass(frozen=True)
class ReportData:
    """The plan, and its result.

    Attributes:
        source: The float model.
        source_bytes: Its size, external data included.
        recipe: Name of the recipe.
        nodes: Every node of the normalised model, in graph order.
        notes: What normalising did, a sentence each.
        output: File of the quantized model; None where nothing was written.
        files: Every file that was written, the model first.
        output_bytes: Their size when they were written, or that of the model in memory; None of a plan.
        comparison: Float against quantized; None where nothing ran.
        samples: What both ran on, for example `100 samples from calib.npz`.
        cross_validation: The error to expect on other samples; None where nothing was fitted on samples, or in a hurry.
        seconds: Time that every step took, in order.
        calibration_samples: How many samples were calibrated on; None without data.
        rules: The recipe in full, as TOML.
        activations: What was measured of each calibrated activation; empty unless asked for.
        returned: Names of the nodes that a search returned to float, or whose weights got more bits, for accuracy.
        sensitivity: What each quantized node adds to the error of the outputs; empty if not measured.
        weights: How the codes of weights were chosen; empty where all were rounded to nearest.
        saturation: What keeps each layer's integer products within 16 bits; empty where nothing has to.
        timings: Kernel times that decided; None where those that come with onnxq did.
        latencies: Predicted latency in that of float, by family of processors.
        families: SQNR and predicted latency on each family of processors; empty where nothing ran.
        inputs: What the samples hold for each input; empty without samples.
        data_warnings: What looks wrong about the samples and the options.
        made_up: Whether the models were compared on random numbers.
        preparations: What was done to calibration data that are no arrays, for each input.
        pictures: A few pictures as the model sees them; only the HTML page has them.
        min_onnxruntime: By architecture, the first onnxruntime from which on the model loads, runs and gives right
            results; None of a plan.
        made: When, in UTC, such as `2026-05-02T10:00:00+00:00`; None of a plan.
        command: The command line that repeats it; None where a program called the library.
        kernels: Number of nodes by kernel of onnxruntime; empty unless asked for.
        operator_times: Time by operator in both models; empty unless asked for.
        layer_sizes: Bytes of constants by layer in both models; empty unless asked for.
        budget: Limits that were asked for, and what was reached.
        encoded: The quantized model as bytes, where it was not written.
        wording: How warnings say what to do: as the command line has it, or as Python has it.

    """

    source: Path
    source_bytes: int
    recipe: str
    nodes: tuple[NodeReport, ...]
    notes: tuple[str, ...] = ()
    output: Path | None = None
    files: tuple[Path, ...] = ()
    output_bytes: int | None = None
    comparison: Comparison | None = None
    samples: str | None = None
    cross_validation: CrossValidation | None = None
    seconds: tuple[tuple[str, float], ...] = ()
    calibration_samples: int | None = None
    rules: str = ""
    activations: tuple[Activation, ...] = ()
    returned: tuple[str, ...] = ()
    sensitivity: tuple[Contribution, ...] = ()
    weights: tuple[RoundingSummary, ...] = ()
    saturation: tuple[SaturationCure, ...] = ()
    timings: Timings | None = None
    latencies: Mapping[str, float] = field(default_factory=dict)
    families: tuple[FamilyFigures, ...] = ()
    inputs: tuple[InputSummary, ...] = ()
    data_warnings: tuple[WarningLine, ...] = ()
    made_up: bool = False
    preparations: tuple[Preparation, ...] = ()
    pictures: tuple[Thumbnail, ...] = ()
    min_onnxruntime: dict[str, str] | None = None
    made: str | None = None
    command: str | None = None
    kernels: Mapping[str, int] = field(default_factory=dict)
    operator_times: tuple[OperatorTime, ...] = ()
    layer_sizes: tuple[LayerSize, ...] = ()
    budget: tuple[Limit, ...] = ()
    encoded: bytes | None = field(default=None, repr=False)
    wording: Callable[[str], str] = field(default=str, repr=False, compare=False)

    @classmethod
    def planned(cls, plan: Plan, *, source: Path, source_bytes: int, notes: Sequence[str] = ()) -> Self:
        """Begin a report with a plan for the model at `source`, which has so many bytes."""
        nodes = tuple(
            NodeReport(
                name=d.node.display_name,
                op_type=d.node.operator,
                scheme=d.scheme,
                reason=d.reason,
            )
            for d in plan.decisions
        )
        recipe, times = plan.recipe, plan.costs.timings
        bits = (FOR_SIZE, FOR_LIMIT)  # choices of how many bits a weight is stored in
        for_accuracy = [(key, choice.scheme) for key, choice in plan.choices.items() if choice.reason not in bits]
        chosen = {key for key, scheme in for_accuracy if scheme != "static-int8"}
        returned = tuple(d.node.display_name for d in plan.decisions if node_key(d.node) in chosen)
        return cls(
            source,
            source_bytes,
            recipe.name,
            nodes,
            tuple(notes),
            rules=recipe.to_toml(),
            returned=returned,
            timings=times,
        )

    @property
    def warnings(self) -> tuple[WarningLine, ...]:
        """Warnings to read before the result is used: about the samples, accuracy, latency, processors."""
        schemes = {node.scheme for node in self.nodes if node.scheme is not None}
        for_size = all(scheme.startswith(WEIGHT_ONLY) for scheme in schemes)
        found = result_warnings(
            self.comparison, self.families, self.cross_validation, made_up=self.made_up, for_size=for_size
        )
        return tuple(replace(line, remedy=self.wording(line.remedy)) for line in (*self.data_warnings, *found))

    @property
    def model(self) -> onnx.ModelProto:
        """The quantized model, read from its files where it was written.

        Raises:
            OutputError: There is none, as after a dry run.

        """
        if self.encoded is not None:
            return onnx.load_model_from_string(self.encoded)
        if self.output is None:
            raise OutputError("nothing was quantized, so there is no model", "Leave out dry_run.")
        return onnx.load(self.output)

    @property
    def float_passes(self) -> tuple[tuple[str, float], ...] | None:
        """The time of every step, in runs of the float model on one thread over all calibration samples.

        It says more than seconds do of another machine. None where either is unknown: without data, and where the
        float model was not timed.
        """
        latency = None if self.comparison is None else self.comparison.latency
        if latency is None or not self.calibration_samples or latency.float_ms <= 0:
            return None
        seconds = latency.float_ms / 1000 * self.calibration_samples
        return tuple((step, taken / seconds) for step, taken in self.seconds)

    def counts(self) -> dict[str, int]:
        """Number of nodes by scheme, the most frequent first, `float` last."""
        counted = Counter(node.scheme for node in self.nodes if node.scheme is not None)
        left = len(self.nodes) - counted.total()
        return dict(counted.most_common()) | ({FLOAT: left} if left else {})

    def operators(self, scheme: str | None) -> dict[str, int]:
        """Number of nodes that got a scheme by operator, the most frequent first."""
        return dict(Counter(node.op_type for node in self.nodes if node.scheme == scheme).most_common())

    def reasons(self) -> dict[str, int]:
        """Number of nodes that stayed float by reason, the most frequent first."""
        return dict(Counter(node.reason for node in self.nodes if node.scheme is None).most_common())


def model_bytes(model: Model) -> int:
    """Size of a model's file, or of its bytes where it has none, and of the external data that it points to.

    Args:
        model: As it was read: passes make arrays of what files hold.

    """
    if model.path is None:
        return len(model.source)
    return sum(file.stat().st_size for file in (model.path, *model.external_files) if file.is_file())
