"""Find samples beyond the calibrated ranges, which a model's QuantizeLinear nodes hold.

Looked at are the nodes that quantize first behind the inputs. They read the input itself if nothing computes in front
of them, and otherwise results of float nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from onnxq.data.input_summary import short
from onnxq.errors import OnnxqError
from onnxq.evaluator import Evaluator
from onnxq.ir import Model, Node, Value
from onnxq.ir.operator_traits import Trait, operators_with
from onnxq.runtime.session import ModelSource, source_model
from onnxq.warning import WarningLine

MOST_OUTSIDE = 0.05  # share of values beyond a range; ranges of least error cut off less than that
# Times that the range calibrated for is wider than all values: of inputs, and of what a few samples make behind layers
NARROW, NARROW_BEHIND = 16, 32
MOST_NODES = 4
MOST_SAMPLES, FEW_SAMPLES = 64, 4  # that are looked at: of inputs as they are, of what float layers make of them
PASSING = operators_with(Trait.MOVES) | {"Cast"}  # what an input goes through and stays what it is
REMEDY = "Calibrate on data like these, or prepare these as the data to calibrate on were."


@dataclass
class _Range:
    """A range that was calibrated for, and what samples have of it.

    Attributes:
        value: What is quantized.
        words: What it is, for a sentence.
        direct: Whether it is an input as it is.
        low: Least value that has a code.
        high: Greatest.
        step: Between two codes.

    """

    value: Value
    words: str
    direct: bool
    low: float
    high: float
    step: float
    count: int = 0
    outside: int = 0
    least: float = np.inf
    greatest: float = -np.inf

    def add(self, array: np.ndarray) -> None:
        if not array.size:
            return
        self.count += array.size
        self.outside += int(((array < self.low - self.step) | (array > self.high + self.step)).sum())
        self.least = min(self.least, float(array.min()))
        self.greatest = max(self.greatest, float(array.max()))

    def warning(self) -> WarningLine | None:
        if not self.count or not np.isfinite([self.least, self.greatest]).all():
            return None
        calibrated, here = f"{short(self.low)} … {short(self.high)}", f"{short(self.least)} … {short(self.greatest)}"
        if self.outside > MOST_OUTSIDE * self.count:
            share = 100 * self.outside / self.count
            message = f"{share:.1f} % of the values of {self.words} lie outside what the model was calibrated for"
            return WarningLine("beyond-calibration", f"{message} ({calibrated}; here {here})", REMEDY)
        span = self.greatest - self.least
        times = NARROW if self.direct else NARROW_BEHIND
        if span > 0 and times * max(abs(self.least), abs(self.greatest)) < max(abs(self.low), abs(self.high)):
            message = f"the values of {self.words} use a small part of what the model was calibrated for"
            return WarningLine("narrow-range", f"{message} ({calibrated}; here {here})", REMEDY)
        return None


@dataclass
class CalibratedRanges:
    """Counts how many values of samples lie outside the ranges of a quantized model.

    Attributes:
        ranges: Those that are looked at; none for a model without QuantizeLinear.

    """

    ranges: list[_Range] = field(default_factory=list)
    _evaluator: Evaluator | None = None
    _seen: int = 0

    @classmethod
    def of(cls, source: ModelSource) -> CalibratedRanges:
        """Read the ranges of a model; none where it is too large to be evaluated in part, or has operators of its own.

        Args:
            source: The quantized model.

        """
        try:
            model = source_model(source)
            if not model.residency.quick:
                return cls()
            found = list(_ranges(model))
            return cls(found, Evaluator(model) if found else None)
        except OnnxqError:  # running it gives the reason
            return cls()

    def add(self, sample: Mapping[str, np.ndarray]) -> None:
        """Look at a sample."""
        taps: dict[str | Value, Callable[[np.ndarray], None]] = {}
        for one in self.ranges:
            if self._seen < (MOST_SAMPLES if one.direct else FEW_SAMPLES):
                taps[one.value] = one.add
        self._seen += 1
        if not taps or self._evaluator is None:
            return
        try:
            self._evaluator.run(sample, [], taps)
        except OnnxqError:
            self._evaluator = None

    def warnings(self) -> tuple[WarningLine, ...]:
        """Say what of the samples lies outside; what stands directly behind an input goes before all else."""
        found = [(one.direct, warning) for one in self.ranges if (warning := one.warning()) is not None]
        direct = tuple(warning for is_direct, warning in found if is_direct)
        return direct or tuple(warning for _, warning in found)[:1]


def calibration_warnings(source: ModelSource, samples: Iterable[Mapping[str, np.ndarray]]) -> tuple[WarningLine, ...]:
    """Say what of samples lies outside the ranges of a quantized model."""
    ranges = CalibratedRanges.of(source)
    for sample in islice(samples, MOST_SAMPLES if ranges.ranges else 0):
        ranges.add(sample)
    return ranges.warnings()


def _ranges(model: Model) -> Iterator[_Range]:
    """Yield the ranges that are the first behind the inputs."""
    behind: dict[Value, tuple[str, bool]] = {}  # by value: the input that it comes from, and whether it is that input
    for value in model.graph.inputs:
        if value.tensor is None:
            behind[value] = value.name, True
    found = 0
    for node in model.graph.nodes:
        origins = [behind[value] for value in node.reads if value in behind]
        if not origins:
            continue
        if node.op_type == "QuantizeLinear":
            bounds = _bounds(node)
            source = node.inputs[0]
            if bounds is None or source not in behind or source is None or found == MOST_NODES:
                continue
            found += 1
            name, direct = behind[source]
            words = f"'{name}'" if direct else f"'{source.name}', behind input '{name}',"
            yield _Range(source, words, direct, *bounds)
        elif node.op_type != "Shape":
            direct = node.op_type in PASSING and all(is_direct for _, is_direct in origins[:1])
            made = node.makes
            behind.update(dict.fromkeys(made, (origins[0][0], direct)))


def _bounds(node: Node) -> tuple[float, float, float] | None:
    """Return the least and greatest value that a node has a code for, and its step; None where they are no constants.

    value = (code - zero point) · scale, of the ONNX specification of DequantizeLinear
    """
    scale = node.constant(1)
    zero = node.constant(2)
    if scale is None or scale.numpy().size != 1:
        return None
    point = np.zeros((), np.uint8) if zero is None else zero.numpy()
    if point.dtype.name not in ("uint8", "int8", "uint16", "int16"):
        return None
    step, limits = float(scale.numpy().reshape(())), np.iinfo(point.dtype)
    low, high = ((limit - int(point.reshape(()))) * step for limit in (limits.min, limits.max))
    return low, high, step
