"""Layers in a report: where the error enters."""

import math
from pathlib import Path

from onnxq.report import Report
from onnxq.verification.records import Comparison, LayerComparison

LAYERS = (
    LayerComparison("first", "Conv", "t", 20.0, 30.0, 20.5, 0.5),
    LayerComparison("a|b", "com.acme.Odd", "u", 19.0, 25.0, math.inf, 0.25, rescaled=True),
    LayerComparison("third", "Conv", "v", 19.0, math.inf, 19.0, 0.75),
)


def report(comparison: Comparison) -> Report:
    output = Path("q.onnx")
    return Report(
        Path("m.onnx"), 1000, "auto", (), output=output, files=(output,), output_bytes=1, comparison=comparison
    )


def test_json(tmp_path: Path) -> None:
    made = report(Comparison((), 1, layers=LAYERS)).as_dict()["comparison"]
    assert made["layers"][1] == {
        "node": "a|b",
        "op_type": "com.acme.Odd",
        "tensor": "u",
        "sqnr": 19.0,
        "own": 25.0,
        "inherited": None,
        "max_abs": 0.25,
        "rescaled": True,
    }
    assert made["no_layers"] is None


def test_markdown_has_the_worst_first_and_leaves_out_who_adds_nothing(tmp_path: Path) -> None:
    text = report(Comparison((), 1, layers=LAYERS)).to_markdown()
    rows = "| `a\\|b` | com.acme.Odd | 25.0 dB | exact | 19.0 dB |", "| `first` | Conv | 30.0 dB | 20.5 dB | 20.0 dB |"
    assert "\n".join(rows) in text
    assert "third" not in text


def test_markdown_says_why_there_are_none(tmp_path: Path) -> None:
    assert "Not compared: it is odd." in report(Comparison((), 1, no_layers="it is odd")).to_markdown()
    assert "Layers" not in report(Comparison((), 1)).to_markdown()
