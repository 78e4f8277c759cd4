"""The HTML report in a browser: it renders, says nothing on the console, asks for nothing, and the filter works."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from onnxq.pipeline.quantize import quantize
from onnxq.report import NodeReport, Report, write_report

SAMPLES = Path(__file__).parents[2] / "sample_models"
CHROMIUM = shutil.which("chromium")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-features=NetworkTimeServiceQuerying", "--host-resolver-rules=MAP * ~NOTFOUND"),
    *("--enable-logging=stderr", "--virtual-time-budget=2000"),
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

MEASURE = """
addEventListener("load", () => {
const shown = () => [...document.querySelectorAll("#nodes tbody tr")].filter(row => row.getClientRects().length).length;
const text = document.getElementById("filter-text"), became = document.getElementById("filter-became");
const found = {all: shown()};
const filter = (words, scheme) => {
  text.value = words; became.value = scheme; text.dispatchEvent(new Event("input", {bubbles: true}));
  return [shown(), document.getElementById("filter-count").textContent];
};
found.conv = filter("CONV static", "");
found.float = filter("", "float");
found.both = filter("relu", "float");
found.none = filter("no such words", "");
filter("", "");
const first = () => document.querySelector("#nodes tbody tr th").textContent;
const sorted = column => { document.querySelectorAll("#nodes thead button")[column].click(); return first(); };
found.sorted = [first(), sorted(0), sorted(0), sorted(3)];
found.sort = [...document.querySelectorAll("#nodes thead th")].map(head => head.getAttribute("aria-sort"));
found.hover = [...document.querySelectorAll(".hover title")].map(title => title.textContent);
found.width = document.documentElement.scrollWidth - document.documentElement.clientWidth;
const boxes = [...document.querySelectorAll(".chart, .scroll")].filter(box => !box.closest("details"));
found.cut = boxes.filter(box => box.scrollWidth > box.clientWidth + 1).map(box => box.textContent.slice(0, 40));
found.texts = [...document.querySelectorAll("h1, h2, h3, p, dd, dt, li, figcaption, caption")]
  .filter(each => each.scrollWidth > each.clientWidth + 1).map(each => each.textContent.slice(0, 40));
found.charts = [...document.querySelectorAll("svg")].map(svg => svg.getBoundingClientRect().height);
found.asked = performance.getEntriesByType("resource").map(entry => entry.name);
found.ink = getComputedStyle(document.querySelector("svg text")).fill;
document.title = JSON.stringify(found);
parent.postMessage(document.title, "*");
});
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("quantized")
    data = [SAMPLES / "digits_calibration.npz"]
    return quantize(SAMPLES / "digits_cnn.onnx", output=folder / "q.onnx", data=data, sample_limit=8, detailed=True)


@pytest.fixture(scope="module")
def text(report: Report) -> str:
    return report.to_html()


def browse(page: Path, folder: Path, *flags: str) -> tuple[str, list[str]]:
    """Open a page; give its elements after the scripts ran, and what the console says."""
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder / 'profile'}", *flags, "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


def measured(text: str, folder: Path, *flags: str, frame: int = 0) -> dict[str, Any]:
    """Run `MEASURE` at the end of the page, which its policy has to be taken out for; in a frame of a width, if any."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    page = folder / "measured.html"
    page.write_text(text.replace("</body>", f"<script>{MEASURE}</script></body>"), encoding="utf-8")
    if frame:  # a window cannot be as narrow as a phone
        listens = 'addEventListener("message", event => { document.title = event.data; })'
        page = folder / "phone.html"
        content = f'<script>{listens}</script><iframe src="measured.html" width="{frame}" height="900"></iframe>'
        page.write_text(content, encoding="utf-8")
    elements, console = browse(page, folder, *flags)
    assert console == []
    title = re.search(r"<title>(.*?)</title>", elements, re.DOTALL)
    assert title
    return dict(json.loads(unescape(title[1])))


def test_it_renders_and_the_console_stays_empty(report: Report, tmp_path: Path) -> None:
    write_report(report, tmp_path / "r.html")
    elements, console = browse(tmp_path / "r.html", tmp_path)
    assert console == []
    assert elements.count("<svg ") >= 4
    assert f"{len(report.nodes)} of {len(report.nodes)} nodes" in elements  # the page's own script ran


@pytest.mark.parametrize("width", [800, 400])
def test_inputs_of_colour_pictures_are_not_cut(report: Report, tmp_path: Path, width: int) -> None:
    (one,) = report.inputs
    colours = tuple(replace(one.channels[0], mean=mean) for mean in (-0.0947, -0.163, 0.0447))
    wide = replace(one, type="float32[DynamicDimension.0, 3, 224, 224]", channels=colours)
    flags = (f"--window-size={max(width, 600)},900",)
    found = measured(replace(report, inputs=(wide,)).to_html(), tmp_path, *flags, frame=width if width < 500 else 0)
    assert found["cut"] == []


@pytest.mark.parametrize(("width", "scheme"), [(1600, 1), (800, 0), (400, 1)])
def test_filter_sort_and_layout(report: Report, text: str, tmp_path: Path, width: int, scheme: int) -> None:
    flags = (f"--window-size={max(width, 600)},900", f"--blink-settings=preferredColorScheme={scheme}")
    found = measured(text, tmp_path, *flags, frame=width if width < 500 else 0)
    nodes = report.nodes
    total = len(nodes)
    convs = sum(node.op_type == "Conv" and node.scheme == "static-int8" for node in nodes)
    floats = sum(node.scheme is None for node in nodes)
    relus = sum(node.scheme is None and "Relu" in node.op_type for node in nodes)
    assert found["all"] == total
    assert convs > 0
    assert found["conv"][0] >= convs
    assert found["float"] == [floats, f"{floats} of {total} nodes"]
    assert found["both"] == [relus, f"{relus} of {total} nodes"]
    assert found["none"] == [0, f"0 of {total} nodes"]
    assert found["asked"] == []
    assert found["width"] == 0  # wide tables scroll by themselves
    assert found["cut"] == []
    assert found["texts"] == []
    names = [node.name for node in nodes]
    assert found["sorted"][:3] == [names[0], min(names, key=str.lower), max(names, key=str.lower)]
    assert found["sorted"][3] in names
    assert found["sort"] == [None, None, None, "ascending", None]
    assert report.comparison is not None
    assert len(found["hover"]) >= len(report.comparison.layers) + len(report.sensitivity)
    assert any("Conv" in words and "dB" in words for words in found["hover"])
    assert len(found["charts"]) >= 4
    assert min(found["charts"]) > 60
    light, dark = "rgb(27, 34, 48)", "rgb(230, 233, 239)"
    assert found["ink"] == (light if scheme else dark)


def test_the_policy_runs_no_script_but_the_pages_own(report: Report, tmp_path: Path) -> None:
    evil = NodeReport("<script>document.title = 'evil'</script>", "Conv", None, "<img src=x onerror=alert(1)>")
    text = Report(Path("m.onnx"), 0, "auto", (evil,)).to_html()
    page = tmp_path / "r.html"
    page.write_text(text.replace("</body>", "<script>document.title = 'added'</script></body>"), encoding="utf-8")
    elements, console = browse(page, tmp_path)
    assert "<title>m.onnx" in elements
    (refused,) = console
    assert "Content Security Policy" in refused
