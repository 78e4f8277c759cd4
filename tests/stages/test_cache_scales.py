"""Scales of int8 caches, and the option that asks for them."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from decoders import TOKENS, genai_decoder, genai_samples, optimum_decoder

from onnxq import evaluate, in_blocks, quantize, verify
from onnxq.errors import DataError, RecipeError
from onnxq.ir import load
from onnxq.lowering.coded_caches import SCALES, coded_attentions


def samples(past: int = 0, seed: int = 0) -> list[dict[str, np.ndarray]]:
    return [dict(one) for one in genai_samples(genai_decoder(), 6, length=20, past=past, seed=seed)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("caches")
    onnx.save(genai_decoder(), folder / "float.onnx")
    for name, kind in (("int8", "int8"), ("plain", None)):
        quantize(
            folder / "float.onnx", in_blocks(4), samples=samples(), kv_cache=kind, output=folder / f"{name}.onnx",
            fast=True,
        )  # fmt: skip
    return folder


def test_the_greatest_magnitude_of_each_channel_becomes_the_last_code(made: Path) -> None:
    run = ort.InferenceSession(made / "float.onnx", providers=["CPUExecutionProvider"])
    names = [one.name for one in run.get_outputs()]
    found = [dict(zip(names, run.run(None, sample), strict=True)) for sample in samples()]
    for each in coded_attentions(load(made / "int8.onnx")):
        for slot, present in zip(SCALES, each.presents, strict=True):
            scale = each.node.inputs[slot]
            assert scale is not None
            assert scale.constant is not None
            most = np.max([np.abs(one[present.name]).max(axis=(0, 2), keepdims=True) for one in found], axis=0)
            stored = scale.constant.numpy() * 127
            assert (stored >= most * 0.9999).all()
            assert (stored <= most * 1.003).all()


def test_tokens_behind_a_cache_are_chosen_as_with_float_caches(made: Path) -> None:
    """Both models read the same 24 tokens one by one, each behind its own cache; weights are random, choices close."""
    one, two = (logits_of_tokens(made / f"{name}.onnx") for name in ("int8", "plain"))
    print(
        "SNR",
        10 * np.log10(np.square(two).sum() / np.square(one - two).sum()),
        np.mean(one.argmax(axis=-1) == two.argmax(axis=-1)),
    )
    assert np.square(one - two).sum() < 1e-2 * np.square(two).sum()
    assert np.mean(one.argmax(axis=-1) == two.argmax(axis=-1)) >= 0.85


def logits_of_tokens(path: Path) -> np.ndarray:
    run = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    inputs = run.get_inputs()
    kind = np.int8 if inputs[2].type == "tensor(int8)" else np.float32
    caches = {one.name: np.zeros((4, one.shape[1], 0, one.shape[3]), kind) for one in inputs[2:]}
    text = np.random.default_rng(2).integers(0, TOKENS, (24, 4, 1))
    found = []
    for step, ids in enumerate(text, 1):
        logits, *grown = run.run(None, {"input_ids": ids, "attention_mask": np.ones((4, step), np.int64), **caches})
        caches = dict(zip(caches, grown, strict=True))
        found.append(logits[:, -1])
    return np.array(found)


def test_the_evaluator_gives_what_onnxruntime_gives(made: Path) -> None:
    rng, sample = np.random.default_rng(0), samples(past=5)[0]
    for name in list(sample)[2:]:
        sample[name] = rng.integers(-128, 128, sample[name].shape).astype(np.int8)
    run = ort.InferenceSession(made / "int8.onnx", providers=["CPUExecutionProvider"])
    theirs, ours = run.run(None, sample), evaluate(made / "int8.onnx", sample)
    for (name, own), their in zip(ours.items(), theirs, strict=True):
        differs = np.abs(own.astype(float) - their).max()
        assert differs <= (4 if own.dtype == np.int8 else 0.05 * np.abs(their).max()), name


def test_verify_compares_with_float_caches(made: Path) -> None:
    both = [
        verify(made / f"{name}.onnx", made / "float.onnx", samples=samples(past=4, seed=3)).comparison
        for name in ("int8", "plain")
    ]
    assert both[0] is not None
    assert both[1] is not None
    assert both[0].worst_sqnr > both[1].worst_sqnr - 1.5
    assert verify(made / "int8.onnx", made / "int8.onnx").passed is not None


def test_the_recipe_of_the_file_says_so(made: Path) -> None:
    assert 'kv_cache = "int8"' in load(made / "int8.onnx").metadata["onnxq_recipe"]


def test_models_without_such_caches_are_refused(tmp_path: Path) -> None:
    onnx.save(optimum_decoder(), tmp_path / "m.onnx")
    with pytest.raises(RecipeError, match="no GroupQueryAttention"):
        quantize(tmp_path / "m.onnx", in_blocks(4), samples=samples(), kv_cache="int8", output=tmp_path / "q.onnx")


def test_data_are_asked_for(tmp_path: Path) -> None:
    onnx.save(genai_decoder(), tmp_path / "m.onnx")
    with pytest.raises(DataError, match="running the model on data"):
        quantize(tmp_path / "m.onnx", in_blocks(4), kv_cache="int8", output=tmp_path / "q.onnx")


def test_runtimes_without_the_operator_are_refused(tmp_path: Path) -> None:
    onnx.save(genai_decoder(), tmp_path / "m.onnx")
    with pytest.raises(RecipeError, match="openvino"):
        quantize(
            tmp_path / "m.onnx", "weight-int8", samples=samples(), kv_cache="int8", target="openvino",
            output=tmp_path / "q.onnx",
        )  # fmt: skip
