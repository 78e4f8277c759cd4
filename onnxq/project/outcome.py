"""The result of one model of a project, and whether it has to be built at all.

Tests: `tests/project/test_project_build.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from onnxq.errors import CheckFailed, OnnxqError
from onnxq.ir import load
from onnxq.project.check import find_all
from onnxq.project.entry import Entry
from onnxq.project.provenance import gather
from onnxq.project.rules import is_ignored, is_stale
from onnxq.verification.records import Comparison
from onnxq.warning import WarningLine

if TYPE_CHECKING:  # with onnxruntime, which a process that hands out models needs for their results only
    from onnxq.report import Report

DAMAGED = frozenset({"missing", "unreadable", "malformed", "altered"})  # built again even if switched off


@dataclass(frozen=True)
class Built:
    """Result of one model.

    Attributes:
        entry: The model.
        state: What was done.
        report: What a build did; None where nothing was built.
        error: Why it failed; None where it did not.
        verified: Figures on the data to verify on; None where there are none.

    """

    entry: Entry
    state: Literal["built", "up to date", "failed"]
    report: Report | None = None
    error: OnnxqError | None = None
    verified: Comparison | None = None

    @property
    def warnings(self) -> tuple[WarningLine, ...]:
        """Warnings to read before the model is used."""
        from onnxq.report.result_warnings import result_warnings

        blamed = () if self.error is None else self.error.warnings
        own = blamed if self.report is None else self.report.warnings
        return tuple(dict.fromkeys((*own, *result_warnings(self.verified))))


def up_to_date(entry: Entry) -> Built | None:
    """Say that a model is up to date, or that building it again would not help; None if it is to be built."""
    try:
        gather(entry, load(entry.source))
        if not entry.quantized.exists():
            return None
        every = [finding for finding in find_all(entry) if finding.path == entry.quantized]
    except OnnxqError as error:
        return Built(entry, "failed", error=error)
    found = [finding for finding in every if not is_ignored(finding.rule, entry.ignore)]
    if any(finding.rule in DAMAGED for finding in every) or any(is_stale(finding.rule) for finding in found):
        return None
    if found:
        message = f"{entry.quantized}: {found[0].message}"
        return Built(entry, "failed", error=CheckFailed(message, "Change the recipe, the data or the limit."))
    return Built(entry, "up to date")
