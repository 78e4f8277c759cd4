"""A model in onnxruntime without optimisations, with all of them, and in the reference evaluator.

Tests: `tests/verification/test_engines.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from onnxq.errors import DataError, InvalidResult, OnnxqError
from onnxq.evaluator import Evaluator
from onnxq.ir import ModelInput
from onnxq.ops.quantized import host_arithmetic
from onnxq.progress import OnSample
from onnxq.runtime.custom_ops import refusal_hint
from onnxq.runtime.session import SessionError, open_session, run_session, source_model
from onnxq.verification.engines.nodes import NodeByNode
from onnxq.verification.engines.origin import holds, origin_of
from onnxq.verification.engines.result import EngineCheck, OutputAgreement
from onnxq.verification.engines.tolerance import Gap, gap
from onnxq.verification.error_stats import arrays

MOST_EVALUATED = 16  # samples: the evaluator takes some times as long as onnxruntime
UNSOUND = "Compare it with its float model: --against FLOAT."
MADE_UP = (
    "The sample is random, and not every model takes random numbers. Pass --data, or --against FLOAT to see whether "
    "the float model does the same."
)


def check_engines(
    model: ModelInput | bytes,
    samples: Iterable[Mapping[str, np.ndarray]],
    *,
    progress: OnSample | None = None,
    blame: type[OnnxqError] = InvalidResult,
) -> EngineCheck:
    """Run a model on every sample in onnxruntime, with and without optimisations, and in the reference evaluator.

    The evaluator runs on the first 16 samples. The first one, and the first whose outputs are further apart than the
    tolerance, are checked node by node. The evaluator's kernel runs on the inputs that onnxruntime gave the node, and
    both results have to be the same. Integers have to be equal, except for codes that are rounded half-way: off by one,
    one in a hundred at most. Floats may differ by 1e-4 of the tensor's largest magnitude. So a node that disagrees is
    told from those behind it. It is also told from codes that flip since the numbers in front of them differ in the
    last bits. The evaluator computes integer products as onnxruntime does on this processor: without VNNI, x86
    saturates.

    Args:
        model: Its path, a ModelProto, loaded, or its bytes; with external data by its path.
        samples: `{input name: array}` with exactly the model's dtypes; shapes may differ.
        progress: Called with the number of samples done and the total (None while unknown).
        blame: What to raise where the model is at fault.

    Raises:
        ModelError: The file is no model.
        DataError: There are no samples.
        InvalidResult: onnxruntime does not load or run the model, or it gives NaN or infinity (see `blame`).

    """
    runs = _Runs(model, blame, MADE_UP if getattr(samples, "made_up", False) else UNSOUND)
    total = getattr(samples, "count", None)
    count = 0
    for sample in samples:
        runs.add(dict(sample), count)
        count += 1
        if progress:
            progress(count, total if isinstance(total, int) else None)
    if not count:
        raise DataError("there are no samples to run the model on", "Give at least one.")
    return runs.result(count)


class _Runs:
    """The three runs of every sample, added up."""

    def __init__(self, model: ModelInput | bytes, blame: type[OnnxqError], hint: str) -> None:
        read = source_model(model)
        self.label = read.name
        self.blame = blame
        self.hint = hint
        try:
            self.optimised = open_session(model)
            self.plain = open_session(model, optimize="none")
        except SessionError as error:
            raise self._refused(error) from error
        self.names = [output.name for output in self.plain.get_outputs()]
        self.evaluator = Evaluator(read, host_arithmetic())  # on the same inputs, both are to give the same
        self.nodes = NodeByNode(self.evaluator)
        self.against_evaluator = [_Sum() for _ in self.names]
        self.against_optimised = [_Sum() for _ in self.names]
        self.hidden = ""
        self.within = True

    def _refused(self, error: SessionError) -> OnnxqError:
        return self.blame(f"onnxruntime cannot load or run {self.label}: {error}", refusal_hint(error))

    def add(self, feeds: dict[str, np.ndarray], index: int) -> None:
        """Run one sample."""
        try:
            fast = run_session(self.optimised, None, feeds)
            theirs = run_session(self.plain, None, feeds)
        except SessionError as error:
            raise self._refused(error) from error
        for name, result in zip(self.names, fast, strict=True):
            if holds(result, _is_wrong):
                where = origin_of(self.evaluator, feeds, name)
                message = f"{self.label} gives NaN or infinity in output '{name}', sample {index}{where}"
                raise self.blame(message, self.hint)
        for one, other, total in zip(theirs, fast, self.against_optimised, strict=True):
            total.add(one, gap(one, other))
        ours = self._evaluate(feeds, index) if index < MOST_EVALUATED else None
        if ours is None:
            return
        within = True
        for name, one, total in zip(self.names, theirs, self.against_evaluator, strict=True):
            found = gap(one, ours[name])
            total.add(one, found)
            within = within and found.within
        if not within and self.within:
            self.within = False
            if index:
                self._look(feeds, index)

    def _evaluate(self, feeds: dict[str, np.ndarray], index: int) -> dict[str, Any] | None:
        """Return the evaluator's outputs; None where it cannot run the model by itself."""
        if index == 0:
            looked = self._look(feeds, index)
            if looked is not None:
                return looked
        if self.nodes.unknown or self.nodes.random:
            return None
        try:
            return self.evaluator.run(feeds)
        except OnnxqError as error:
            self.nodes.unknown.setdefault("", error.message)
            return None

    def _look(self, feeds: dict[str, np.ndarray], index: int) -> dict[str, Any] | None:
        try:
            outputs = self.nodes.look(feeds, index)
        except SessionError as error:
            self.hidden = f"onnxruntime does not show the tensors inside {self.label}: {error}"
            return None
        if self.nodes.of_nan is not None:
            node, tensor = self.nodes.of_nan
            where = origin_of(self.evaluator, feeds, tensor)
            raise self.blame(f"{self.label}: {node} reads NaN in tensor '{tensor}', sample {index}{where}", self.hint)
        return outputs

    def result(self, samples: int) -> EngineCheck:
        """Return what was found."""
        nodes = self.nodes
        notes = nodes.notes()
        if self.hidden:
            notes.append(self.hidden)
        if samples > 1 and (nodes.unknown or nodes.random):
            notes.append("only the first sample was compared with the reference evaluator")
        elif samples > MOST_EVALUATED:
            notes.append(f"only the first {MOST_EVALUATED} samples were compared with the reference evaluator")
        return EngineCheck(
            samples=samples,
            outputs=tuple(s.summary(n) for n, s in zip(self.names, self.against_evaluator, strict=True)),
            optimised=tuple(s.summary(n) for n, s in zip(self.names, self.against_optimised, strict=True)),
            nodes=nodes.nodes,
            ties=nodes.ties,
            flipped=nodes.flipped,
            codes=nodes.codes,
            culprits=tuple(nodes.culprits.values()),
            parting=nodes.parting,
            within=self.within,
            notes=tuple(notes),
        )


def _is_wrong(array: np.ndarray) -> bool:
    return not np.isfinite(array).all()


class _Sum:
    """How far one output is apart, over all samples."""

    def __init__(self) -> None:
        self.dtype = ""
        self.elements = self.differing = 0
        self.max_abs = self.relative = 0.0

    def add(self, value: Any, found: Gap) -> None:
        """Add a sample."""
        first = next(arrays(value), None)
        if first is not None and not self.dtype:
            self.dtype = "string" if first.dtype.kind in "OUS" else first.dtype.name
        self.elements += found.elements
        self.differing += found.differing
        self.max_abs = max(self.max_abs, found.max_abs)
        self.relative = max(self.relative, found.relative)

    def summary(self, name: str) -> OutputAgreement:
        """Return the figures."""
        return OutputAgreement(name, self.dtype, self.elements, self.differing, self.max_abs, self.relative)
