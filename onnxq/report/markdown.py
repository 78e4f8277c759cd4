"""A report as Markdown, for pull requests.

Tests: `tests/runtime/test_custom_ops.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from onnxq.text import FLOAT, decibels, milliseconds, noise, percent, printable, size_change, speed_change

if TYPE_CHECKING:
    from onnxq.report.records import ReportData
    from onnxq.verification.records import Comparison

MOST_LAYERS = 40


def markdown(report: ReportData) -> str:
    """Write a report as Markdown."""
    sections = [
        f"# {_plain(report.source.name)}, recipe {_plain(report.recipe)}\n",
        _warnings(report),
        _result(report),
        _inputs(report),
        _families(report),
        _saturation(report),
        _sensitivity(report),
        _layers(report.comparison),
        "## Nodes\n",
        _table(("became", "nodes", "operators"), [(s, n, _listed(report, s)) for s, n in report.counts().items()]),
    ]
    if report.reasons():
        sections.append(_table(("nodes left float", "because"), [(n, _plain(r)) for r, n in report.reasons().items()]))
    if report.notes:
        sections += ["## Notes\n", "".join(f"* {_plain(note)}\n" for note in report.notes)]
    rows = [
        (_code(node.name), _plain(node.op_type), node.scheme or FLOAT, _plain(node.reason)) for node in report.nodes
    ]
    nodes = _table(("node", "operator", "became", "reason"), rows)
    sections.append(f"<details>\n<summary>Every node</summary>\n\n{nodes}\n</details>\n")
    return "\n".join(section for section in sections if section)


def _listed(report: ReportData, scheme: str) -> str:
    operators = report.operators(None if scheme == FLOAT else scheme)
    return ", ".join(f"{_plain(op)} {n}" for op, n in operators.items())


def _result(report: ReportData) -> str:
    if report.output_bytes is None:
        return "A plan: nothing was written.\n"
    made = "Kept in memory" if report.output is None else f"Written to {_code(str(report.output))}"
    change = size_change(report.source_bytes, report.output_bytes)
    rows = [("size", f"{report.source_bytes:,} bytes", f"{report.output_bytes:,} bytes", change)]
    if report.comparison is None:
        written = f"{made}, not compared with the float model.\n"
        return "\n".join([written, _table(("", "float", "quantized", "change"), rows)])
    latency = report.comparison.latency
    if latency:
        before, after = latency.float_ms, latency.quantized_ms
        times = milliseconds(before, after), milliseconds(after, before)
        rows.append(("latency", *times, speed_change(latency.ratio)))
    metric = report.comparison.metric
    if metric is not None:
        values = f"{metric.float_value:.6g}", f"{metric.quantized_value:.6g}", metric.change_words()
        rows.append((_plain(metric.name), *values))
    if report.comparison.decoding is not None:
        rows += [(_plain(row[0]), *row[1:]) for row in report.comparison.decoding.rows()]
    outputs = []
    for output in report.comparison.outputs:
        error = f"{output.max_abs:.4g}" if output.is_compared else ""
        agreement = "" if output.agreement is None else f"{output.agreement:.2f} %"
        outputs.append((_code(output.name), output.sqnr_words(), error, agreement))
    written = f"{made}, compared on {_plain(report.samples or '')}.\n"
    head = ("output", "SQNR", "largest error", "agreement")
    parts = [written, _table(("", "float", "quantized", "change"), rows), _table(head, outputs)]
    sentences = [*report.comparison.spoilt(), *report.comparison.undefined(), *report.comparison.selected()]
    sentences += [report.cross_validation.sentence] if report.cross_validation is not None else []
    parts += ["".join(f"* {_plain(sentence)}\n" for sentence in sentences)]
    return "\n".join(part for part in parts if part)


def _warnings(report: ReportData) -> str:
    """Say what should be known before the result is used."""
    return "".join(f"> **warning:** {_plain(str(warning))}\n>\n" for warning in report.warnings)


def _inputs(report: ReportData) -> str:
    """Say what the samples hold."""
    if not report.inputs:
        return ""
    cells = (one.cells() for one in report.inputs)
    rows = [(_code(name), _plain(kind), *figures) for name, kind, *figures in cells]
    return _table(("input", "type", "least", "greatest", "mean"), rows)


def _families(report: ReportData) -> str:
    """Say what the model is on each family of processors."""
    if not report.families:
        return ""
    rows = [
        (
            family.family + (" (this processor)" if family.here else ""),
            "not known" if family.sqnr is None else decibels(family.sqnr),
            "not known" if family.latency is None else speed_change(family.latency),
            "8-bit products saturate there" if family.saturates else "",
        )
        for family in report.families
    ]
    return "\n".join(["## Processors\n", _table(("family", "SQNR", "predicted latency", ""), rows)])


def _saturation(report: ReportData) -> str:
    """Say what keeps products within 16 bits on x86 processors without VNNI, layers that need it first."""
    if not report.saturation:
        return ""
    needed = sorted(report.saturation, key=lambda cure: cure.cure == "none needed")
    rows = [
        (_code(one.node), one.cure, "" if one.pairs is None else str(one.pairs), _plain(one.because)) for one in needed
    ]
    text = "What keeps the products of each layer exact on x86 processors without VNNI.\n"
    return "\n".join(["## Saturation\n", text, _table(("node", "cure", "pairs", "because"), rows)])


def _sensitivity(report: ReportData) -> str:
    """Say which nodes add most to the error of the outputs."""
    if not report.sensitivity:
        return ""
    ranked = sorted(report.sensitivity, key=lambda one: (-one.share, one.tensor))[:MOST_LAYERS]
    rows = [
        (_code(one.node), _plain(one.op_type), percent(one.share, 1), "run alone" if one.exact else "estimated")
        for one in ranked
    ]
    text = "Share of the outputs' error that comes from each node, by itself; the most first.\n"
    return "\n".join(["## What each node adds\n", text, _table(("node", "operator", "share", ""), rows)])


def _layers(comparison: Comparison | None) -> str:
    """Say where the error enters, the worst layers first."""
    if comparison is None or not (comparison.layers or comparison.no_layers):
        return ""
    if comparison.no_layers:
        return f"## Layers\n\nNot compared: {_plain(comparison.no_layers)}.\n"
    rows = [
        (_code(layer.node), _plain(layer.op_type), noise(layer.own), noise(layer.inherited), noise(layer.sqnr))
        for layer in comparison.worst_layers(MOST_LAYERS)
    ]
    head = ("node", "operator", "own", "inherited", "in all")
    text = "SQNR of what each node adds itself, of what its inputs bring, and of both; the worst by their own first.\n"
    return "\n".join(["## Layers\n", text, _table(head, rows)])


def _plain(text: str) -> str:
    """Keep text from being read as markup."""
    return re.sub(r"([\\*<\[`])", r"\\\1", printable(text))


def _code(name: str) -> str:
    """Set a name as code, in more backticks than it has itself."""
    name = printable(name)
    fence = "`" * (max((len(run) for run in re.findall("`+", name)), default=0) + 1)
    return f"{fence}{name}{fence}" if len(fence) == 1 else f"{fence} {name} {fence}"


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines)
