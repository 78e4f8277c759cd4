"""Figures of decoders in reports: perplexity, greedy choices, latency of one token and of a prompt."""

from __future__ import annotations

import json

import onnx
import pytest
from decoders import genai_decoder, genai_samples, optimum_decoder
from helpers import build, floats, node

from onnxq.api.verify import verify
from onnxq.data.generated_text import generated_text
from onnxq.data.samples import input_specs, wrap_samples
from onnxq.ir import infer_types, load
from onnxq.ir.storage import residency
from onnxq.pipeline import add_metrics
from onnxq.pipeline.quantize import quantize
from onnxq.planning.recipe import in_blocks
from onnxq.report.as_json import report_dict
from onnxq.report.markdown import markdown
from onnxq.runtime.load_memory import load_memory
from onnxq.search.budget import Budget
from onnxq.stages.prepare import prepare
from onnxq.verification import decoding
from onnxq.verification.user_metric import compare_metric


@pytest.fixture
def decoder(tmp_path):
    onnx.save(optimum_decoder(), tmp_path / "m.onnx")
    texts = generated_text(prepare(tmp_path / "m.onnx", in_blocks(4), with_data=True).model)[:6]
    return tmp_path / "m.onnx", texts


def test_a_report_has_what_users_of_a_decoder_see(decoder, monkeypatch):
    monkeypatch.setattr(decoding, "load_memory", load_memory)
    path, texts = decoder
    report = quantize(path, in_blocks(4), samples=texts, output=path.with_name("q.onnx"))
    found = report.comparison.decoding
    assert found.perplexity.quantized_value == pytest.approx(found.perplexity.float_value, rel=0.2)
    assert 50 < found.greedy.quantized_value <= 100
    assert found.past == 64
    assert found.token.float_ms < found.prompt.float_ms
    names = [row[0] for row in found.rows()]
    assert names == ["perplexity", "greedy", "one token behind 64", "a prompt", "memory at load"]
    assert min(found.load_bytes) > 0
    written = markdown(report)
    assert all(name in written for name in names)
    stated = json.loads(json.dumps(report_dict(report)["comparison"]["decoding"]))
    assert stated["greedy"]["name"] == "greedy"
    assert stated["token"]["pairs"] > 0


def test_a_metric_that_is_asked_for_is_measured_once(decoder, monkeypatch):
    path, texts = decoder
    asked = []

    def counted(name, *given, **options):
        asked.append(name)
        return compare_metric(name, *given, **options)

    for module in (decoding, add_metrics):
        monkeypatch.setattr(module, "compare_metric", counted)
    comparison = quantize(
        path, in_blocks(4), samples=texts, output=path.with_name("q.onnx"), budget=Budget(metric="perplexity")
    ).comparison
    assert comparison.decoding.perplexity is comparison.metric
    assert sorted(asked) == ["greedy", "perplexity"]


def test_a_model_in_segments_has_its_perplexity_without_runs_of_its_own(decoder, monkeypatch):
    path, texts = decoder
    monkeypatch.setattr(residency, "LARGE", 0)
    monkeypatch.setattr(decoding, "compare_metric", None)
    found = quantize(path, in_blocks(4), samples=texts, output=path.with_name("q.onnx")).comparison.decoding
    model = load(path)
    infer_types(model)
    alike = compare_metric("perplexity", path, path.with_name("q.onnx"), wrap_samples(texts, input_specs(model)))
    assert found.perplexity.float_value == pytest.approx(alike.float_value, rel=1e-5)
    assert found.perplexity.quantized_value == pytest.approx(alike.quantized_value, rel=1e-3)
    assert found.perplexity.quantized_value == pytest.approx(found.perplexity.float_value, rel=0.2)
    assert (found.greedy, found.token, found.prompt) == (None, None, None)


def test_verify_measures_them_on_data_alone(decoder):
    path, texts = decoder
    quantize(path, in_blocks(8), samples=texts, output=path.with_name("q.onnx"))
    found = verify(path.with_name("q.onnx"), path, samples=texts).comparison.decoding
    assert found.greedy.quantized_value > 90
    assert verify(path.with_name("q.onnx"), path).comparison.decoding is None


def test_a_fast_run_and_another_model_have_none(decoder, tmp_path):
    path, texts = decoder
    report = quantize(path, in_blocks(4), samples=texts, output=tmp_path / "q.onnx", fast=True)
    assert report.comparison.decoding is None
    onnx.save(build([node("MatMul", "x w", "y")], {"x": [1, 64]}, ["y"], {"w": floats(64, 32)}), tmp_path / "o.onnx")
    report = quantize(tmp_path / "o.onnx", samples={"x": floats(8, 64)}, output=tmp_path / "p.onnx")
    assert report.comparison.decoding is None


def test_half_floats_and_caches_in_a_row_are_timed(tmp_path):
    model = genai_decoder(half=True)
    onnx.save(model, tmp_path / "m.onnx")
    report = quantize(tmp_path / "m.onnx", in_blocks(8), samples=genai_samples(model, 4), output=tmp_path / "q.onnx")
    assert report.comparison.decoding.token is not None
