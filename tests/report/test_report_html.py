"""The HTML report: one file that loads nothing, with everything escaped, the same bytes every time."""

import math
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from onnxq.calibration.qparams import activation_qparams
from onnxq.calibration.stats import TensorStats
from onnxq.errors import OutputError
from onnxq.pipeline.quantize import quantize
from onnxq.report import NodeReport, Report, check_report_path, write_report
from onnxq.report.activations import Activation, describe_activation
from onnxq.report.details import Limit
from onnxq.report.html import verdict, worst_activations
from onnxq.verification.records import (
    Comparison,
    Contribution,
    Latency,
    LayerComparison,
    MetricComparison,
    OutputComparison,
)

VOID = {"meta", "input", "br", "link", "img", "hr"}
EVIL = "<script>alert('x')</script>\"&$\\frac{1}{0}$"


def activation(name: str = "t", low: float = -3.0, high: float = 5.0, node: str = "n") -> Activation:
    values = np.random.default_rng(1).normal(size=4000).astype(np.float32)
    return describe_activation(name, [node], TensorStats.of(values), activation_qparams(low, high))


@pytest.fixture(scope="module")
def report() -> Report:
    output = Path("q.onnx")
    layers = (
        LayerComparison("first", "Conv", "a", 45.0, 45.0, math.inf, 0.1),
        LayerComparison(EVIL, "Gemm", "b", 39.0, 41.0, 44.0, 0.2),
        LayerComparison("same", "Relu", "c", 39.0, math.inf, 39.0, 0.2),
    )
    outputs = (
        OutputComparison("y", "float32", 10, False, 31.25, 0.125, 0.999, 97.5),
        OutputComparison(EVIL, "float32", 10, True, math.inf, 0.0, None, None),
    )
    return Report(
        source=Path("m.onnx"),
        source_bytes=1000,
        recipe="auto",
        nodes=(
            NodeReport("first", "Conv", "static-int8", "in 8 bit"),
            NodeReport(EVIL, EVIL, None, f"because of {EVIL}"),
            NodeReport("same", "Relu", None, "it is odd"),
        ),
        notes=(f"did {EVIL}",),
        output=output,
        files=(output,),
        output_bytes=250,
        comparison=Comparison(outputs, 5, Latency(2.0, 1.0, 0.5, 100), layers),
        samples="5 samples from d.npz",
        seconds=(("load", 0.5), ("plan", 0.25)),
        rules=f"name = 'auto'\n# {EVIL}\n",
        activations=(activation("first_in", node="first"), activation(EVIL, -0.5, 0.25, node=EVIL)),
    )


@pytest.fixture(scope="module")
def text(report: Report) -> str:
    """The page of the report: drawing its charts takes a second."""
    return report.to_html()


class Page(HTMLParser):
    """Reads a page: elements, their text, and whether what opens closes."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        (self.scripts if self.open and self.open[-1] == "script" else self.text).append(data)

    def all(self, tag: str) -> Iterator[dict[str, str | None]]:
        return (attributes for name, attributes in self.elements if name == tag)


def test_it_is_well_formed_and_loads_nothing(text: str) -> None:
    page = Page(text)
    assert text.startswith("<!DOCTYPE html>")
    assert page.open == []
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", text)
    for tag, attributes in page.elements:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base"}
        assert "src" not in attributes
        assert not any(name.startswith("on") for name in attributes), attributes
        for name in ("href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith("#")
    (policy,) = (meta for meta in page.all("meta") if "http-equiv" in meta)
    assert "default-src 'none'" in str(policy["content"])


def test_identifiers_are_given_once_unless_they_mean_the_same(text: str) -> None:
    page = Page(text)
    ids = [
        attributes["id"] for tag, attributes in page.elements if "id" in attributes and tag not in {"path", "clippath"}
    ]
    assert len(ids) == len(set(ids))
    used = {target for attributes in page.elements for target in re.findall(r"#(\w{9,})", str(attributes))}
    assert used <= {str(attributes["id"]) for _, attributes in page.elements if "id" in attributes}


def test_everything_is_escaped(text: str) -> None:
    page = Page(text)
    assert len(page.scripts) == 1
    assert "alert" not in page.scripts[0]
    shown = "".join(page.text)
    assert shown.count(EVIL) >= 8  # output, layer, tensor, node, operator, reason, note, recipe
    assert any(str(svg["aria-label"]).startswith(f"Histogram of {EVIL}") for svg in page.all("svg"))


def test_what_the_page_says(text: str) -> None:
    page = Page(text)
    shown = " ".join("".join(page.text).split())
    for words in (
        "250 bytes",
        "4.0× smaller, from 1.0 kB",
        "2.0× faster, from 2.00 ms; median of 100, one thread",
        "31.2 dB",
        "97.50 %",
        "1 of 3",
        "static-int8 1, float 2",
        "compared on 5 samples from d.npz",
        "it is odd",
        "SQNR (dB), higher is better",
        "name = 'auto'",
        "onnxruntime ",
    ):
        assert words in shown, words
    assert len(list(page.all("svg"))) == 4
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in page.all("svg"))
    assert [tag for tag, _ in page.elements].count(
        "title"
    ) == 1 + 4 + 3 + 2  # of the page, of charts, of layers and of bars
    assert all("scope" in header for header in page.all("th"))


def test_the_page_says_when_how_and_within_which_limits(report: Report) -> None:
    limits = (Limit("size", "at most 300 bytes", "250 bytes", True), Limit("SQNR", "at least 40 dB", "31.2 dB", False))
    made = replace(report, made="2026-05-02T10:00:00+00:00", command="onnxq quantize m.onnx -d d.npz", budget=limits)
    shown = " ".join("".join(Page(made.to_html()).text).split())
    for words in (
        "2026-05-02 10:00:00 UTC",
        "Repeat it: onnxq quantize m.onnx -d d.npz",
        "passed size: 250 bytes, at most 300 bytes asked for",
        "failed SQNR: 31.2 dB, at least 40 dB asked for",
    ):
        assert words in shown, words


def test_a_metric_and_what_is_spoilt_show(report: Report) -> None:
    assert report.comparison is not None
    outputs = (replace(report.comparison.outputs[0], spoilt=3, undefined=2), *report.comparison.outputs[1:])
    metric = MetricComparison("mine:top1", 0.99, 0.97)
    comparison = replace(report.comparison, outputs=outputs, metric=metric, layers=())
    shown = " ".join("".join(Page(replace(report, comparison=comparison, activations=()).to_html()).text).split())
    assert "Metric 0.97 0.02 less than float's 0.99; mine:top1" in shown
    assert "'y' holds NaN or infinity 3 times, in the float model never." in shown
    assert "'y' is NaN 2 of" in shown
    assert "| mine:top1 | 0.99 | 0.97 | 0.02 less |" in replace(report, comparison=comparison).to_markdown()


def test_what_each_node_adds_to_the_outputs(report: Report) -> None:
    contributions = (
        Contribution(EVIL, "Gemm", "b", "static-int8", 1e-5, 0.25, True),
        Contribution("first", "Conv", "a", "static-int8", 3e-5, 0.75, False),
    )
    changed = replace(report, sensitivity=contributions, returned=(EVIL,))
    page = Page(changed.to_html())
    shown = " ".join("".join(page.text).split())
    assert "Nodes that add most to the error of the outputs" in {svg["aria-label"] for svg in page.all("svg")}
    assert "75 %" in shown
    assert shown.index("75.00 %estimated") < shown.index("25.00 %run alone")  # cells side by side
    assert f"Computed in float for the sake of accuracy: {EVIL}." in shown
    assert [a.tensor for a in worst_activations(report)] == [EVIL, "first_in"]
    assert [a.tensor for a in worst_activations(changed)] == ["first_in", EVIL]
    lines = changed.to_markdown().splitlines()
    assert "| `first` | Conv | 75.0 % | estimated |" in lines


def test_without_scripts_every_node_shows(text: str) -> None:
    page = Page(text)
    assert [str(row["data-became"]) for row in page.all("tr") if "data-became" in row] == [
        "static-int8",
        "float",
        "float",
    ]
    (form,) = page.all("form")
    assert "hidden" in form
    assert not any("hidden" in row for row in page.all("tr"))


def test_the_same_report_gives_the_same_bytes(report: Report, text: str) -> None:
    assert report.to_html() == text


def test_the_users_style_changes_nothing(report: Report, text: str) -> None:
    import matplotlib

    with matplotlib.rc_context({"font.size": 22, "axes.facecolor": "red", "svg.hashsalt": None}):
        assert report.to_html() == text
        assert matplotlib.rcParams["font.size"] == 22


def test_of_a_plan(report: Report) -> None:
    plan = replace(report, output=None, files=(), output_bytes=None, comparison=None, samples=None)
    plan = replace(plan, activations=(), seconds=(), rules="")
    page = Page(plan.to_html())
    shown = "".join(page.text)
    assert "a plan: nothing was written" in shown
    assert "Size of the float model" in shown
    assert not list(page.all("svg"))


def test_float_rounding_does_not_stretch_the_chart(report: Report) -> None:
    assert report.comparison is not None
    layers = tuple(
        LayerComparison(f"n{i}", "Conv", "a", sqnr, sqnr, math.inf, 0.1) for i, sqnr in enumerate((40.0, 300.0))
    )
    changed = replace(report, comparison=replace(report.comparison, layers=layers), activations=())
    labels = [text.strip() for text in Page(changed.to_html()).text]
    assert "100" in labels
    assert "300" not in labels
    assert labels.count("1 %") == 1  # one bar, none for the layer that is exact but for rounding


def test_layers_without_any_error(report: Report) -> None:
    assert report.comparison is not None
    equal = LayerComparison("first", "Conv", "a", math.inf, math.inf, math.inf, 0.0)
    comparison = replace(report.comparison, layers=(equal,))
    page = Page(replace(report, comparison=comparison, activations=()).to_html())
    assert "No layer differs from the float model." in "".join(page.text)
    assert not list(page.all("svg"))


def test_names_that_fonts_and_terminals_do_not_like(report: Report) -> None:
    name = "层\n\x1b[31m\x00" + "x" * 300
    nodes = (NodeReport(name, "Conv", None, "so"),)
    assert report.comparison is not None
    layers = (LayerComparison(name, "Conv", name, 20.0, 20.0, math.inf, 1.0),)
    changed = replace(
        report, nodes=nodes, comparison=replace(report.comparison, layers=layers), activations=(activation(name),)
    )
    text = changed.to_html()
    assert "\x1b" not in text
    assert "\x00" not in text
    assert "层" in "".join(Page(text).text)


def test_the_worst_activations_are_those_of_the_worst_layers(report: Report) -> None:
    fine, coarse = activation("fine", node="first"), activation("coarse", -500.0, 500.0, node="nobody")
    chosen = worst_activations(replace(report, activations=(coarse, fine)))
    assert [a.tensor for a in chosen] == ["fine", "coarse"]
    assert [a.tensor for a in worst_activations(replace(report, activations=(fine, coarse), comparison=None), 1)] == [
        "coarse"
    ]


def test_degenerate_histograms() -> None:
    from onnxq.report.charts import histogram_chart

    for values in ([0.0], [3.0], [-2.0, -2.0], [1e-38, 2e-38], [1e38, -1e38]):
        stats = TensorStats.of(np.array(values, np.float32))
        low, high = min(*values, 0.0, 0.0), max(*values, 0.0, 0.0)
        assert histogram_chart(describe_activation("t", [], stats, activation_qparams(low, high))).endswith("</svg>")


def test_what_is_missing_is_said_before_any_work(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxq.report.html.find_spec", lambda module: None if module == "matplotlib" else object())
    with pytest.raises(OutputError, match="needs Matplotlib, not installed here") as caught:
        check_report_path(tmp_path / "r.html", force=False)
    assert caught.value.hint == "Run `pip install 'onnxq[report]'`."
    check_report_path(tmp_path / "r.md", force=False)
    with pytest.raises(OutputError, match="needs Matplotlib"):
        report.to_html()


def test_writing(report: Report, text: str, tmp_path: Path) -> None:
    write_report(report, tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text("utf-8") == text


def test_other_reports_need_nothing_of_it() -> None:
    import subprocess

    code = "import sys, onnxq.report; sys.exit(any(name in sys.modules for name in ('matplotlib', 'jinja2')))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_verdict_on_an_output_without_an_error_in_percent(report: Report) -> None:
    lost = OutputComparison("y", "float32", 10, False, -math.inf, math.inf, None, None)
    spoilt = replace(report, comparison=Comparison((lost,), 5))
    assert verdict(spoilt) == "The quantized model is 4.0× smaller, with an output that overflows."


def test_the_page_begins_with_a_verdict_and_has_a_table_of_processors(tmp_path: Path) -> None:
    samples = Path(__file__).parents[2] / "sample_models"
    data = samples / "digits_calibration.npz"
    report = quantize(samples / "digits_cnn.onnx", output=tmp_path / "q.onnx", data=data, sample_limit=8, fast=True)
    page, text = report.to_html(), report.to_markdown()
    assert "The quantized model is " in page
    assert page.index('id="verdict"') < page.index('class="cards"')
    for family in report.families:
        assert f'<th scope="row">{family.family}</th>' in page
        assert f"| {family.family}" in text
