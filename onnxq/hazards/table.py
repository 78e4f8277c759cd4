"""The table of hazards, `versions.toml`, as records.

Tests: `tests/hazards/test_hazards.py`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from onnxq.hazards.processor import NAMES
from onnxq.text import join_words

Version = tuple[int, int]
Fact = int | str | bool | None
Effect = Literal["wrong", "refused", "accuracy", "speed", "unoptimized"]


def version_of(text: str) -> Version:
    """Return major and minor version of `1.32.0` and the like."""
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


@dataclass(frozen=True)
class Hazard:
    """One row of the table; its keys are described there.

    Attributes:
        id: What JSON calls it.
        effect: Wrong numbers, a model that does not load or run, less accuracy, less speed, or wrong numbers without
            graph optimizations.
        sentence: What happens.
        remedy: What to do.
        source: A pull request, an issue or a source file.
        measured: How it was tried, or `read`.
        finder: Name of the function that finds the nodes it may be about.
        where: The facts that must hold about such a node.
        since: First version that has it; empty for all before `until`.
        until: Last version that has it; empty for all from `since` on.
        processors: Those that have it; empty for all.
        unless: Those among them that have not.

    """

    id: str
    effect: Effect
    sentence: str
    remedy: str
    source: str
    measured: str
    finder: str
    where: dict[str, Any] = field(default_factory=dict)
    since: str = ""
    until: str = ""
    processors: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()

    def in_version(self, version: Version) -> bool:
        """Whether a version of onnxruntime has it."""
        return (not self.since or version >= version_of(self.since)) and (
            not self.until or version <= version_of(self.until)
        )

    def on_processor(self, processor: frozenset[str]) -> bool:
        """Whether a processor has it, as `this_processor` describes one."""
        return (not self.processors or not processor.isdisjoint(self.processors)) and processor.isdisjoint(self.unless)

    def holds(self, facts: dict[str, Fact]) -> bool:
        """Whether the facts about a node are those that the row asks for; a fact that is not known may be any."""
        return all(_holds(wanted, facts.get(name)) for name, wanted in self.where.items())

    def as_dict(self) -> dict[str, Any]:
        """Return what people need of it as plain data for JSON."""
        return {
            "id": self.id,
            "effect": self.effect,
            "since": self.since or None,
            "until": self.until or None,
            "processors": list(self.processors),
            "sentence": self.sentence,
            "remedy": self.remedy,
            "source": self.source,
        }

    @property
    def advice(self) -> str:
        """One line for people: the effect, the versions, and the remedy."""
        return f"{self.scope}: {self.sentence}. {self.remedy}"

    @property
    def scope(self) -> str:
        """Versions and processors, for people: `onnxruntime 1.21 to 1.24 on x86-64 with AMX`."""
        if self.since and self.until:
            versions = f" {self.since}" if self.since == self.until else f" {self.since} to {self.until}"
        elif self.since:
            versions = f" {self.since} and newer"
        else:
            versions = f" {self.until} and older" if self.until else ""
        places = join_words([NAMES[name] for name in self.processors])
        return f"onnxruntime{versions}{f' on {places}' if places else ''}"


def _holds(wanted: Any, fact: Fact) -> bool:
    if fact is None:
        return True
    if isinstance(wanted, list):
        return fact in wanted
    if isinstance(wanted, dict):
        if "not" in wanted:
            return bool(fact != wanted["not"])
        return isinstance(fact, int) and wanted.get("least", fact) <= fact <= wanted.get("most", fact)
    return bool(fact == wanted)


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads((files(__package__) / "versions.toml").read_text("utf-8"))


@cache
def load_hazards() -> tuple[Hazard, ...]:
    """Return all rows, in the order of the file."""
    return tuple(_row(dict(row)) for row in _table()["hazards"])


def _row(row: dict[str, Any]) -> Hazard:
    unless = tuple(row.pop("except", ()))
    return Hazard(**row | {"processors": tuple(row.get("processors", ())), "unless": unless})


def first_version(kind: Literal["opsets", "ir_versions"], number: int) -> str:
    """Return the first onnxruntime that loads an operator set or an IR version; empty where the table has none."""
    return str(_table()[kind].get(str(number), ""))
