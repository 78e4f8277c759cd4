"""`onnxq data`, and walk-throughs from files that people have to a quantized model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from picture_support import box_detector, classifier, photos
from sound_support import detector, recordings
from text_support import encoder, save_tokenizer, sentences


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_photos_and_a_classifier(here: Path, cli) -> None:
    classifier(here / "m.onnx")
    photos(here / "photos", 20)
    shown = cli("data", "m.onnx", "-d", "photos")
    assert shown.code == 0, shown.err
    assert "20 samples from photos" in shown.out
    assert "channel of" in shown.out
    result = cli("quantize", "m.onnx", "-d", "photos", "--preprocess", "scale=255", "-r", "static-int8", "--fast")
    assert result.code == 0, result.err
    assert Path("m.int8.onnx").exists()
    assert "-d photos --preprocess scale=255" in result.out


def test_very_many_photos_are_looked_at_here_and_there(here: Path, cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxq.data.examine.FEWEST_SEEN", 16)
    monkeypatch.setattr("onnxq.data.examine.MOST_SEEN", 1)
    monkeypatch.setattr("onnxq.stages.files.MANY", 19)
    classifier(here / "m.onnx")
    photos(here / "photos", 20)
    assert "16 of 20 samples from photos" in cli("data", "m.onnx", "-d", "photos").out
    assert "20 samples from photos" in cli("data", "m.onnx", "-d", "photos", "--samples", "20").out
    said = cli("quantize", "m.onnx", "-d", "photos", "--fast").err
    assert "20 samples are read many times: --samples 200 takes 200 of them" in said
    asked = ("plan", "m.onnx", "-d", "photos", "-r", "static-int8")
    assert "read many times" not in cli(*asked).err
    assert "read many times" in cli(*asked, "--sensitivity").err
    assert "read many times" not in cli(*asked, "--sensitivity", "--samples", 4).err


def test_photos_and_a_detector(here: Path, cli) -> None:
    box_detector(here / "m.onnx")
    photos(here / "coco/images/val", 18, 48, 80)
    Path("coco.yaml").write_text("path: coco\ntrain: images/val\nval: images/val\nnames:\n  0: cat\n  1: dog\n")
    shown = cli("data", "m.onnx", "-d", "coco.yaml", "--format", "json")
    assert shown.code == 0, shown.err
    (told,) = json.loads(shown.out)["preparations"]
    assert (told["settings"]["resize"], told["settings"]["size"]) == ("letterbox", [64, 64])
    assert (told["settings"]["pad"], told["settings"]["scale"]) == ([114], 255)
    assert told["origin"] == "the model's metadata"
    result = cli("quantize", "m.onnx", "-d", "coco.yaml", "-r", "static-int8", "--fast", "--metric", "cosine")
    assert result.code == 0, result.err
    assert "  cosine" in result.out


def test_sentences_and_an_encoder(here: Path, cli) -> None:
    encoder(here / "m.onnx")
    save_tokenizer(here)
    Path("s.csv").write_text(
        "text,label\n" + "\n".join(f"{one},{index % 4}" for index, one in enumerate(sentences(20)))
    )
    shown = cli("data", "m.onnx", "-d", "s.csv")
    assert shown.code == 0, shown.err
    assert "tokens a text, mean" in shown.out
    assert "labels: _label, _length, _next" in shown.out
    assert cli("quantize", "m.onnx", "-d", "s.csv", "--fast").code == 0


def test_recordings_and_a_voice_detector_with_a_state(here: Path, cli) -> None:
    detector(here / "m.onnx")
    recordings(here / "wavs", 3, seconds=0.1)
    shown = cli("data", "m.onnx", "-d", "wavs", "--format", "json")
    assert shown.code == 0, shown.err
    found = json.loads(shown.out)
    assert found["samples"] == 21
    assert [one["input"] for one in found["preparations"]] == ["input", "state"]
    state = next(one for one in found["inputs"] if one["name"] == "state")
    assert state["values"]["greatest"] > 0
    assert cli("quantize", "m.onnx", "-d", "wavs", "--fast").code == 0
    assert cli("verify", "m.int8.onnx", "--against", "m.onnx", "-d", "wavs", "--no-layers").code == 0


def test_arrays_with_a_state(here: Path, cli) -> None:
    detector(here / "m.onnx")
    steps = np.random.default_rng(0).normal(0, 0.1, (20, 256)).astype(np.float32)
    np.savez("d.npz", input=steps, sr=np.full(20, 16000))
    assert cli("data", "m.onnx", "-d", "d.npz").code == 2
    shown = cli("data", "m.onnx", "-d", "d.npz", "--state", "stateN=state")
    assert shown.code == 0, shown.err
    assert cli("quantize", "m.onnx", "-d", "d.npz", "--state", "stateN=state", "--fast").code == 0


def test_few_samples_are_warned_of_and_no_data_refused(here: Path, cli) -> None:
    classifier(here / "m.onnx")
    photos(here / "photos", 2)
    shown = cli("data", "m.onnx", "-d", "photos")
    assert shown.code == 0
    assert "only 2 samples" in shown.err
    refused = cli("data", "m.onnx")
    assert refused.code == 2
    assert "no data is given" in refused.err
