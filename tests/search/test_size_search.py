"""`--max-size`: weights in fewer bits, those that matter least first, until the file is small enough."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import build, floats, node

from onnxq.data.samples import input_specs, wrap_samples
from onnxq.errors import CheckFailed, RecipeError
from onnxq.ir import load
from onnxq.ir.storage import residency
from onnxq.pipeline.options import declarations
from onnxq.pipeline.quantize import quantize
from onnxq.progress import Silent
from onnxq.search.budget import Budget
from onnxq.search.held_out import HoldoutSplit
from onnxq.search.size_search import file_bytes, meet_size_limit
from onnxq.search.variants import Variants, calibrate_and_round
from onnxq.stages.prepare import prepare

WIDTH, LAYERS = 128, 4


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Build products behind each other, the third one with weights that 4 bit do badly: one large in every block."""
    weights = {f"w{i}": floats(WIDTH, WIDTH, seed=i) / 12 for i in range(LAYERS)}
    weights["w2"][::32] *= 12
    nodes, value = [], "x"
    for index in range(LAYERS):
        nodes += [node("MatMul", f"{value} w{index}", f"y{index}"), node("Tanh", f"y{index}", f"t{index}")]
        value = f"t{index}"
    path = tmp_path / "m.onnx"
    path.write_bytes(build(nodes, {"x": [None, WIDTH]}, [value], weights).SerializeToString())
    return path


def samples() -> list[dict[str, np.ndarray]]:
    return [{"x": floats(16, WIDTH, seed=40 + index)} for index in range(6)]


def counts(path: Path) -> dict[str, int]:
    tensors = [tensor.data_type for tensor in onnx.load(str(path)).graph.initializer if len(tensor.dims) == 2]
    return {"int4": tensors.count(onnx.TensorProto.INT4), "int8": tensors.count(onnx.TensorProto.INT8)}


@pytest.mark.parametrize("given", [None, samples()], ids=["without data", "with data"])
def test_as_many_weights_go_to_4_bit_as_it_takes(model, tmp_path, given):
    eight = tmp_path / "eight.onnx"
    quantize(model, output=eight, samples=given, fast=given is None)
    limit = eight.stat().st_size - 4000  # one weight saves 6 kB less what stands around it
    report = quantize(model, output=tmp_path / "q.onnx", samples=given, budget=Budget(max_size=limit))
    assert (tmp_path / "q.onnx").stat().st_size <= limit
    assert counts(eight) == {"int4": 0, "int8": LAYERS}
    assert 1 <= counts(tmp_path / "q.onnx")["int4"] < LAYERS
    reasons = [n.reason for n in report.nodes if n.scheme == "weight-int4"]
    assert reasons
    assert all(reason.endswith("to meet the size limit") for reason in reasons)
    assert report.returned == (), "nothing was returned to float for accuracy"
    assert sum(note.startswith(f"stored weights of {len(reasons)} node") for note in report.notes) == 1
    onnx.checker.check_model(str(tmp_path / "q.onnx"), full_check=True)


def test_a_file_that_is_small_enough_is_the_same_as_without_a_limit(model, tmp_path):
    quantize(model, output=tmp_path / "free.onnx", samples=samples())
    size = (tmp_path / "free.onnx").stat().st_size
    quantize(model, output=tmp_path / "q.onnx", samples=samples(), budget=Budget(max_size=size * 2))
    assert (tmp_path / "q.onnx").read_bytes() == (tmp_path / "free.onnx").read_bytes()


def test_weights_in_a_file_of_their_own_keep_to_the_limit_together_with_the_model(model, tmp_path):
    """What stands between weights of their own file counts to the byte, and is worked towards."""
    eight, target = tmp_path / "eight.onnx", tmp_path / "q.onnx"
    whole = quantize(model, output=eight, external_data=True).output_bytes
    quantize(model, output=target, external_data=True, budget=Budget(max_size=whole))
    assert counts(target)["int8"] == LAYERS
    with pytest.raises(CheckFailed, match="smallest file that is possible") as refusal:
        quantize(model, output=tmp_path / "no.onnx", external_data=True, budget=Budget(max_size=20_000))
    smallest = int(re.search(r"has ([\d,]+) bytes", refusal.value.message)[1].replace(",", ""))
    assert smallest < whole
    for limit in (whole - 1, smallest):
        report = quantize(model, output=target, external_data=True, budget=Budget(max_size=limit), force=True)
        assert report.output_bytes == sum(path.stat().st_size for path in (target, tmp_path / "q.onnx.data")) <= limit
    assert counts(target)["int4"] == LAYERS


@pytest.mark.parametrize("given", [None, samples()], ids=["without data", "with data"])
def test_a_limit_that_cannot_be_met_is_refused_with_the_least_that_can(model, tmp_path, given):
    target = tmp_path / "q.onnx"
    with pytest.raises(CheckFailed, match="smallest file that is possible") as refusal:
        quantize(model, output=target, samples=given, budget=Budget(max_size=20_000))
    assert not target.exists()
    smallest = int(re.search(r"has ([\d,]+) bytes", refusal.value.message)[1].replace(",", ""))
    quantize(model, output=target, samples=given, budget=Budget(max_size=smallest))
    assert target.stat().st_size <= smallest
    assert counts(target)["int4"] == LAYERS


def variants_of(path: Path, recipe: str = "auto", most: int | None = 30_000) -> Variants:
    prepared = prepare(load(path), recipe, with_data=True, max_size=most)
    given = wrap_samples(samples(), input_specs(prepared.model))
    return calibrate_and_round(prepared, HoldoutSplit(prepared.model.copy(), given), given, None, Silent())


def test_what_a_large_weight_makes_unnecessary_stays_in_8_bit(tmp_path, monkeypatch):
    """It was kept: where the last weight in the order was the largest, all before it had gone to 4 bit for nothing."""
    weights = {"w0": floats(64, 64), "w1": floats(64, 64, seed=1) / 8, "w2": floats(64, 1024, seed=2) / 8}
    nodes = [node("MatMul", "x w0", "y0"), node("Tanh", "y0", "t0"), node("MatMul", "t0 w1", "y1")]
    nodes += [node("Tanh", "y1", "t1"), node("MatMul", "t1 w2", "y2")]
    path = tmp_path / "m.onnx"
    path.write_bytes(build(nodes, {"x": [None, 64]}, ["y2"], weights).SerializeToString())
    prepared = prepare(load(path), "weight-int8", with_data=True, max_size=30_000)
    given = wrap_samples([{"x": floats(16, 64, seed=seed)} for seed in range(4)], input_specs(prepared.model))
    variants = calibrate_and_round(prepared, HoldoutSplit(prepared.model.copy(), given), given, None, Silent())
    monkeypatch.setattr(
        "onnxq.search.size_search._noise", lambda variants, choices: {"y0": 1e-6, "y1": 2e-6, "y2": 1.0}
    )
    eight = file_bytes(variants, {})
    assert list(meet_size_limit(variants, {}, eight - 10_000)) == ["y2"]
    assert list(meet_size_limit(variants, {}, eight - 500)) == ["y0"]


def test_the_weight_that_loses_most_stays_in_8_bit_longest(model):
    variants = variants_of(model)
    everything = file_bytes(variants, meet_size_limit(variants, {}, 49_000))
    assert everything <= 49_000
    chosen = meet_size_limit(variants, {}, 60_000)
    assert 1 < len(chosen) < LAYERS
    assert "y2" not in chosen
    assert {choice.scheme for choice in chosen.values()} == {"weight-int4"}
    assert all(dict(choice.settings) == {"form": "qdq", "block_size": 32} for choice in chosen.values())
    assert meet_size_limit(variants_of(model), {}, 60_000) == chosen


def test_codes_of_4_bit_are_chosen_on_what_the_layers_read(model):
    variants = variants_of(model)
    chosen = meet_size_limit(variants, {}, 49_000)
    learned = variants.judge.sqnr(variants.model(chosen))
    nearest = Variants(variants.prepared, variants.stats, type(variants.weights)(), variants.split)
    assert learned > nearest.judge.sqnr(nearest.model(chosen)) + 0.5


def test_float_weights_go_to_8_bit_first(tmp_path, model):
    recipe = tmp_path / "r.toml"
    recipe.write_text('scheme = "dynamic-int8"\n')
    path = tmp_path / "conv.onnx"
    weights = {"k": floats(32, 16, 3, 3), "w": floats(32, 8)}
    nodes = [node("Conv", "x k", "c", pads=[1] * 4), node("GlobalAveragePool", "c", "p"), node("Flatten", "p", "f")]
    nodes.append(node("MatMul", "f w", "y"))
    path.write_bytes(build(nodes, {"x": [1, 16, 8, 8]}, ["y"], weights).SerializeToString())
    free = quantize(path, recipe, output=tmp_path / "free.onnx")
    assert free.counts().get("weight-int8", 0) == 0
    report = quantize(path, recipe, output=tmp_path / "q.onnx", budget=Budget(max_size=9_000))
    assert (tmp_path / "q.onnx").stat().st_size <= 9_000
    assert {n.scheme for n in report.nodes if n.op_type == "Conv"} == {"weight-int8"}
    with pytest.raises(CheckFailed, match="smallest"):
        quantize(path, recipe, output=tmp_path / "no.onnx", budget=Budget(max_size=9_000), exclude=["Conv"])


def test_accuracy_and_size_that_exclude_each_other_are_refused(model, tmp_path):
    with pytest.raises(CheckFailed, match="dB") as refusal:
        quantize(model, output=tmp_path / "q.onnx", samples=samples(), budget=Budget(min_sqnr=38, max_size=49_000))
    assert refusal.value.hint == "Allow a larger file, or ask for less.", "not to leave more of it float"
    assert not (tmp_path / "q.onnx").exists()


def test_a_large_model_is_searched_for_a_size_unless_its_weights_are_in_blocks(model, tmp_path, monkeypatch):
    monkeypatch.setattr(residency, "LARGE", 0)
    output = tmp_path / "q.onnx"
    for recipe, refused in (("auto", "the smallest file that is possible has"), ("weight-int4", "it would have")):
        with pytest.raises(CheckFailed, match=rf"{refused} [\d,]+ bytes, 20,000 are allowed"):
            quantize(model, recipe, output=output, budget=Budget(max_size=20_000))
        assert not output.exists()
    quantize(model, output=output, samples=samples(), budget=Budget(max_size=49_000))
    assert output.stat().st_size <= 49_000


@pytest.mark.parametrize(("text", "size"), [("10MB", 10_000_000), ("1.5 kB", 1500), ("2048", 2048), ("1 KiB", 1024)])
def test_sizes(text, size):
    assert declarations()["max_size"].parse(text) == size


@pytest.mark.parametrize("text", ["ten", "10 megs", "0", "-3", "", "1.5", "٣kB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(RecipeError, match="--max-size cannot be"):
        declarations()["max_size"].parse(text)


def test_a_limit_that_no_file_meets_is_refused():
    for limit in (0, -4):
        with pytest.raises(RecipeError, match=f"max-size is {limit}, which no file meets"):
            Budget(max_size=limit)
