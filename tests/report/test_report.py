import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import floats, node
from onnx import TensorProto, helper, numpy_helper

from onnxq.errors import OutputError
from onnxq.ir import load
from onnxq.pipeline.plan import plan_report
from onnxq.pipeline.quantize import quantize
from onnxq.planning.recipe import in_blocks
from onnxq.publish.model_card import ExportedFile
from onnxq.report import NodeReport, Report, check_report_path, decibels, to_json, write_report
from onnxq.stages.prepare import prepare
from onnxq.verification.records import Comparison, Decoding, Latency, MetricComparison, OutputComparison

SAMPLES = Path(__file__).parents[2] / "sample_models"
NODES = (
    NodeReport("first", "Conv", "static-int8", "in 8 bit"),
    NodeReport("a|b", "com.acme.Odd", None, "it is odd"),
    NodeReport("third", "Conv", "static-int8", "in 8 bit"),
    NodeReport("fourth", "Gemm", "dynamic-int8", "in 8 bit"),
    NodeReport("fifth", "Relu", None, "it is odd"),
    NodeReport("sixth", "Relu", None, "it is even"),
)
COMPARISON = Comparison(
    (
        OutputComparison("y", "float32", 10, False, 31.25, 0.125, 0.999, 97.5),
        OutputComparison("z", "float32", 10, True, math.inf, 0.0, None, None),
    ),
    5,
    Latency(2.0, 1.0, 0.5, 100),
)


@pytest.fixture
def report() -> Report:
    output = Path("q.onnx")
    return Report(
        source=Path("m.onnx"),
        source_bytes=1000,
        recipe="auto",
        nodes=NODES,
        notes=("did this",),
        output=output,
        files=(output,),
        output_bytes=250,
        comparison=COMPARISON,
        samples="5 samples from d.npz",
        seconds=(("load", 0.5),),
    )


def test_counts(report: Report) -> None:
    assert report.counts() == {"static-int8": 2, "dynamic-int8": 1, "float": 3}
    assert list(report.counts())[-1] == "float"
    assert report.reasons() == {"it is odd": 2, "it is even": 1}
    assert report.operators("static-int8") == {"Conv": 2}
    assert report.operators(None) == {"Relu": 2, "com.acme.Odd": 1}


def test_json(report: Report) -> None:
    assert json.loads(report.to_json()) == {
        "schema": 1,
        "onnxq": report.as_dict()["onnxq"],
        "recipe": "auto",
        "source": {"path": "m.onnx", "bytes": 1000},
        "output": {"path": str(report.output), "files": [str(report.output)], "bytes": 250},
        "counts": {"static-int8": 2, "dynamic-int8": 1, "float": 3},
        "reasons": {"it is odd": 2, "it is even": 1},
        "notes": ["did this"],
        "comparison": {
            "samples": 5,
            "data": "5 samples from d.npz",
            "worst_sqnr": 31.25,
            "latency": {"float_ms": 2.0, "quantized_ms": 1.0, "ratio": 0.5, "pairs": 100},
            "outputs": [
                {"name": "y", "dtype": "float32", "elements": 10, "equal": False, "sqnr": 31.25, "max_abs": 0.125,
                 "cosine": 0.999, "agreement": 97.5, "spoilt": 0,
                 "undefined": 0},
                {"name": "z", "dtype": "float32", "elements": 10, "equal": True, "sqnr": None, "max_abs": 0.0,
                 "cosine": None, "agreement": None, "spoilt": 0,
                 "undefined": 0},
            ],
            "selection": None,
            "layers": [],
            "no_layers": None,
            "worst_samples": [],
            "warnings": [],
            "decoding": None,
            "metric": None,
        },
        "cross_validation": None,
        "seconds": {"load": 0.5},
        "float_passes": None,
        "nodes": [
            {"name": n.name, "op_type": n.op_type, "scheme": n.scheme, "reason": n.reason} for n in NODES
        ],
        "rules": "",
        "returned": [],
        "sensitivity": [],
        "timings": None,
        "families": [],
        "min_onnxruntime": None,
        "inputs": [],
        "warnings": [],
        "preparations": [],
        "weights": [],
        "saturation": [],
        "activations": [],
        "made": None,
        "command": None,
        "kernels": {},
        "operator_times": [],
        "layer_sizes": [],
        "budget": [],
    }  # fmt: skip


def test_figures_that_are_not_finite_are_null_in_json(report: Report) -> None:
    assert report.comparison is not None
    lost = MetricComparison("perplexity", 12.5, math.inf, lower_is_better=True)
    decoding = Decoding(lost, None, None, None, 0, (1, 2))
    changed = replace(report, comparison=replace(report.comparison, metric=lost, decoding=decoding))
    found = json.loads(changed.to_json())["comparison"]
    assert (found["metric"]["quantized_value"], found["metric"]["drop"]) == (None, None)
    assert found["decoding"]["perplexity"] == found["metric"]
    assert found["decoding"]["greedy"] is None
    assert found["decoding"]["load_bytes"] == [1, 2]
    exported = ExportedFile("m.onnx", "any processor", "auto", 1, sqnr=math.inf)
    assert json.loads(to_json(exported.as_dict()))["sqnr"] is None


def test_markdown(report: Report) -> None:
    text = report.to_markdown()
    for line in (
        "# m.onnx, recipe auto",
        f"Written to `{report.output}`, compared on 5 samples from d.npz.",
        "| size | 1,000 bytes | 250 bytes | 4.0× smaller |",
        "| latency | 2.00 ms | 1.00 ms | 2.0× faster |",
        "| `y` | 31.2 dB | 0.125 | 97.50 % |",
        "| `z` | equal | 0 |  |",
        "| static-int8 | 2 | Conv 2 |",
        "| 2 | it is odd |",
        "* did this",
        "| `a\\|b` | com.acme.Odd | float | it is odd |",
    ):
        assert line in text.splitlines()


def test_names_cannot_break_the_markdown(report: Report) -> None:
    nodes = (NodeReport("a`b\n# c", "<b>", None, "--exclude *_3* leaves it [float](x)"),)
    lines = replace(report, nodes=nodes, notes=("did `this`\n# that",)).to_markdown().splitlines()
    assert "| `` a`b # c `` | \\<b> | float | --exclude \\*_3\\* leaves it \\[float](x) |" in lines
    assert "* did \\`this\\` # that" in lines


def test_markdown_of_a_plan(report: Report) -> None:
    plan = replace(report, output=None, files=(), output_bytes=None, comparison=None)
    assert "A plan: nothing was written." in plan.to_markdown()
    assert json.loads(plan.to_json())["output"] is None
    assert plan.output_bytes is None


def test_markdown_of_a_model_kept_in_memory(report: Report) -> None:
    lines = replace(report, output=None, files=(), encoded=b"x" * 250).to_markdown().splitlines()
    assert "Kept in memory, compared on 5 samples from d.npz." in lines
    assert "| size | 1,000 bytes | 250 bytes | 4.0× smaller |" in lines


@pytest.mark.parametrize("write", [Report.to_markdown, Report.to_html])
def test_an_output_that_is_nan_in_float_is_not_called_equal(report: Report, write: Callable[[Report], str]) -> None:
    nan = OutputComparison("z", "float32", 10, True, math.inf, 0.0, None, None, undefined=10)
    text = write(replace(report, comparison=Comparison((nan,), 5)))
    assert "is NaN 10 of 10 times in the float model" in text
    assert "equal" not in text.partition("largest error")[2].splitlines()[2]


def test_decibels() -> None:
    assert [decibels(v) for v in (31.25, -3.0, math.inf, -math.inf)] == ["31.2 dB", "-3.0 dB", "equal", "none"]


def test_planned_lists_every_node(tmp_path: Path) -> None:
    path = SAMPLES / "digits_if.onnx"
    prepared = prepare(load(path), "auto", with_data=False)
    report = plan_report(prepared)
    assert len(report.nodes) == len(list(prepared.model.graph.walk()))
    assert all(node.name and node.reason for node in report.nodes)
    assert report.source_bytes == path.stat().st_size
    assert (report.recipe, report.output, report.comparison) == ("auto", None, None)


def test_the_size_of_a_model_includes_its_external_data(tmp_path: Path) -> None:
    model = onnx.load(SAMPLES / "digits_depthwise.onnx")
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=64)
    report = plan_report(prepare(load(path), "auto", with_data=True))
    assert report.source_bytes == path.stat().st_size + (tmp_path / "weights.bin").stat().st_size


def test_the_size_of_a_model_in_16_bit_floats_includes_its_external_data(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(floats(64, 64).astype(np.float16), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT16, ["n", 64]) for name in "xy")
    model = helper.make_model(helper.make_graph([node("MatMul", "x w", "y")], "g", [x], [y], [weight]), ir_version=8)
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=64)
    report = quantize(path, in_blocks(4), dry_run=True)
    assert report.source_bytes == path.stat().st_size + (tmp_path / "weights.bin").stat().st_size


@pytest.mark.parametrize("suffix", [".json", ".md"])
def test_writing_by_suffix(report: Report, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"r{suffix}"
    write_report(report, path)
    assert path.read_text() == (report.to_json() if suffix == ".json" else report.to_markdown())
    with pytest.raises(OutputError, match="exists already"):
        write_report(report, path)
    write_report(report, path, force=True)
    assert {p.name for p in tmp_path.iterdir()} == {path.name}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("r.pdf", "cannot be written as '.pdf'"),
        ("report", "cannot be written as 'report'"),
        ("no/r.md", "does not exist"),
        ("d.md", "is a folder"),
    ],
)
def test_paths_that_are_refused(tmp_path: Path, name: str, sentence: str) -> None:
    (tmp_path / "d.md").mkdir()
    with pytest.raises(OutputError, match=sentence):
        check_report_path(tmp_path / name, force=True)


def test_times_are_given_in_runs_of_the_float_model() -> None:
    latency = Latency(float_ms=2.0, quantized_ms=1.0, ratio=0.5, pairs=10)
    comparison = Comparison((), 4, latency)
    report = Report(Path("m.onnx"), 100, "auto", (), comparison=comparison, seconds=(("load", 0.1), ("round", 0.4)))
    assert report.float_passes is None
    assert replace(report, calibration_samples=10).float_passes == (("load", 5.0), ("round", 20.0))
