"""Decoders as exporters write them are quantized on data, on what they write themselves, and at any size."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from decoders import genai_decoder, genai_samples, optimum_decoder
from helpers import node
from onnx import TensorProto, helper

from onnxq.api.verify import verify
from onnxq.ir.storage import residency
from onnxq.pipeline.quantize import quantize
from onnxq.planning.recipe import in_blocks


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("large", [False, True])
def test_a_decoder_of_the_builder_is_rounded_layer_by_layer(tmp_path, monkeypatch, half, large):
    model = genai_decoder(half=half)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    samples = [*genai_samples(model, 12), *genai_samples(model, 12, length=3, past=6, seed=1)]
    if large:
        monkeypatch.setattr(residency, "LARGE", 0)
    report = quantize(tmp_path / "m.onnx", in_blocks(4), samples=samples, output=tmp_path / "q.onnx")
    nearest = in_blocks(4).setting(rounding="nearest")
    plain = quantize(tmp_path / "m.onnx", nearest, samples=samples, output=tmp_path / "n.onnx", fast=True)
    by_output_error = ("rounded 14 weights by output error", "rounded 15 weights by output error")  # one gains nothing
    assert any(note.startswith(by_output_error) for note in report.notes)
    made = Counter(one.op_type for one in onnx.load(tmp_path / "q.onnx").graph.node)
    joined = not large and not half  # queries, keys and values of two layers
    assert made["MatMulNBits"] == (11 if joined else 15)
    assert made["GroupQueryAttention"] == 2
    assert report.comparison is not None
    assert plain.comparison is not None
    assert report.comparison.worst_sqnr > plain.comparison.worst_sqnr + 2


@pytest.mark.parametrize("large", [False, True])
def test_a_decoder_of_the_builder_computes_in_integers_by_default(tmp_path, monkeypatch, large):
    onnx.save(genai_decoder(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data")
    samples = genai_samples(genai_decoder(), 8)
    if large:
        monkeypatch.setattr(residency, "LARGE", 0)
    report = quantize(tmp_path / "m.onnx", samples=samples, output=tmp_path / "q.onnx", fast=True)
    assert report.comparison is not None
    assert report.comparison.worst_sqnr > 25
    assert verify(tmp_path / "q.onnx", tmp_path / "m.onnx", samples=samples).passed  # of its own SimplifiedLayerNorm


@pytest.mark.parametrize("make", [genai_decoder, optimum_decoder])
@pytest.mark.parametrize("large", [False, True])
def test_a_decoder_with_a_cache_is_calibrated_on_what_it_writes(tmp_path, monkeypatch, make, large):
    onnx.save(make(), tmp_path / "m.onnx")
    if large:
        monkeypatch.setattr(residency, "LARGE", 0)
    report = quantize(tmp_path / "m.onnx", in_blocks(4), output=tmp_path / "q.onnx")
    assert "chose codes on 16 token sequences that the model generated itself" in report.notes


@pytest.mark.parametrize("stated", [False, True])
@pytest.mark.parametrize("large", [False, True])
def test_logits_of_the_last_token_alone_have_no_perplexity(tmp_path, monkeypatch, large, stated):
    """The builder's `prune_lm_head` leaves them: such a model is quantized, but writes and judges no text."""
    model = genai_decoder()
    head = next(one for one in model.graph.node if one.output[0] == "logits")
    last = node("Slice", f"{head.input[0]} from_last to_end on_tokens", "last_token")
    head.input[0] = "last_token"
    model.graph.node.insert(len(model.graph.node) - 1, last)
    numbers = {"from_last": [-1], "to_end": [2**31], "on_tokens": [1]}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.array(a), name) for name, a in numbers.items())
    if stated:
        model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 1
    onnx.save(model, tmp_path / "m.onnx")
    if large:
        monkeypatch.setattr(residency, "LARGE", 0)
    for samples in (None, genai_samples(model, 6)):
        report = quantize(tmp_path / "m.onnx", in_blocks(4), samples=samples, output=tmp_path / "q.onnx", force=True)
        assert report.comparison is not None
        assert report.comparison.decoding is None or report.comparison.decoding.perplexity is None


def test_a_token_behind_a_cache_is_computed_as_without(tmp_path):
    model = genai_decoder()
    onnx.save(model, tmp_path / "m.onnx")
    quantize(tmp_path / "m.onnx", in_blocks(8), samples=genai_samples(model, 8), output=tmp_path / "q.onnx")
    run = ort.InferenceSession(tmp_path / "q.onnx", providers=["CPUExecutionProvider"])
    (sample,) = genai_samples(model, 1, length=9)
    whole = run.run(None, sample)
    start = {name: array[:, :8] if name in ("input_ids", "attention_mask") else array for name, array in sample.items()}
    first = run.run(None, start)
    caches = {value.name: array for value, array in zip(model.graph.input[2:], first[1:], strict=True)}
    step = {"input_ids": sample["input_ids"][:, 8:], "attention_mask": sample["attention_mask"]} | caches
    np.testing.assert_allclose(run.run(None, step)[0][:, 0], whole[0][:, 8], rtol=0.05, atol=0.2)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_types_that_the_builder_states_are_those_of_the_result(tmp_path, bits):
    proto = genai_decoder(1, half=True)
    made = [name for each in proto.graph.node if each.op_type == "MatMul" for name in each.output]
    outputs = {value.name for value in proto.graph.output}
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT16, None) for n in made if n not in outputs]
    proto.graph.value_info.extend(infos)
    onnx.save(proto, tmp_path / "m.onnx")
    samples = genai_samples(proto, 2)
    quantize(tmp_path / "m.onnx", in_blocks(bits), samples=samples, output=tmp_path / "q.onnx", force=True)
    run = ort.InferenceSession(tmp_path / "q.onnx", providers=["CPUExecutionProvider"])
    logits = run.run(["logits"], samples[0])[0]
    assert logits.dtype == np.float16
    assert np.isfinite(logits).all()
