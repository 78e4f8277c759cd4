"""What a model is on each family of processors."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import ALL, build, floats, node, session, sqnr

import onnxq
from onnxq.cli import main
from onnxq.cli.tables import mispredicted
from onnxq.ir import load, parse
from onnxq.ops.quantized import host_arithmetic
from onnxq.verification import families
from onnxq.verification.families import (
    FamilyFigures,
    SaturatingFamilies,
    evaluated_sqnrs,
    recorded_latencies,
    recorded_target,
    saturation_loss,
    shown_families,
)
from onnxq.verification.records import Latency


@pytest.fixture
def wide(tmp_path: Path) -> tuple[Path, list[dict[str, np.ndarray]]]:
    """A product whose largest activations meet weights of one sign: it saturates in most outputs."""
    weight = np.abs(floats(256, 64, seed=1)) + 0.5
    path = tmp_path / "wide.onnx"
    onnx.save(build([node("MatMul", "x w", "y")], {"x": [64, 256]}, ["y"], {"w": weight}), path)
    rng = np.random.default_rng(2)
    return path, [{"x": rng.uniform(0, 1, (64, 256)).astype(np.float32)} for _ in range(3)]


def quantized(wide, target: str) -> onnxq.Report:
    path, samples = wide
    recipe = onnxq.load_recipe("static-int8").for_target(target)
    return onnxq.quantize(path, recipe, output=path.with_suffix(f".{target}.onnx"), samples=samples)


def test_the_default_target_is_shown_for_three_families(wide) -> None:
    report = quantized(wide, "cpu")
    assert [family.family for family in report.families] == list(shown_families("cpu"))
    figures = [family.sqnr for family in report.families]
    assert max(figures) - min(figures) < 0.5
    assert min(figures) > 30
    assert all(family.latency is not None and 0 < family.latency < 2 for family in report.families)
    assert sum(family.here for family in report.families) <= 1


def test_a_model_of_all_8_bits_is_worse_where_it_saturates(wide) -> None:
    report = quantized(wide, "cpu-vnni")
    by_name = {family.family: family for family in report.families}
    assert by_name["cpu-avx2"].saturates
    assert not by_name["cpu-vnni"].saturates
    assert by_name["cpu-avx2"].sqnr < by_name["cpu-vnni"].sqnr - 6


def test_evaluated_figures_are_those_of_onnxruntime_here(wide) -> None:
    path, samples = wide
    report = quantized(wide, "cpu-vnni")
    assert report.output is not None
    (found,) = evaluated_sqnrs(path, report.output.read_bytes(), samples, [host_arithmetic()])
    sessions = [session(p, ALL) for p in (path, report.output)]
    expected, got = (np.concatenate([s.run(None, sample)[0] for sample in samples]) for s in sessions)
    assert found == pytest.approx(sqnr(expected, got), abs=0.1)


def test_outputs_that_are_sequences_are_compared(tmp_path: Path) -> None:
    """The parts have different lengths, so they are no array together."""
    made = onnx.helper.make_tensor_sequence_value_info("y", onnx.TensorProto.FLOAT, None)
    weight = onnx.numpy_helper.from_array(np.abs(floats(256, 64, seed=1)) + 0.5, "w")
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [64, 256])
    split = onnx.numpy_helper.from_array(np.array([20, 44]), "lengths")
    nodes = [node("MatMul", "x w", "m"), node("SplitToSequence", "m lengths", "y", axis=1)]
    graph = onnx.helper.make_graph(nodes, "sequence", [x], [made], [weight, split])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    samples = [{"x": np.random.default_rng(2).uniform(0, 1, (64, 256)).astype(np.float32)}]
    report = onnxq.quantize(model, "static-int8", samples=samples, target="cpu-vnni")
    assert report.encoded is not None
    exact, saturated = evaluated_sqnrs(model.SerializeToString(), report.encoded, samples, ("exact", "saturating"))
    assert exact is not None
    assert saturated is not None
    assert exact > saturated + 6


@pytest.mark.parametrize(("target", "loses"), [("cpu-vnni", True), ("cpu", False)])
def test_exact_products_run_only_where_others_lose(monkeypatch: pytest.MonkeyPatch, target: str, loses: bool) -> None:
    weight = onnx.numpy_helper.from_array(np.abs(floats(256, 64, seed=1)) + 0.5, "w")
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [64, k]) for n, k in (("x", 256), ("y", 64)))
    graph = onnx.helper.make_graph([node("MatMul", "x w", "y")], "product", [x], [y], [weight])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    samples = [{"x": np.random.default_rng(2).uniform(0, 1, (64, 256)).astype(np.float32)}]
    report = onnxq.quantize(model, "static-int8", samples=samples, target=target)
    assert report.encoded is not None
    run: list[str] = []

    def counted(*given: Any) -> list[float | None]:
        run.extend(given[3])
        return evaluated_sqnrs(*given)

    monkeypatch.setattr(families, "evaluated_sqnrs", counted)
    lost = saturation_loss(
        SaturatingFamilies({"cpu-avx2": True}, here=False), model.SerializeToString(), parse(report.encoded), samples
    )
    assert lost is not None
    assert (lost > 6) == loses
    assert run == ["saturating", "exact"][: 1 + loses]


def test_labels_do_not_count_beside_scores(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w", "scores"), node("ArgMax", "scores", "label", axis=1, keepdims=0)]
    outputs = {"scores": onnx.TensorProto.FLOAT, "label": onnx.TensorProto.INT64}
    weight = floats(8, 3, seed=1)
    first, second = (
        build(nodes, {"x": [4, 8]}, outputs, {"w": w}) for w in (weight, weight + 0.1 * floats(8, 3, seed=3))
    )
    samples = [{"x": floats(4, 8, seed=2)}]
    (found,) = evaluated_sqnrs(first, second.SerializeToString(), samples, ("exact",))
    alone = onnxq.compare(first, second, samples, latency=False)
    assert alone.outputs[1].sqnr < alone.outputs[0].sqnr
    assert found == pytest.approx(alone.outputs[0].sqnr, abs=0.01)


def test_a_loss_that_is_no_number_leaves_a_family_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse(build([node("Relu", "x", "y")], {"x": [1]}).SerializeToString())
    found = {"saturating": 30.0, "exact": np.inf}
    monkeypatch.setattr(families, "evaluated_sqnrs", lambda *given: [found[given[3][0]]])
    monkeypatch.setattr(families, "losses_noted", lambda: nullcontext([1]))
    assert saturation_loss(SaturatingFamilies({"cpu-avx2": True}, here=False), model, model, []) is None


def test_what_was_predicted_is_in_the_model(wide) -> None:
    report = quantized(wide, "cpu")
    assert report.output is not None
    model = load(report.output)
    assert recorded_target(model) == "cpu"
    assert recorded_latencies(model) == {f.family: float(f"{f.latency:.2f}") for f in report.families}


@pytest.mark.parametrize("written", ["[1]", "no JSON", '{"cpu-avx2": "fast"}'])
def test_metadata_of_others_are_no_predictions(wide, written: str) -> None:
    path, _ = wide
    model = load(path)
    model.metadata["onnxq_latencies"] = written
    assert recorded_latencies(model) == {}
    assert recorded_target(model) == "cpu"


def test_targets_without_kernel_times_have_no_families() -> None:
    assert shown_families("generic") == ()
    assert shown_families("cpu-avx2") == shown_families("cpu")


@pytest.mark.parametrize(
    ("measured", "milliseconds", "said"), [(0.6, 5.0, False), (0.9, 5.0, True), (0.3, 5.0, True), (0.9, 0.1, False)]
)
def test_a_latency_far_from_its_prediction_is_said(measured: float, milliseconds: float, said: bool) -> None:
    families = [FamilyFigures("cpu-avx2", 40.0, 0.3), FamilyFigures("cpu-vnni", 40.0, 0.6, here=True)]
    latency = Latency(milliseconds, milliseconds * measured, measured, 9)
    assert ("--target native" in mispredicted(families, latency)) == said


def test_verify_holds_a_threshold_against_a_target(
    wide, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cli(*arguments: object) -> tuple[int, str, str]:
        return main([str(argument) for argument in arguments]), *capsys.readouterr()

    path, samples = wide
    report = quantized(wide, "cpu-vnni")
    np.savez(path.with_name("data.npz"), x=np.stack([sample["x"] for sample in samples]))
    arguments = ("verify", report.output, "--against", path, "-d", path.with_name("data.npz"), "--min-sqnr")
    by_name = {f.family: f.sqnr for f in report.families}
    between = (by_name["cpu-vnni"] + by_name["cpu-avx2"]) / 2
    arguments = (*arguments, between)
    code, _, err = cli(*arguments, "--target", "cpu-avx2")
    assert code == 1
    assert "cpu-avx2" in err
    assert cli(*arguments[:-2], "--target", "nonsense")[0] == 2
    code, out, _ = cli(*arguments[:-2], "--format", "json")
    assert code == 0
    assert {family["family"] for family in json.loads(out)["families"]} == set(shown_families("cpu"))
    monkeypatch.setattr("onnxq.api.verify.USELESS", between)  # which is asked for without a threshold
    code, _, err = cli(*arguments[:-2], "--target", "cpu-avx2")
    assert code == 1
    assert "SQNR on cpu-avx2" in err


@pytest.mark.parametrize(("predicted", "said"), [(8.0, True), (None, False)])
def test_verify_says_that_a_file_takes_another_time_than_it_predicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], predicted: float | None, said: bool
) -> None:
    """The prediction stands in the file; float takes more than a millisecond."""
    path, data = tmp_path / "m.onnx", tmp_path / "data.npz"
    onnx.save(build([node("MatMul", "x w", "y")], {"x": [512, 1024]}, ["y"], {"w": floats(1024, 1024)}), path)
    np.savez(data, x=floats(2, 512, 1024, seed=3))
    output = onnxq.quantize(path, "dynamic-int8", output=tmp_path / "q.onnx").output
    assert output is not None
    changed = onnx.load(output)
    recorded = {} if predicted is None else dict.fromkeys(shown_families("cpu"), predicted)
    next(p for p in changed.metadata_props if p.key == "onnxq_latencies").value = json.dumps(recorded)
    onnx.save(changed, output)
    assert main(["verify", str(output), "--against", str(path), "-d", str(data)]) == 0
    assert ("--target native --benchmark decides" in " ".join(capsys.readouterr().out.split())) == said
