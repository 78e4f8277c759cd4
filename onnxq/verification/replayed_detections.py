"""Compare a quantized model that replays the float model's selections; see `onnxq.verification.detections`.

Tests: `tests/verification/test_detections.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from onnxq.ir import Model
from onnxq.runtime.session import (
    InMemory,
    ModelSource,
    Session,
    SessionError,
    open_session,
    run_session,
    source_model,
)
from onnxq.verification.detections import (
    SUPPRESSION,
    THRESHOLDS,
    Selection,
    agreement,
    find_selection,
    replay_selections,
)
from onnxq.verification.error_stats import ANY_AXIS, Difference
from onnxq.verification.output_records import INDICES, OutputComparison, SelectionComparison


def replay_detections(float_model: ModelSource, quantized: ModelSource) -> ReplayedDetections | None:
    """Prepare the comparison of two models; None for large ones, and where nothing is picked under a name of both."""
    reference = _whole(float_model)
    selection = find_selection(reference) if reference is not None else None
    result = _whole(quantized) if selection else None  # reading the bytes of a large graph takes long
    if reference is None or result is None or not selection:
        return None
    known = result.graph.values
    picked = {name: kind for name, kind in selection.picked.items() if name in known and known[name].producer}
    try:
        return ReplayedDetections(reference, result, selection._replace(picked=picked)) if picked else None
    except SessionError:  # values between its nodes cannot be listed as outputs
        return None


class ReplayedDetections:
    """Sums over samples that both models run on.

    Args:
        reference: The float model.
        result: The quantized model.
        selection: What the float model picks, by names that both know.

    Attributes:
        selection: The same.

    """

    def __init__(self, reference: Model, result: Model, selection: Selection) -> None:
        self.selection = selection
        self._result = result
        self._read = [name for name in selection.read if name in result.graph.values]
        outputs = [name for name in selection.outputs if name not in selection.picked]
        self._differences = {name: Difference(lengths=ANY_AXIS) for name in (*outputs, *self._read)}
        self._names = list(dict.fromkeys((*self._differences, *selection.picked)))
        self._counts: dict[str, list[int]] = {}
        self._told: tuple[Session, dict[str, str]] | None = None
        self._failed = False
        values = reference.graph.values
        taps = [values[name] for name in self._names if not values[name].is_output]
        self._float = open_session(InMemory(reference, taps), threads=1)

    def add(self, sample: Mapping[str, np.ndarray]) -> None:
        """Run both models on a sample; if the quantized one cannot be given picks, nothing is changed."""
        if self._failed:
            return
        try:
            expected = dict(zip(self._names, run_session(self._float, self._names, sample), strict=True))
            picked = self.selection.of(expected)
            if self._told is None:
                model, fed = replay_selections(self._result, picked, self._names)
                self._told = open_session(InMemory(model), threads=1), fed
            session, fed = self._told
            feeds = {**sample, **{given: picked[name] for name, given in fed.items()}}
            got = dict(zip(self._names, run_session(session, self._names, feeds), strict=True))
        except SessionError:
            self._failed = True
            return
        self._failed = any(difference.add(expected[name], got[name]) for name, difference in self._differences.items())
        self._count(picked, got)

    def _count(self, picked: Mapping[str, np.ndarray], got: Mapping[str, Any]) -> None:
        """Count how much of what is picked is the same: of boxes where there are any, else of places."""
        operators = self.operators
        for name, expected in picked.items():
            if self.selection.picked[name] in operators and expected.dtype.name in INDICES:
                same, most = agreement(self.selection.picked[name], expected, np.asarray(got[name]))
                counts = self._counts.setdefault(name, [0, 0])
                counts[0], counts[1] = counts[0] + same, counts[1] + most

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators that pick what the outputs hold; others prepare it."""
        found = set(self.selection.picked.values())
        chief = next((operator for operator in (SUPPRESSION, "TopK") if operator in found), None)
        return (chief,) if chief is not None else tuple(sorted(found - THRESHOLDS or found))

    def figures(
        self, outputs: tuple[OutputComparison, ...]
    ) -> tuple[tuple[OutputComparison, ...], SelectionComparison | None]:
        """Return figures of outputs that mean something, out of those of models that pick for themselves."""
        if self._failed:
            return outputs, None
        # The worst of several stages: proposals are many, and similar to those that are picked instead
        agreed = min((100.0 * same / most for same, most in self._counts.values() if most), default=None)
        known = [replace(o, agreement=agreed) if o.name in self.selection.outputs else o for o in outputs]
        known = [
            replace(output, sqnr=d.sqnr, max_abs=d.max_abs, cosine=d.cosine)
            if (d := self._differences.get(output.name)) is not None
            else output
            for output in known
        ]
        read = [
            OutputComparison(name, d.dtype, d.elements, d.equal, d.sqnr, d.max_abs, d.cosine, None)
            for name in self._read
            if (d := self._differences[name]).dtype not in INDICES
        ]
        picks = tuple(name for name in self.selection.outputs if name in self.selection.picked)
        found = SelectionComparison(self.operators, tuple(self.selection.outputs), picks, agreed, tuple(read))
        return tuple(known), found


def _whole(source: ModelSource) -> Model | None:
    """Return a model whose graph can be looked at, and that onnxruntime can hold."""
    if isinstance(source, InMemory):
        return source.model
    model = source_model(source)
    return model if model.residency.copies else None
