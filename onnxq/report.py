"""What a run did, as one object: the command line renders it, and it goes to a file as JSON or Markdown."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onnxq.comparison import Comparison
from onnxq.errors import OutputError
from onnxq.ir import Graph
from onnxq.ir.stored import StoredTensor
from onnxq.quant.plan import Plan
from onnxq.version import __version__

SCHEMA = 1  # of the JSON; docs/cli.md describes it
FLOAT = "float"


@dataclass(frozen=True)
class NodeReport:
    """What happened to one node.

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
class Report:
    """What was planned, and what came of it.

    Attributes:
        source: The float model.
        source_bytes: Its size, external data included.
        recipe: Name of the recipe.
        nodes: Every node of the normalised model, in graph order.
        notes: What normalising did, a sentence each.
        output: The quantized model; None where nothing was written.
        files: Every file that was written, the model first.
        comparison: Float against quantized; None where nothing ran.
        samples: What both ran on, for example `100 samples from calib.npz`.
        seconds: Time that every step took, in order.

    """

    source: Path
    source_bytes: int
    recipe: str
    nodes: tuple[NodeReport, ...]
    notes: tuple[str, ...] = ()
    output: Path | None = None
    files: tuple[Path, ...] = ()
    comparison: Comparison | None = None
    samples: str | None = None
    seconds: tuple[tuple[str, float], ...] = ()

    @classmethod
    def planned(cls, plan: Plan, *, source: Path, notes: Sequence[str] = ()) -> Report:
        """Begin a report with a plan for the model at `source`."""
        nodes = tuple(
            NodeReport(
                name=d.node.name or next((value.name for value in d.node.outputs if value), ""),
                op_type=f"{d.node.domain}.{d.node.op_type}" if d.node.domain else d.node.op_type,
                scheme=d.scheme,
                reason=d.reason,
            )
            for d in plan.decisions
        )
        graph = plan.decisions[0].node.graph if plan.decisions else None
        return cls(source, model_bytes(source, graph), plan.recipe.name, nodes, tuple(notes))

    @property
    def output_bytes(self) -> int | None:
        """Size of the files that were written; None where nothing was."""
        return sum(file.stat().st_size for file in self.files) if self.files else None

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

    def as_dict(self) -> dict[str, Any]:
        """Give the report as plain data for JSON: numbers that are not finite are null."""
        return {
            "schema": SCHEMA,
            "onnxq": __version__,
            "recipe": self.recipe,
            "source": {"path": str(self.source), "bytes": self.source_bytes},
            "output": None
            if self.output is None
            else {"path": str(self.output), "files": [str(f) for f in self.files], "bytes": self.output_bytes},
            "counts": self.counts(),
            "reasons": self.reasons(),
            "notes": list(self.notes),
            "comparison": None if self.comparison is None else comparison_dict(self.comparison, self.samples),
            "seconds": {step: round(seconds, 4) for step, seconds in self.seconds},
            "nodes": [asdict(node) for node in self.nodes],
        }

    def to_json(self) -> str:
        """Write the report as JSON, a line end behind it."""
        return to_json(self.as_dict())

    def to_markdown(self) -> str:
        """Write the report as Markdown."""
        sections = [
            f"# {self.source.name}, recipe {self.recipe}\n",
            self._result_markdown(),
            "## Nodes\n",
            _table(("became", "nodes", "operators"), [(s, n, self._listed(s)) for s, n in self.counts().items()]),
        ]
        if self.reasons():
            sections.append(_table(("nodes left float", "because"), [(n, r) for r, n in self.reasons().items()]))
        if self.notes:
            sections += ["## Before quantizing\n", "".join(f"* {note}\n" for note in self.notes)]
        rows = [(f"`{node.name}`", node.op_type, node.scheme or FLOAT, node.reason) for node in self.nodes]
        sections += ["## Every node\n", _table(("node", "operator", "became", "reason"), rows)]
        return "\n".join(section for section in sections if section)

    def _listed(self, scheme: str) -> str:
        operators = self.operators(None if scheme == FLOAT else scheme)
        return ", ".join(f"{op} {n}" for op, n in operators.items())

    def _result_markdown(self) -> str:
        if self.output is None or self.output_bytes is None or self.comparison is None:
            return "A plan: nothing was written.\n"
        ratio = f"{self.output_bytes / self.source_bytes:.2f} of it" if self.source_bytes else ""
        rows = [("size", f"{self.source_bytes:,} bytes", f"{self.output_bytes:,} bytes", ratio)]
        latency = self.comparison.latency
        if latency:
            rows.append(
                (
                    "latency",
                    f"{latency.float_ms:.3f} ms",
                    f"{latency.quantized_ms:.3f} ms",
                    f"{latency.ratio:.2f} of it",
                )
            )
        outputs = [
            (f"`{o.name}`", decibels(o.sqnr), f"{o.max_abs:.4g}", "" if o.agreement is None else f"{o.agreement:.2f} %")
            for o in self.comparison.outputs
        ]
        written = f"Written to `{self.output}`, compared on {self.samples}.\n"
        head = ("output", "SQNR", "largest error", "agreement")
        return "\n".join([written, _table(("", "float", "quantized", "ratio"), rows), _table(head, outputs)])


def comparison_dict(comparison: Comparison, samples: str | None) -> dict[str, Any]:
    """Give a comparison as plain data for JSON: numbers that are not finite are null."""
    outputs = [{key: _finite(value) for key, value in asdict(output).items()} for output in comparison.outputs]
    latency = None if comparison.latency is None else asdict(comparison.latency)
    return {
        "samples": comparison.samples,
        "data": samples,
        "worst_sqnr": _finite(comparison.worst_sqnr),
        "latency": latency,
        "outputs": outputs,
    }


def to_json(data: Any) -> str:
    """Write plain data as JSON that any parser reads."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def decibels(value: float) -> str:
    """Write an SQNR for people."""
    if math.isinf(value):
        return "equal" if value > 0 else "none"
    return f"{value:.1f} dB"


def model_bytes(path: Path, graph: Graph | None) -> int:
    """Size of a model's file and of the external data that its initializers point to.

    Args:
        path: The model.
        graph: Any graph of it; None where it has no nodes, hence nothing external that matters.

    """
    while graph is not None and graph.parent is not None:
        graph = graph.parent
    locations = {
        value.tensor.external.get("location", "")
        for scope in (graph.graphs() if graph is not None else ())
        for value in scope.initializers.values()
        if isinstance(value.tensor, StoredTensor) and value.tensor.is_external
    }
    files = [path, *(path.parent / location for location in locations)]
    return sum(file.stat().st_size for file in files if file.is_file())


def check_report_path(path: Path, *, force: bool) -> None:
    """Refuse a report file that could not be written, before any work is done.

    Raises:
        OutputError: Its suffix is neither .json nor .md, it exists without `force`, or its folder is of no use.

    """
    if path.suffix not in (".json", ".md"):
        raise OutputError(f"a report cannot be written as '{path.suffix or path.name}'", "Name it .json or .md.")
    if path.is_dir():
        raise OutputError(f"{path} is a folder", "Give the name of the report file.")
    if path.exists() and not force:
        raise OutputError(f"{path} exists already", "Use --force to replace it, or choose another name.")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise OutputError(f"the folder {path.parent} does not exist or cannot be written to", "Choose another place.")


def write_report(report: Report, path: Path, *, force: bool = False) -> None:
    """Write a report as JSON or Markdown, by the suffix of `path`, whole or not at all.

    Raises:
        OutputError: As `check_report_path`, or the disk is full.

    """
    check_report_path(path, force=force)
    content = report.to_json() if path.suffix == ".json" else report.to_markdown()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(content, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise OutputError(f"{path} cannot be written ({error.strerror})", "Choose another place.") from error
    finally:
        temporary.unlink(missing_ok=True)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines)
