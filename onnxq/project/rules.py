"""The codes of findings, each of which a project or the command line can switch off.

Tests: `tests/project/test_project_rules.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from onnxq.errors import ProjectError
from onnxq.text import did_you_mean

CheckRule = Literal[
    "missing",
    "missing-data",
    "unreadable",
    "malformed",
    "altered",
    "stale-version",
    "stale-float",
    "stale-recipe",
    "stale-data",
    "stale-metric",
    "stale-options",
    "stale-origin",
    "stale-unknown",
    "too-large",
    "below-threshold",
    "onnxruntime",
]
RULES: tuple[CheckRule, ...] = get_args(CheckRule)
STALE = "stale"  # stands for all codes that begin so
NAMES = (STALE, *RULES)


def is_stale(rule: CheckRule) -> bool:
    """Whether a finding says that a model is out of date."""
    return rule.startswith(f"{STALE}-")


def is_ignored(rule: CheckRule, ignore: Iterable[str]) -> bool:
    """Whether a finding is switched off.

    Args:
        rule: Its code.
        ignore: Codes, or `stale` for all that begin so.

    """
    return any(name == rule or (name == STALE and is_stale(rule)) for name in ignore)


def check_codes(codes: Iterable[str], owner: str) -> None:
    """Refuse codes that no finding has.

    Args:
        codes: What is to be switched off.
        owner: What names them, for the message.

    Raises:
        ProjectError: A code is unknown.

    """
    for code in codes:
        if code not in NAMES:
            hint = did_you_mean(code, NAMES) or f"Codes are {', '.join(NAMES)}."
            raise ProjectError(f"{owner} names an unknown finding '{code}'", hint)
