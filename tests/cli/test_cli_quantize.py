import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers import build, node

from onnxq.version import __version__

STATIC = ("digits_cnn.onnx", "-d", "digits_calibration.npz")
STEPS = ["load", "plan", "examine", "rescale", "trial", "calibrate", "round", "search", "cross-validate", "correct"]
STEPS += ["rewrite", "verify", "families", "save"]


def squeezed(text: str) -> list[str]:
    """Lines with single blanks, however wide the columns are."""
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_table(cli, folder: Path) -> None:
    code, out, err = cli("quantize", *STATIC)
    assert (code, err) == (0, "")
    lines = squeezed(out)
    assert lines[0] == "digits_cnn.onnx → digits_cnn.int8.onnx recipe auto"
    size = (folder / "digits_cnn.int8.onnx").stat().st_size
    assert f"size 296.4 kB {size / 1000:.1f} kB {296362 / size:.1f}× smaller" in lines
    assert any(line.startswith("latency ") and line.endswith("one thread)") for line in lines)
    assert any(line.startswith("logits ") and " dB " in line and line.endswith(" %") for line in lines)
    assert "compared on 100 samples from digits_calibration.npz, the ones calibrated on" in lines
    (said,) = [line for line in lines if line.startswith("expected on other samples: ")]
    assert said.endswith("), by models fitted on one half of 100 samples and judged on the other")
    assert "random" not in out
    assert "removed 22 initializers from the graph inputs" in lines
    assert not any(line != line.rstrip() for line in out.splitlines())
    assert lines[-2:] == [
        "next, better on data that no calibration has seen:",
        "onnxq verify digits_cnn.int8.onnx --against digits_cnn.onnx -d digits_calibration.npz",
    ]
    assert cli(*lines[-1].split()[1:]).code == 0


def test_json_says_the_same_and_nothing_else_is_on_stdout(cli, folder: Path) -> None:
    code, out, err = cli("quantize", *STATIC, "--format", "json", "-o", "q.onnx")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert set(report) == {
        "schema", "onnxq", "recipe", "source", "output", "counts", "reasons", "notes", "comparison", "seconds",
        "float_passes", "nodes", "cross_validation",
        "rules", "activations", "returned", "sensitivity", "timings", "weights", "families", "min_onnxruntime",
        "inputs", "warnings", "preparations", "saturation",
        "made", "command", "kernels", "operator_times", "layer_sizes", "budget",
    }  # fmt: skip
    assert (report["schema"], report["onnxq"], report["recipe"]) == (1, __version__, "auto")
    assert report["source"] == {"path": "digits_cnn.onnx", "bytes": 296362}
    assert report["output"] == {"path": "q.onnx", "files": ["q.onnx"], "bytes": Path("q.onnx").stat().st_size}
    assert sum(report["counts"].values()) == len(report["nodes"]) == 12
    assert sum(report["reasons"].values()) == report["counts"]["float"]
    assert {node["scheme"] for node in report["nodes"]} == {None, "static-int8", "weight-int8"}
    assert list(report["seconds"]) == STEPS
    assert report["comparison"]["data"] == "100 samples from digits_calibration.npz, the ones calibrated on"
    assert report["comparison"]["samples"] == 100
    found = report["cross_validation"]
    assert (found["output"], found["samples"]) == ("logits", 100)
    assert 30 < found["low"] <= found["sqnr"] <= found["high"]
    (logits,) = report["comparison"]["outputs"]
    assert logits["name"] == "logits"
    assert logits["sqnr"] == report["comparison"]["worst_sqnr"] > 30
    assert set(report["comparison"]["latency"]) == {"float_ms", "quantized_ms", "ratio", "pairs"}


def test_an_html_report_that_cannot_be_drawn_is_refused_first(
    cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxq.report.html.find_spec", lambda module: None)
    code, out, err = cli("quantize", *STATIC, "--report", "r.html")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "error: an HTML report needs Matplotlib and Jinja2, not installed here",
        "hint: Run `pip install 'onnxq[report]'`.",
    ]
    assert {path.name for path in folder.iterdir()} == {"digits_cnn.onnx", "digits_calibration.npz"}


def test_a_full_report_has_layers_and_histograms(cli, folder: Path) -> None:
    assert cli("quantize", *STATIC, "--samples", "8", "--report", "r.json").code == 0
    report = json.loads(Path("r.json").read_text())
    assert {layer["node"] for layer in report["comparison"]["layers"]} >= {"Conv_0", "Gemm_21"}
    assert report["activations"][0]["nodes"] == ["Conv_3"]
    assert all(sum(a["counts"]) == a["elements"] for a in report["activations"])
    assert report["rules"].startswith('name = "auto"')


def test_the_figures_are_those_of_the_files(cli, folder: Path) -> None:
    report = json.loads(cli("quantize", *STATIC, "--samples", 24, "--fast", "--format", "json").out)
    images = np.load("digits_calibration.npz")["image"][:24]
    first, second = (ort.InferenceSession(name) for name in ("digits_cnn.onnx", "digits_cnn.int8.onnx"))
    r, q = (
        np.concatenate([s.run(None, {"image": i[None]})[0] for i in images]).astype(np.float64) for s in (first, second)
    )
    sqnr = 10 * np.log10((r**2).sum() / ((r - q) ** 2).sum())
    assert report["comparison"]["worst_sqnr"] == pytest.approx(sqnr, abs=0.05)  # float kernels differ by fusions


def test_without_data_it_is_dynamic_and_says_that_the_figures_are_from_random_numbers(cli, folder: Path) -> None:
    weight = {"w": np.random.default_rng(0).standard_normal((256, 512)).astype(np.float32)}
    made = build([node("MatMul", "x w", "y")], {"x": [128, 256]}, ["y"], weight)
    Path("product.onnx").write_bytes(made.SerializeToString())
    code, out, _ = cli("quantize", "product.onnx")
    assert code == 0
    assert "dynamic-int8" in out
    assert "static-int8" not in out
    assert "compared on 4 samples from random numbers (seed 0)" in out
    assert "random numbers show that the model runs" in out


def test_nothing_is_replaced_without_force(cli, folder: Path) -> None:
    Path("q.onnx").write_text("mine")
    Path("r.md").write_text("mine")
    assert cli("quantize", *STATIC, "-o", "q.onnx").code == 2
    assert cli("quantize", *STATIC, "-o", "p.onnx", "--report", "r.md").code == 2
    assert (Path("q.onnx").read_text(), Path("r.md").read_text(), Path("p.onnx").exists()) == ("mine", "mine", False)
    assert cli("quantize", *STATIC, "-o", "q.onnx", "--report", "r.md", "-f", "--fast").code == 0
    onnx.checker.check_model("q.onnx")
    assert Path("r.md").read_text().startswith("# digits_cnn.onnx, recipe auto")


def test_dry_run_shows_the_plan_and_writes_nothing(cli, folder: Path) -> None:
    before = set(folder.iterdir())
    code, out, err = cli("quantize", *STATIC, "--dry-run")
    assert (code, err) == (0, "")
    assert out == cli("plan", *STATIC).out
    assert set(folder.iterdir()) == before


def test_dry_run_may_write_its_report(cli, folder: Path) -> None:
    assert cli("quantize", *STATIC, "--dry-run", "--report", "r.json").code == 0
    report = json.loads(Path("r.json").read_text())
    assert (report["output"], report["comparison"]) == (None, None)
    assert len(report["nodes"]) == 12


def test_exclude_and_only(cli, folder: Path) -> None:
    def quantized(*options: str) -> set[str]:
        report = json.loads(cli("plan", *STATIC, *options, "--format", "json").out)
        return {node["op"] if "op" in node else node["op_type"] for node in report["nodes"] if node["scheme"]}

    assert "Conv" in quantized()
    assert quantized("-x", "Conv") == {"Gemm"}
    assert quantized("--only", "Gemm") == {"Gemm"}
    assert quantized("--only", "Gemm", "--only", "Conv", "-x", "Gemm_*") >= {"Conv"}


def test_globs_that_match_no_node_are_warned_of(cli, folder: Path) -> None:
    options = ("-x", "/haed/*", "-x", "Softmax", "-x", "BatchNormalization", "-x", "Gemm")
    found = cli("plan", *STATIC, *options, "--format", "json")
    assert found.err.count("(ignored-option)") == 3
    report = json.loads(found.out)
    assert not [note for note in report["notes"] if "matches" in note]
    assert [warning["message"] for warning in report["warnings"]] == [
        "no node matches --exclude /haed/*",
        "no node matches --exclude Softmax",
        "no node is left that matches --exclude BatchNormalization",
    ]


def test_the_metric_that_is_asked_for_is_measured_on_what_is_written(cli, folder: Path) -> None:
    code = "import numpy as np\n\n\ndef size(outputs, labels):\n    return float(np.abs(outputs['logits'][0]).sum())\n"
    Path("asked_metric.py").write_text(code)
    budget = ("--metric", "asked_metric:size", "--max-drop", 1e9)
    report = json.loads(cli("quantize", *STATIC, "--samples", 8, *budget, "--format", "json").out)
    metric = report["comparison"]["metric"]
    written = ort.InferenceSession("digits_cnn.int8.onnx")
    (logits,) = written.run(None, {"image": np.load("digits_calibration.npz")["image"][:1]})
    assert metric["quantized_value"] == pytest.approx(np.abs(logits).sum(), rel=1e-5)
    out = cli("quantize", *STATIC, "--samples", 8, "--fast", *budget, "-f").out
    assert [line for line in out.splitlines() if line.startswith("  asked_metric:size")]


def test_external_data(cli, folder: Path) -> None:
    report = json.loads(cli("quantize", *STATIC, "--external-data", "-o", "q.onnx", "--fast", "--format", "json").out)
    assert report["output"]["files"] == ["q.onnx", "q.onnx.data"]
    assert report["output"]["bytes"] == sum(Path(f).stat().st_size for f in ("q.onnx", "q.onnx.data"))
    assert ort.InferenceSession("q.onnx").run(None, {"image": np.zeros((1, 1, 8, 8), np.float32)})[0].shape == (1, 10)


def test_fewer_samples(cli, folder: Path) -> None:
    assert "compared on the first 5 of 100 samples from" in cli("quantize", *STATIC, "--samples", 5, "--fast").out


def test_a_budget_that_is_met(cli, folder: Path) -> None:
    assert cli("quantize", *STATIC, "--min-sqnr", 10, "--samples", 16).code == 0


def test_a_recipe_of_ones_own(cli, folder: Path) -> None:
    toml = cli("recipes", "static-int8").out
    Path("mine.toml").write_text(toml.replace('name = "static-int8"', 'name = "mine"'))
    out = cli("quantize", *STATIC, "-r", "mine.toml", "--fast").out
    assert squeezed(out)[0].endswith("recipe mine")


def test_statistics_serve_in_place_of_a_calibration(cli, folder: Path) -> None:
    few = (*STATIC, "--samples", "8")
    code, out, err = cli("calibrate", *few, "-o", "s.npz")
    assert (code, out) == (0, "")
    assert err.startswith("s.npz: ")
    assert err.partition("\n")[0].endswith("tensors measured on 8 samples")
    Path("as-is.toml").write_text(
        'scheme = "auto"\nsmoothing = false\nbias_correction = false\nreturn_to_float = false\nranges = "minmax"\n'
    )
    assert cli("quantize", *few, "-r", "as-is.toml", "--fast", "-o", "a.onnx").code == 0
    assert (
        cli("quantize", "digits_cnn.onnx", "--stats", "s.npz", "-r", "as-is.toml", "--fast", "-o", "b.onnx").code == 0
    )
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()
    assert cli("plan", "digits_cnn.onnx", "--stats", "s.npz").out == cli("plan", *STATIC).out


def test_statistics_of_another_model_are_refused(cli, folder: Path) -> None:
    assert cli("calibrate", *STATIC, "--samples", "8", "-o", "s.npz").code == 0
    model = onnx.load("digits_cnn.onnx")
    model.doc_string = "another"
    onnx.save(model, "other.onnx")
    for command in ("quantize", "plan"):
        result = cli(command, "other.onnx", "--stats", "s.npz")
        assert (result.code, "belong to another model" in result.err) == (2, True)


def test_statistics_that_nothing_needs_are_not_taken(cli, folder: Path) -> None:
    result = cli("calibrate", *STATIC, "-o", "s.npz", "-r", "weight-int8")
    assert (result.code, Path("s.npz").exists()) == (1, False)
    assert "needs no ranges" in result.err


def test_the_command_is_quiet_in_a_pipe(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "onnxq", "quantize", *STATIC, "--fast"], capture_output=True, text=True, check=True
    )
    assert "\x1b" not in done.stdout + done.stderr


def test_samples_of_a_function_are_counted(cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = "import numpy as np\ndef some():\n    for a in np.eye(8, dtype='f4')[:5]:\n"
    Path("counted_rows.py").write_text(content + "        yield {'image': np.tile(a, (1, 1, 8, 1))}\n")
    result = cli("quantize", "digits_cnn.onnx", "-d", "counted_rows:some", "--fast")
    assert result.code == 0
    assert "compared on 5 samples from counted_rows:some, the ones calibrated on" in result.out
