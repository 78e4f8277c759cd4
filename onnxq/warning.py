"""A `warning:` line: a doubt about data, a model or a result, and its remedy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WarningLine:
    """Warnings of a command or a report.

    Attributes:
        code: Stable, such as `few-samples`; docs list all.
        message: One sentence without a full stop.
        remedy: What to do, as a sentence.

    """

    code: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.message} ({self.code}). {self.remedy}"
