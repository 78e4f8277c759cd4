"""A report as one HTML file: nothing is loaded from anywhere, and every chart and table is in it.

Matplotlib draws the charts, Jinja2 fills `page.html.j2`; both come with the extra `report` and are imported when a page
is asked for. The same report gives the same bytes.

Tests: `tests/report/test_report_html.py`.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from onnxq.data.input_summary import short
from onnxq.errors import OutputError
from onnxq.report.activations import Activation
from onnxq.report.page_parts import page_part, render
from onnxq.report.picture_sheet import picture_sheet, sheet_style
from onnxq.targets.host import processor_name
from onnxq.text import (
    FLOAT,
    decibels,
    format_drop,
    milliseconds,
    noise,
    percent,
    printable,
    size,
    size_change,
    speed_change,
)
from onnxq.verification.records import Contribution, LayerComparison
from onnxq.version import __version__, installed_version

if TYPE_CHECKING:
    from onnxq.report.records import ReportData

NEEDED = {"matplotlib": "Matplotlib", "jinja2": "Jinja2"}
MOST_HISTOGRAMS = 6
MOST_BARS = 20
MOST_SIZES = 15


FILTERS: dict[str, Callable[..., str]] = {
    "decibels": decibels,
    "drop": format_drop,
    "figure": lambda value, digits=4: _figure(value, digits),
    "moment": lambda made: _moment(made),
    "ms": milliseconds,
    "name": printable,
    "noise": noise,
    "percent": percent,
    "short": short,
    "size": size,
    "speed": speed_change,
}


def check_extra() -> None:
    """Refuse an HTML report where what draws it is not installed.

    Raises:
        OutputError: Names what is missing, and how to install it.

    """
    missing = [name for module, name in NEEDED.items() if find_spec(module) is None]
    if missing:
        raise OutputError(
            f"an HTML report needs {' and '.join(missing)}, not installed here", "Run `pip install 'onnxq[report]'`."
        )


def html(report: ReportData) -> str:
    """Write a report as one HTML file.

    Raises:
        OutputError: Matplotlib or Jinja2 is missing.

    """
    check_extra()
    from markupsafe import Markup

    script, style = page_part("filter.js"), page_part("page.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return render(
        "page.html.j2",
        FILTERS,
        report=report,
        script=Markup(script),  # ours, and the page's policy runs no other
        script_hash=digest,
        style=Markup(style + sheet_style()),
        pictures=picture_sheet(report.pictures),
        charts={key: None if svg is None else Markup(svg) for key, svg in _charts(report).items()},
        histograms=[(activation, Markup(svg)) for activation, svg in _histograms(worst_activations(report))],
        input_histograms=[(activation, Markup(svg)) for activation, svg in _histograms(_of_inputs(report))],
        most_time=max((max(one.float_ms, one.quantized_ms) for one in report.operator_times), default=0.0),
        most_sizes=MOST_SIZES,
        rows=_rows(report),
        change=None if report.output_bytes is None else size_change(report.source_bytes, report.output_bytes),
        versions=_versions(),
        processor=processor_name(),
        verdict=verdict(report),
        warnings=report.warnings,
        float_name=FLOAT,
        infinity=math.inf,
    )


def verdict(report: ReportData) -> str:
    """Say in one sentence what a run gained and lost; empty where nothing was compared."""
    compared = report.comparison
    if report.output_bytes is None or compared is None:
        return ""
    parts = [size_change(report.source_bytes, report.output_bytes)]
    if compared.latency is not None:
        parts.append(speed_change(compared.latency.ratio))
    worst = compared.worst_sqnr
    lost = "equal outputs"
    if worst == -math.inf:
        lost = next(f"an output that {output.lost()}" for output in compared.measured() if output.sqnr == worst)
    elif worst < math.inf:
        lost = f"an error of {_figure(100 * 10 ** (-worst / 20), 2)} % at the worst output"
    others = "" if report.cross_validation is None else f" SQNR {report.cross_validation.sentence}."
    return f"The quantized model is {' and '.join(parts)}, with {lost}.{others}"


def _charts(report: ReportData) -> dict[str, str | None]:
    from onnxq.report.charts import FLOAT_NOISE, bar_chart, error_chart

    layers = report.comparison.layers if report.comparison is not None else ()
    worst = report.comparison.worst_layers(MOST_BARS) if report.comparison is not None else []
    worst = [layer for layer in worst if -math.inf < layer.own < FLOAT_NOISE]
    bars = None
    if worst:
        bars = bar_chart(
            [layer.node for layer in worst],
            [100 * 10 ** (-layer.own / 20) for layer in worst],
            "own error (% of the tensor's root mean square)",
            "Layers with the largest errors of their own",
        )
    shares = None
    if report.sensitivity:
        ranked = _by_share(report.sensitivity)[:MOST_BARS]
        shares = bar_chart(
            [contribution.node for contribution in ranked],
            [100 * contribution.share for contribution in ranked],
            "share of the outputs' error (%)",
            "Nodes that add most to the error of the outputs",
        )
    return {"errors": error_chart(layers), "bars": bars, "shares": shares}


def _by_share(contributions: Sequence[Contribution]) -> list[Contribution]:
    return sorted(contributions, key=lambda contribution: (-contribution.share, contribution.tensor))


def _histograms(activations: Sequence[Activation]) -> list[tuple[Activation, str]]:
    from onnxq.report.charts import histogram_chart

    return [(activation, histogram_chart(activation)) for activation in activations]


def _of_inputs(report: ReportData) -> list[Activation]:
    """Return the calibrated activations that are inputs of the model."""
    names = {one.name for one in report.inputs}
    return [one for one in report.activations if one.elements and one.tensor in names][:MOST_HISTOGRAMS]


def worst_activations(report: ReportData, most: int = MOST_HISTOGRAMS) -> list[Activation]:
    """Choose the activations to show: those of the worst layers, then the coarsest.

    The worst layers are those that add most to the outputs' error. If that was not measured, they are those with the
    largest errors of their own.
    """
    seen = [activation for activation in report.activations if activation.elements]
    layers = report.comparison.worst_layers(len(report.comparison.layers)) if report.comparison is not None else []
    names = [contribution.node for contribution in _by_share(report.sensitivity)] + [layer.node for layer in layers]
    ranks = {name: rank for rank, name in enumerate(dict.fromkeys(names))}
    coarsest = sorted(seen, key=lambda activation: activation.sqnr)
    last = len(ranks)
    return sorted(coarsest, key=lambda a: min((ranks.get(node, last) for node in a.nodes), default=last))[:most]


def _rows(report: ReportData) -> list[dict[str, Any]]:
    """Return every node with the error of its first compared output."""
    layers: dict[str, LayerComparison] = {}
    for layer in report.comparison.layers if report.comparison is not None else ():
        layers.setdefault(layer.node, layer)
    return [{"node": node, "layer": layers.get(node.name)} for node in report.nodes]


def _versions() -> dict[str, str]:
    found = {name: installed_version(name) for name in ("onnx", "onnxruntime", "numpy")}
    return {"onnxq": __version__, **{name: version for name, version in found.items() if version is not None}}


def _moment(made: str) -> str:
    """Write a moment in UTC as people read it."""
    return made.replace("T", " ").replace("+00:00", " UTC")


def _figure(value: float | None, digits: int) -> str:
    if value is None:
        return ""
    return f"{value:.{digits}g}" if math.isfinite(value) else "not finite"
