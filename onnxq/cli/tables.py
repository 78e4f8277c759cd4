"""Reports as compact tables for a terminal, or as JSON.

Tests: `tests/cli/test_cli_tables.py`.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onnxq.cli.options import Format
from onnxq.cli.terminal import TIE, show
from onnxq.data.input_summary import InputSummary
from onnxq.explanation.inspect import Inspection
from onnxq.report import Report
from onnxq.text import FLOAT, decibels, milliseconds, percent, printable, size, size_change, speed_change
from onnxq.verification.families import FamilyFigures
from onnxq.verification.records import Comparison, Contribution, Decoding, Latency, MetricComparison

Cell = str | Text
MOST_REASONS = 12  # lines; the rest is counted
MOST_ALIKE = 3  # nodes that were made more accurate for one reason; others are counted
MOST_OUTPUTS = 20
MOST_CONTRIBUTIONS = 15
MOST_INPUTS = 16
INDENT, GAP = 2, 3
FAR_OFF = 0.25  # between a measured latency and the predicted one
LEAST_MS = 1.0  # of a run in float: shorter ones vary by as much
LAST_COLUMN = 24  # the least that a sentence needs
SCALE = "20 dB is an error of a tenth of the signal, 40 dB of a hundredth: higher is better"


class _Columns:
    """Rows in columns without lines.

    On a narrow terminal, the last cell of each row goes below the others, and each but the first has its title with it.
    """

    def __init__(self, head: Sequence[str], rows: Sequence[Sequence[Text]], right: Sequence[int]) -> None:
        self.head = head
        self.rows = rows
        self.right = right

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self.rows:
            return
        widths = [max(cell_len(cell.plain) for cell in column) for column in zip(*self.rows, strict=True)]
        taken = sum(max(width, len(title)) + GAP for width, title in zip(widths[:-1], self.head[:-1], strict=True))
        title_word = max(map(cell_len, self.head[-1].split()), default=0)
        if INDENT + taken + max(min(widths[-1], LAST_COLUMN), title_word) > options.max_width:
            yield from self._stacked()
            return
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim", show_edge=False)
        for index, title in enumerate(self.head):
            last = index == len(self.head) - 1
            table.add_column(
                title, justify="right" if index in self.right else "left", no_wrap=not last, overflow="fold"
            )
        for row in self.rows:
            table.add_row(*row)
        yield Padding(table, (0, 0, 0, INDENT))

    def _stacked(self) -> RenderResult:
        titles = ["", *self.head[1:]]
        for row in self.rows:
            *cells, last = [
                Text.assemble((f"{title} ", "dim"), cell) if title and cell.plain else cell
                for title, cell in zip(titles, row, strict=True)
            ]
            yield Padding(Text(" " * GAP).join(cell for cell in cells if cell.plain), (0, 0, 0, INDENT))
            if last.plain:
                yield Padding(last, (0, 0, 0, INDENT + 4))


def write_report(report: Report, output_format: Format, *, planned: bool = False) -> None:
    """Print what a run did, or the decision about every node of one that is only planned."""
    if output_format is Format.JSON:
        sys.stdout.write(report.to_json())
    else:
        show(*(plan_tables if planned else report_tables)(report))


def columns(head: Sequence[str], rows: Sequence[Sequence[Cell]], right: Sequence[int] = ()) -> RenderableType:
    """Lay rows out in columns; those whose indices are in `right` are aligned to the right."""
    return _Columns(head, [[c if isinstance(c, Text) else Text(printable(c)) for c in row] for row in rows], right)


def report_tables(report: Report) -> Iterator[RenderableType]:
    """Lay out what a run wrote, lost, and gained."""
    yield _headline(report, f"{report.source} → {report.output}")
    yield ""
    rows = [_size_row(report)] if report.output_bytes is not None else []
    if report.comparison is not None and report.comparison.latency is not None:
        rows.append(_latency_row(report.comparison))
    yield columns(("", "float", "quantized", ""), rows, right=(1, 2))
    yield ""
    if report.inputs:
        yield input_table(report.inputs)
        yield ""
    if report.comparison is not None:
        yield from comparison_tables(report.comparison, report.samples, made_up=report.made_up)
        if report.cross_validation is not None:
            yield Padding(Text(printable(report.cross_validation.sentence)), (0, 0, 0, INDENT))
        yield ""
        if report.comparison.decoding is not None:
            yield decoding_table(report.comparison.decoding)
            yield ""
        if report.comparison.metric is not None:
            yield metric_table(report.comparison.metric)
            yield ""
    if report.families:
        yield from family_tables(report.families, report.comparison.latency if report.comparison is not None else None)
        yield ""
    yield from node_tables(report)


def input_table(inputs: Sequence[InputSummary]) -> RenderableType:
    """Lay out name, type, least, greatest and mean of every input."""
    shown = inputs[: MOST_INPUTS if len(inputs) > MOST_INPUTS + 1 else len(inputs)]
    rows = [one.cells() for one in shown]
    if len(shown) < len(inputs):
        rows.append((f"and {len(inputs) - len(shown)} more", "", "", "", ""))
    return columns(("input", "type", "least", "greatest", "mean"), rows, right=(2, 3))


def comparison_tables(comparison: Comparison, samples: str | None, *, made_up: bool) -> Iterator[RenderableType]:
    """Lay out the difference of every output on some samples, which may be random numbers that are made up."""
    rows: list[tuple[Cell, ...]] = []
    for output in comparison.outputs[:MOST_OUTPUTS]:
        agreement = "" if output.agreement is None else f"{output.agreement:.2f} %"
        error = f"{output.max_abs:.3g}" if output.is_compared else ""
        rows.append((output.name, Text(output.sqnr_words(), style="bold"), error, agreement))
    if len(comparison.outputs) > MOST_OUTPUTS:
        rows.append(
            (f"and {len(comparison.outputs) - MOST_OUTPUTS} more", decibels(comparison.worst_sqnr), "", "worst of all")
        )
    yield columns(("output", "SQNR", "largest error", "agreement"), rows, right=(1, 2, 3))
    for sentence in comparison.selected():
        yield Padding(Text(printable(sentence), style="dim"), (0, 0, 0, INDENT))
    for sentence in comparison.undefined():
        yield Padding(Text(printable(sentence), style="yellow"), (0, 0, 0, INDENT))
    if any(math.isfinite(output.sqnr) for output in comparison.outputs):
        yield Padding(Text(SCALE, style="dim"), (0, 0, 0, INDENT))
    if samples:
        yield Padding(Text(printable(f"compared on {samples}"), style="dim"), (0, 0, 0, INDENT))
    if made_up:
        advice = "random numbers show that the model runs, not how accurate it is: give --data for that"
        yield Padding(Text(advice, style="yellow"), (0, 0, 0, INDENT))


def family_tables(families: Sequence[FamilyFigures], measured: Latency | None) -> Iterator[RenderableType]:
    """Lay out accuracy and latency on each family of processors, and where this one differs from its prediction."""
    rows: list[tuple[Cell, ...]] = []
    for family in families:
        sqnr = "not known" if family.sqnr is None else decibels(family.sqnr)
        latency = "" if family.latency is None else speed_change(family.latency)
        rows.append((family.family, sqnr, latency, "this processor" if family.here else ""))
    yield columns(("processors", "SQNR", "predicted latency", ""), rows, right=(1,))
    sentence = mispredicted(families, measured)
    if sentence:
        yield Padding(Text(sentence, style="yellow"), (0, 0, 0, INDENT))


def mispredicted(families: Sequence[FamilyFigures], measured: Latency | None) -> str:
    """Say that the latency measured here is another one than the predicted; nothing where it is about the same."""
    here = next((family.latency for family in families if family.here), None)
    if here is None or measured is None or measured.float_ms < LEAST_MS or abs(measured.ratio / here - 1) <= FAR_OFF:
        return ""
    return (
        f"measured here: {speed_change(measured.ratio)}, predicted: {speed_change(here)}; "
        "--target native --benchmark decides by times measured on this processor"
    )


def latency_table(comparison: Comparison) -> Iterator[RenderableType]:
    """Lay out both latencies alone."""
    if comparison.latency is not None:
        yield columns(("", "float", "quantized", ""), [_latency_row(comparison)], right=(1, 2))


def metric_table(metric: MetricComparison) -> RenderableType:
    """Lay out what a metric says about both models."""
    row = (metric.name, f"{metric.float_value:.6g}", f"{metric.quantized_value:.6g}", metric.change_words())
    return columns(("metric", "float", "quantized", ""), [row], right=(1, 2))


def decoding_table(decoding: Decoding) -> RenderableType:
    """Lay out what users of a decoder see of both models."""
    return columns(("decoding", "float", "quantized", ""), decoding.rows(), right=(1, 2))


def node_tables(report: Report) -> Iterator[RenderableType]:
    """Lay out how many nodes became what, and why the others stayed float."""
    rows = [
        (scheme, str(count), _listing(report.operators(None if scheme == FLOAT else scheme)))
        for scheme, count in report.counts().items()
    ]
    yield columns(("became", "nodes", "operators"), rows, right=(1,))
    if report.returned:
        yield ""
        yield columns(("made more accurate", "because"), _returned_rows(report))
    left = Counter(n.reason for n in report.nodes if n.scheme is None and n.name not in report.returned)
    reasons = left.most_common()
    if reasons:
        most = _shown(len(reasons), MOST_REASONS)
        shown = [(str(count), reason) for reason, count in reasons[:most]]
        rest = sum(count for _, count in reasons[most:])
        if rest:
            shown.append((str(rest), "other reasons: see `onnxq plan`"))
        yield ""
        yield columns(("float", "because"), shown, right=(0,))
    if report.notes:
        yield ""
        yield columns(("notes",), [(note,) for note in report.notes])


def _shown(count: int, most: int) -> int:
    """Return how many of some lines to show; a line about one line that is left out would save none."""
    return most if count > most + 1 else count


def _returned_rows(report: Report) -> list[tuple[Cell, ...]]:
    """Pair nodes that a search made more accurate with the reason; of many with one reason, a few are named."""
    alike: dict[str, list[str]] = {}
    for node in report.nodes:
        if node.name in report.returned:
            alike.setdefault(node.reason, []).append(node.name)
    rows: list[tuple[Cell, ...]] = []
    for reason, names in alike.items():
        most = _shown(len(names), MOST_ALIKE)
        rows += [(name, reason) for name in names[:most]]
        if names[most:]:
            rows.append((f"{len(names) - most} more", reason))
    return rows


def plan_tables(report: Report) -> Iterator[RenderableType]:
    """Lay out the decision about every node, the counts at the end where they stay in view."""
    yield _headline(report, str(report.source))
    yield ""
    rows = [
        (node.name, node.op_type, Text(node.scheme or FLOAT, style="green" if node.scheme else "dim"), node.reason)
        for node in report.nodes
    ]
    yield columns(("node", "operator", "becomes", "reason"), rows)
    yield ""
    if report.sensitivity:
        yield from sensitivity_table(report.sensitivity)
        yield ""
    yield from node_tables(report)


def sensitivity_table(contributions: Sequence[Contribution]) -> Iterator[RenderableType]:
    """Lay out what nodes add to the error of the outputs, the most first."""
    ranked = sorted(contributions, key=lambda c: (-c.noise, c.tensor))
    rows: list[tuple[Cell, ...]] = [
        (
            c.node,
            c.op_type,
            c.scheme,
            percent(c.share, 1),
            decibels(-10 * math.log10(c.noise) if c.noise > 0 else math.inf),
            "run alone" if c.exact else "estimated",
        )
        for c in ranked[:MOST_CONTRIBUTIONS]
    ]
    yield columns(("adds most error", "operator", "becomes", "share", "alone", ""), rows, right=(3, 4))
    if len(ranked) > MOST_CONTRIBUTIONS:
        rest = percent(sum(c.share for c in ranked[MOST_CONTRIBUTIONS:]), 1)
        yield Padding(Text(f"{len(ranked) - MOST_CONTRIBUTIONS} more: {rest}", style="dim"), (0, 0, 0, INDENT))


def _headline(report: Report, text: str) -> Text:
    return Text.assemble((printable(text), "bold"), (f"   recipe {printable(report.recipe)}", "dim"))


def _size_row(report: Report) -> tuple[Cell, ...]:
    before, after = report.source_bytes, report.output_bytes or 0
    change = Text(size_change(before, after), style="green" if after < before else "yellow")
    return "size", size(before), size(after), change


def _latency_row(comparison: Comparison) -> tuple[Cell, ...]:
    latency = comparison.latency
    assert latency is not None
    before, after = latency.float_ms, latency.quantized_ms
    ratio = Text(speed_change(latency.ratio), style="green" if latency.ratio < 1 else "yellow")
    how = Text(f" (median of {latency.pairs}, one thread)", style="dim")
    return "latency", milliseconds(before, after), milliseconds(after, before), Text.assemble(ratio, how)


def _listing(counts: Mapping[str, int], most: int = 8) -> Text:
    items = [f"{printable(name)}{TIE}{count}" for name, count in counts.items()]
    more = f", {len(items) - most} more" if len(items) > most else ""
    return Text(", ".join(items[:most]) + more)


def inspection_tables(facts: Inspection) -> Iterator[RenderableType]:
    """Lay out what is in a model."""
    opsets = ", ".join(f"{domain} {version}" for domain, version in facts.opsets.items())
    yield Text.assemble(
        (printable(str(facts.path)), "bold"), (f"   {size(facts.file_bytes)}, IR {facts.ir_version}, {opsets}", "dim")
    )
    yield ""
    ends = [("input", name, kind) for name, kind in facts.inputs]
    ends += [("output", name, kind) for name, kind in facts.outputs]
    yield columns(("", "name", "type"), ends)
    yield ""
    total = max(facts.weight_bytes, 1)
    rows = [(name, str(n), size(b), f"{100 * b / total:.1f} %") for name, (n, b) in facts.weights.items()]
    yield columns(("weights", "tensors", "bytes", "share"), rows, right=(1, 2, 3))
    yield ""
    yield columns(("operator", "nodes"), [(name, str(count)) for name, count in facts.operators.items()], right=(1,))
    yield ""
    share = Text(
        f"{100 * facts.small_share:.1f} % of the weight bytes are in 8 bits or fewer; {facts.quantized} of "
        f"{facts.nodes} nodes compute in integers, {facts.conversions} convert to or from them"
    )
    yield Padding(share, (0, 0, 0, INDENT))
    if facts.made_by:
        version = facts.made_by.get("onnxq_version", "?")
        source = facts.made_by.get("onnxq_source_sha256", "?")[:16]
        made = Text(printable(f"made by onnxq {version} from a model with SHA-256 {source}…"), "dim")
        yield Padding(made, (0, 0, 0, INDENT))
