"""The hazards that apply to a quantized model, and the oldest onnxruntime that it needs.

Tests: `tests/hazards/test_hazards.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from onnxq.hazards.finders import FINDERS, Occurrence
from onnxq.hazards.processor import this_processor
from onnxq.hazards.table import Hazard, Version, first_version, load_hazards, version_of
from onnxq.ir import Model

ARCHITECTURES = ("x86-64", "arm64")  # of which `least_onnxruntime` tells
BREAKING = ("wrong", "refused")


@dataclass(frozen=True)
class FoundHazard:
    """A hazard that applies to a model.

    Attributes:
        hazard: The row of the table.
        nodes: The nodes that it is about, by name, in graph order.
        here: Whether it applies to the onnxruntime that is installed, on this processor; else it applies elsewhere.

    """

    hazard: Hazard
    nodes: tuple[str, ...]
    here: bool

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        return {**self.hazard.as_dict(), "here": self.here, "nodes": list(self.nodes)}


def find_hazards(
    model: Model, version: str | None = None, processor: frozenset[str] | None = None
) -> tuple[FoundHazard, ...]:
    """List the hazards that apply to a model: those here first, then those of other versions and processors.

    Args:
        model: A quantized model; no weight is read.
        version: Of onnxruntime; the one installed by default.
        processor: As `this_processor` describes it; the one at hand by default.

    """
    known = _installed() if version is None else version_of(version)
    local = this_processor() if processor is None else processor
    sites: dict[str, list[Occurrence]] = {}
    found = []
    for row in load_hazards():
        if row.finder not in sites:
            sites[row.finder] = list(FINDERS[row.finder](model))
        nodes = tuple(node.display_name for node, facts in sites[row.finder] if row.holds(facts))
        if nodes:
            found.append(FoundHazard(row, nodes, row.in_version(known) and row.on_processor(local)))
    return tuple(sorted(found, key=lambda finding: not finding.here))


def least_onnxruntime(model: Model, findings: Iterable[FoundHazard] | None = None) -> dict[str, str]:
    """Return by architecture the first onnxruntime from which on a model loads, runs and gives right results.

    Operator set, IR version and the table of hazards tell it; what a single kernel needs beyond these is not known. An
    architecture is left out where no version is known that the model runs with.

    Args:
        model: A quantized model.
        findings: What `find_hazards` found of it, if that is known already.

    """
    rows = [finding.hazard for finding in (find_hazards(model) if findings is None else findings)]
    stamps = [first_version("opsets", model.opset), first_version("ir_versions", model.ir_version)]
    found = {}
    for architecture in ARCHITECTURES:
        mine = [
            row for row in rows if row.effect in BREAKING and (not row.processors or architecture in row.processors)
        ]
        if all(stamps) and all(row.until for row in mine):
            needed = [version_of(stamp) for stamp in stamps] + [_behind(row) for row in mine]
            found[architecture] = ".".join(str(part) for part in max(needed))
    return found


def _behind(row: Hazard) -> Version:
    major, minor = version_of(row.until)
    return major, minor + 1


def _installed() -> Version:
    import onnxruntime

    return version_of(onnxruntime.__version__)
