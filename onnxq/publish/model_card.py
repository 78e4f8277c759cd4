"""The table of a model card: size, SQNR, metric and predicted latency of each file.

Tests: `tests/publish/test_export.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from onnxq.report import Report
from onnxq.text import FLOAT, decibels, size, speed_change
from onnxq.version import __version__

NOTHING = "–"
OF_HUBS = "_data"  # at the end of a file of weights as hubs name it


@dataclass(frozen=True)
class ExportedFile:
    """One file that was written.

    Attributes:
        name: Its path in the folder.
        serves: The computer or setting that loads it.
        recipe: Name of the recipe; `float` for the float model.
        bytes: Its size, external data included.
        sqnr: Of the worst output on the samples, in dB, on the worst family that the file is for. None for the float
            model, and if it could not be evaluated.
        samples: What it was compared on; None for the float model.
        metric: Value of the task metric; None if none was asked for.
        data: Path of the file with its weights; None where they are in the file itself.
        latencies: By family of processors, its predicted latency as a share of float's.

    """

    name: str
    serves: str
    recipe: str
    bytes: int
    sqnr: float | None = None
    samples: str | None = None
    metric: float | None = None
    latencies: Mapping[str, float] = field(default_factory=dict)
    data: str | None = None

    @classmethod
    def of_float(cls, name: str, serves: str, path: Path) -> Self:
        """Describe a copy of the float model."""
        data = path.with_name(f"{path.name}.data")
        total = path.stat().st_size + (data.stat().st_size if data.exists() else 0)
        return cls(name, serves, FLOAT, total)

    @classmethod
    def of_report(cls, name: str, serves: str, report: Report, families: Collection[str]) -> Self:
        """Describe a quantized model by the report of its run.

        Args:
            name: Its path in the folder.
            serves: The computer or setting that loads it.
            report: Of `quantize`.
            families: Those that the file is for. Their SQNR counts saturation, whichever processor ran the model.

        """
        comparison = report.comparison
        measured = None if comparison is None or comparison.metric is None else comparison.metric.quantized_value
        latencies = {one.family: one.latency for one in report.families if one.latency is not None}
        found = [one.sqnr for one in report.families if one.family in families]
        known = [sqnr for sqnr in found if sqnr is not None]
        sqnr = min(known) if known and len(known) == len(found) else None
        if not found and comparison is not None:
            sqnr = comparison.worst_sqnr
        return cls(name, serves, report.recipe, report.output_bytes or 0, sqnr, report.samples, measured, latencies)

    def as_dict(self) -> dict[str, Any]:
        """Return the record as plain data for JSON."""
        return asdict(self)


def table(files: Sequence[ExportedFile]) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of the table."""
    families = list(dict.fromkeys(family for file in files for family in file.latencies))
    measured = any(file.metric is not None for file in files)
    head = ["file", "for", "size", "SQNR", *(["metric"] if measured else []), *families]
    rows = []
    for file in files:
        unknown = NOTHING if file.recipe == FLOAT else "not known"
        sqnr = unknown if file.sqnr is None else decibels(file.sqnr)
        row = [file.name, file.serves, size(file.bytes), sqnr]
        if measured:
            row.append(NOTHING if file.metric is None else f"{file.metric:.4g}")
        latencies = (file.latencies.get(family) for family in families)
        rows.append([*row, *(NOTHING if one is None else speed_change(one) for one in latencies)])
    return head, rows


def _line(cells: Sequence[str]) -> str:
    """Write a row of a table; a bar in a cell, as in the name of a file, is no border."""
    escaped = [cell.replace("|", r"\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def model_card(ecosystem: str, files: Sequence[ExportedFile], skipped: Sequence[tuple[str, str]], left_out: str) -> str:
    """Write the part of a model card that describes the files, as Markdown."""
    head, rows = table(files)
    lines = [
        f"## ONNX files for {ecosystem}",
        "",
        _line(head),
        f"|{'---|' * len(head)}",
        *(_line([f"`{row[0]}`", *row[1:]]) for row in rows),
        "",
        "SQNR is the signal-to-quantization-noise ratio of the worst output against the float model, on the worst of",
        "the processors that the file is for. 20 dB is an error of a tenth of the signal, 40 dB of a hundredth.",
        "Columns of processors give the predicted speed against float.",
    ]
    compared = dict.fromkeys(file.samples for file in files if file.samples)
    if compared:
        lines += ["", f"Compared on {', '.join(str(one) for one in compared)}."]
    outside = [file for file in files if file.data is not None]
    if outside:
        named = ", ".join(f"`{file.data}`" for file in outside)
        lines += ["", f"Weights are in files of their own: {named}."]
        if any(str(file.data).endswith(OF_HUBS) for file in outside):
            lines += ["In transformers.js, load such a model with `use_external_data_format: true`."]
    lines += [f"\nNot written: `{name}`: {reason}." for name, reason in skipped]
    if left_out:
        lines += ["", f"Not written: {left_out}."]
    return "\n".join([*lines, "", f"Quantized with onnxq {__version__}.", ""])
