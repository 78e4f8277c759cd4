import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from onnxq.cli import terminal
from onnxq.cli.tables import columns, inspection_tables, plan_tables, report_tables, size
from onnxq.explanation.inspect import inspect
from onnxq.report import NodeReport, Report
from onnxq.verification.records import Comparison, Latency, OutputComparison

REASON = "a sentence that is far too long for the one line of a narrow terminal"
LONG = "/features/features.1/conv/conv.0/conv.0.0/Conv"


@pytest.fixture
def report() -> Report:
    return Report(
        source=Path("m.onnx"),
        source_bytes=6000,
        recipe="auto",
        nodes=(NodeReport(LONG, "Conv", "static-int8", REASON), NodeReport("relu", "Relu", None, REASON)),
        output=Path("q.onnx"),
        files=(Path("q.onnx"),),
        output_bytes=1500,
        comparison=Comparison(
            tuple(OutputComparison(f"out{i}", "float32", 9, False, 30.0 - i, 0.1, 0.9, None) for i in range(30)),
            5,
            Latency(12.0, 6.0, 0.5, 7),
        ),
        samples="5 samples from d.npz",
    )


def render(renderables, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    for renderable in renderables:
        console.print(renderable)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 120, 500])
@pytest.mark.parametrize("lay_out", [report_tables, plan_tables])
def test_nothing_is_lost_at_any_width(report: Report, lay_out, width: int) -> None:
    text = render(lay_out(report), width)
    assert max(map(len, text.splitlines())) <= width
    squeezed = " ".join(text.split())
    assert REASON in squeezed
    assert "static-int8" in squeezed
    if lay_out is plan_tables:
        assert LONG in "".join(text.split())  # on a narrow terminal it may be broken in two
    else:
        assert "2.0× faster (median of 7, one thread)" in squeezed
        assert "4.0× smaller" in squeezed


def test_figures_of_a_narrow_terminal_have_their_titles() -> None:
    table = columns(("input", "type", "least", "mean"), [("image", "float32[1, 3, 224, 224]", "0", "0.3")], right=(2,))
    assert "least mean" in " ".join(render([table], 80).splitlines()[0].split())
    assert [line.strip() for line in render([table], 45).splitlines()] == [
        "image   type float32[1, 3, 224, 224]",
        "least 0",
        "mean 0.3",
    ]


def test_no_title_is_broken_inside_a_word() -> None:
    rows = [("logits", "47.4 dB", "0.00282", "")]
    table = columns(("output", "SQNR", "largest error", "agreement"), rows, right=(1, 2))
    for width in range(30, 60):
        shown = render([table], width)
        assert "agreement" in shown or "SQNR 47.4 dB" in " ".join(shown.split()), width
    assert "SQNR 47.4 dB" in " ".join(render([table], 40).split())


def test_counts_stay_with_their_operators(report: Report, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    nodes = tuple(NodeReport(f"n{i}", f"Operator{i % 7}", None, "because") for i in range(70))
    for width in range(60, 90):
        monkeypatch.setattr(terminal, "FILE_WIDTH", width)
        terminal.show(*report_tables(replace(report, nodes=nodes)))
        shown = capsys.readouterr().out.splitlines()
        assert not [line for line in shown if line.strip().startswith("10,")]
        assert "Operator6 10" in " ".join(shown)


def test_what_is_in_a_model_is_indented_on_every_line() -> None:
    found = inspect(Path(__file__).parents[2] / "sample_models" / "digits_cnn.onnx")
    lines = render(inspection_tables(replace(found, path=Path("m.onnx"))), 60).splitlines()
    assert [line for line in lines[1:] if line.strip() and not line.startswith("  ")] == []


def test_many_outputs_are_summed_up_by_the_worst(report: Report) -> None:
    text = " ".join(render(report_tables(report), 100).split())
    assert "and 10 more 1.0 dB" in text


def test_a_table_without_rows_is_nothing() -> None:
    assert render([columns(("a", "b"), [])], 80).strip() == ""


def test_names_cannot_steer_the_terminal() -> None:
    assert render([columns(("a", "b"), [("\x1b[2Jx", "y")])], 80).split() == ["a", "b", "\\x1b[2Jx", "y"]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (284908, "284.9 kB"),
        (9.1e7, "91.0 MB"),
        (2.5e9, "2.50 GB"),
    ],
)
def test_sizes(count: float, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(("count", "line"), [(13, "1 reason 12"), (14, "2 other reasons: see `onnxq plan`")])
def test_reasons_are_summed_up_where_that_saves_lines(report: Report, count: int, line: str) -> None:
    nodes = tuple(NodeReport(f"n{i}", "Relu", None, f"reason {i}") for i in range(count))
    text = " ".join(render(report_tables(replace(report, nodes=nodes)), 100).split())
    assert line in text
    assert ("other reasons" in text) == (count == 14)


def test_many_nodes_that_returned_to_float_for_one_reason_are_counted(report: Report) -> None:
    nodes = [NodeReport(f"n{i}", "Conv", None, "in 8 bit it made 1 % of the error") for i in range(100)]
    nodes += [NodeReport(f"m{i}", "Conv", None, "in 8 bit it made 9 % of the error") for i in range(4)]
    returned = replace(report, nodes=tuple(nodes), returned=tuple(node.name for node in nodes))
    lines = [line.split()[:2] for line in render(report_tables(returned), 100).splitlines() if "of the error" in line]
    assert lines == [
        *(["n0", "in"], ["n1", "in"], ["n2", "in"], ["97", "more"]),
        *(["m0", "in"], ["m1", "in"], ["m2", "in"], ["m3", "in"]),
    ]


def test_a_node_that_was_returned_to_float_is_explained_once(report: Report) -> None:
    text = " ".join(render(report_tables(replace(report, returned=("relu",))), 200).split())
    assert "made more accurate because" in text, "some compute in float, others have weights of more bits"
    assert text.count(REASON) == 1
