"""Samples from recordings: windows, rates, what goes to which input, and states."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, parser
from sound_support import detector, recordings, save_wav, tone

from onnxq.data.examine import examine
from onnxq.data.reading import PLAIN, ModelFacts, Reading
from onnxq.data.samples import Samples, input_specs, open_samples
from onnxq.data.validation import InputSpec
from onnxq.errors import DataError
from onnxq.evaluator import Evaluator
from onnxq.ir import infer_types, load, parse

pytest.importorskip("soundfile")
NO_FACTS = ModelFacts()


def spec(name: str, *shape: int | str, dtype: int = TensorProto.FLOAT) -> InputSpec:
    return InputSpec(name, dtype, shape)


def opened(source: Path, *inputs: InputSpec, reading: Reading = PLAIN, facts: ModelFacts = NO_FACTS) -> Samples:
    return open_samples(source, inputs, reading, facts)


def heard(path: Path) -> np.ndarray:
    import wave

    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768


def test_a_recording_is_cut_into_windows(tmp_path: Path) -> None:
    recordings(tmp_path, 2, seconds=0.05)
    samples = opened(tmp_path, spec("audio", "n", 300))
    assert samples.count == 6
    rows = [sample["audio"] for sample in samples]
    assert rows[0].shape == (1, 300)
    assert rows[0].dtype == np.float32
    whole = np.concatenate([row[0] for row in rows[:3]])
    np.testing.assert_array_equal(whole[:800], heard(tmp_path / "0.wav").astype(np.float32))
    assert not whole[800:].any()
    assert "no file says the model's rate: 16000 Hz" in samples.preparations[0].assumed


def test_a_rate_that_nobody_said_is_told_beside_wrong_values(tmp_path: Path) -> None:
    recordings(tmp_path, 2, seconds=0.05)
    text = """<ir_version: 8, opset_import: ["" : 17]> main (float[n, 1, 300] audio) => (float[n, 1, 300] y)
    <float[1] s = {1}, float[1] b = {0}, float[1] m = {50}, float[1] v = {0.01}>
    { y = BatchNormalization(audio, s, b, m, v) }"""
    model = parse(parser.parse_model(text).SerializeToString())
    found = examine(model, opened(tmp_path, spec("audio", "n", 1, 300)))
    codes = {line.code for line in found.warnings}
    assert {"wrong-normalization", "assumed-preprocessing"} <= codes


@pytest.mark.parametrize("name", ["serving_default_input_2:0", "audio"])
def test_channels_may_come_last(tmp_path: Path, name: str) -> None:
    recordings(tmp_path, 1, seconds=0.05)
    rows = [sample[name] for sample in opened(tmp_path, spec(name, "n", 300, 1))]
    assert rows[0].shape == (1, 300, 1)
    whole = np.concatenate([row[0, :, 0] for row in rows])
    np.testing.assert_array_equal(whole[:800], heard(tmp_path / "0.wav").astype(np.float32))


def test_a_short_recording_is_filled_up(tmp_path: Path) -> None:
    save_wav(tmp_path / "a.wav", tone(0.01))
    samples = opened(tmp_path / "a.wav", spec("x", 1, 1, 400), spec("lengths", "n", dtype=TensorProto.INT64))
    (only,) = samples
    assert only["x"].shape == (1, 1, 400)
    assert only["lengths"].tolist() == [160]
    assert not only["x"][0, 0, 160:].any()


def test_whole_recordings_of_their_own_length(tmp_path: Path) -> None:
    save_wav(tmp_path / "a.wav", tone(0.01))
    save_wav(tmp_path / "b.wav", tone(0.02))
    mask = spec("attention_mask", "n", "t", dtype=TensorProto.INT32)
    rows = list(opened(tmp_path, spec("input_values", "n", "t"), mask))
    assert [row["input_values"].shape for row in rows] == [(1, 160), (1, 320)]
    assert rows[1]["attention_mask"].tolist() == [[1] * 320]
    both = next(iter(opened(tmp_path, spec("input_values", 2, "t"), spec("attention_mask", 2, "t", dtype=7))))
    assert both["attention_mask"].sum(axis=1).tolist() == [160, 320]


def test_the_rate_comes_from_the_user_a_file_or_the_metadata(tmp_path: Path) -> None:
    save_wav(tmp_path / "w" / "a.wav", tone(0.1, 8000), 8000)
    facts = ModelFacts(tmp_path / "m.onnx", {"sample_rate": "8000"})
    wave = spec("audio", 1, "t")
    assert next(iter(opened(tmp_path / "w", wave, facts=facts)))["audio"].shape == (1, 800)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"sampling_rate": 16000}))
    samples = opened(tmp_path / "w", wave, facts=facts)
    assert next(iter(samples))["audio"].shape == (1, 1600)
    assert "waveform at 16000 Hz, resampled from 8000 Hz" in str(samples.preparations[0])
    assert "(preprocessor_config.json)" in str(samples.preparations[0])
    reading = Reading(("rate=4000",))
    assert next(iter(opened(tmp_path / "w", wave, reading=reading, facts=facts)))["audio"].shape == (1, 400)
    save_wav(tmp_path / "w" / "b.wav", tone(0.1, 22050), 22050)
    with pytest.raises(DataError, match=r"several rates: 8000 Hz \(1 file\) and 22050 Hz \(1 file\)"):
        opened(tmp_path / "w", wave)


def test_recordings_of_a_lower_rate_than_the_models_are_told(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        save_wav(tmp_path / "w" / f"{name}.wav", tone(0.1, 8000), 8000)
    save_wav(tmp_path / "w" / "d.wav", tone(0.1, 16000), 16000)
    wave = spec("audio", 1, "t")
    (found,) = opened(tmp_path / "w", wave, reading=Reading(("rate=16000",))).warnings
    assert found.code == "low-rate"
    assert found.message == (
        "3 of 4 recordings had 8000 Hz or less, and the model takes 16000: no sound above 4000 Hz is in them"
    )
    assert opened(tmp_path / "w", wave, reading=Reading(("rate=8000",))).warnings == ()
    (tmp_path / "w" / "b.wav").unlink()
    (tmp_path / "w" / "c.wav").unlink()
    for name in ("e", "f", "g"):
        save_wav(tmp_path / "w" / f"{name}.wav", tone(0.1, 44100), 44100)
    assert opened(tmp_path / "w", wave, reading=Reading(("rate=16000",))).warnings == ()


def test_scale_and_integers(tmp_path: Path) -> None:
    path = save_wav(tmp_path / "a.wav", tone(0.02))
    scaled = next(iter(opened(path, spec("x", 1, 320), reading=Reading(("scale=32768",)))))["x"]
    np.testing.assert_array_equal(scaled[0], (heard(path) * 32768).astype(np.float32))
    codes = next(iter(opened(path, spec("x", 1, 320, dtype=TensorProto.INT16))))["x"]
    assert codes.dtype == np.int16
    assert np.abs(codes[0] - heard(path) * 32768).max() <= 1


def test_windows_may_overlap(tmp_path: Path) -> None:
    path = save_wav(tmp_path / "a.wav", tone(0.05))
    rows = [row["x"][0] for row in opened(path, spec("x", 1, "t"), reading=Reading(("length=400,hop=200",)))]
    assert len(rows) == 3
    np.testing.assert_array_equal(rows[0][200:], rows[1][:200])
    with pytest.raises(DataError, match="leaves out parts of the sound"):
        opened(path, spec("x", 1, 300), reading=Reading(("hop=301",)))
    with pytest.raises(DataError, match="the model takes 300 samples, and --preprocess says length=400"):
        opened(path, spec("x", 1, 300), reading=Reading(("length=400",)))
    with pytest.raises(DataError, match="unknown key 'sice'"):
        opened(path, spec("x", 1, 300), reading=Reading(("sice=400",)))


def test_long_recordings_give_spread_windows(tmp_path: Path) -> None:
    save_wav(tmp_path / "a.wav", np.arange(200 * 800) / 200 / 800)
    samples = opened(tmp_path, spec("x", 1, 200))
    assert samples.count == 512
    assert samples.notes[0] == "512 of 800 windows are used, spread over each recording"
    assert list(samples)[-1]["x"].min() > 0.99


def test_classes_are_labels(tmp_path: Path) -> None:
    recordings(tmp_path / "no", 1, seconds=0.05)
    recordings(tmp_path / "yes", 1, seconds=0.05)
    samples = opened(tmp_path, spec("x", 1, 400))
    assert samples.labels()["_label"][0].tolist() == [0, 0, 1, 1]


def test_a_state_is_fed_through_each_recording(tmp_path: Path) -> None:
    model = load(detector(tmp_path / "m.onnx"))
    infer_types(model)
    recordings(tmp_path / "w", 2, seconds=0.1)
    facts = ModelFacts.of(model)
    samples = open_samples(tmp_path / "w", input_specs(model), PLAIN, facts)
    rows = list(samples)
    assert samples.count == len(rows) == 14
    evaluator = Evaluator(model, wide=True)
    for start in (0, 7):
        state = np.zeros((1, 1, 16), np.float32)
        for row in rows[start : start + 7]:
            np.testing.assert_array_equal(row["state"], state, strict=True)
            assert row["sr"] == 16000
            state = evaluator.run(row, ["stateN"])["stateN"]
    given = open_samples(tmp_path / "w", input_specs(model), Reading(state="stateN=state"), facts)
    for row, other in zip(rows, given, strict=True):
        np.testing.assert_array_equal(row["state"], other["state"], strict=True)
    assert [one.input for one in samples.preparations] == ["input", "state"]


def test_a_state_needs_the_length_of_a_step(tmp_path: Path) -> None:
    model = load(detector(tmp_path / "m.onnx", frames="t"))
    infer_types(model)
    save_wav(tmp_path / "a.wav", tone(0.1))
    with pytest.raises(DataError, match="how many samples a step has is not known") as caught:
        open_samples(tmp_path / "a.wav", input_specs(model), PLAIN, ModelFacts.of(model))
    assert "--preprocess length=512" in caught.value.hint
    reading = Reading(("length=256",))
    assert open_samples(tmp_path / "a.wav", input_specs(model), reading, ModelFacts.of(model)).count == 7


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([spec("mel", 1, 80, 3000)], "a.wav is a sound, and onnxq reads arrays"),
        ([spec("audio", 1, 400), spec("wave", 1, 400)], "'audio' and 'wave' both look like a waveform"),
        ([spec("audio", 1, 400), spec("h", 1, 4)], r"no output is the next value of 'h' \(float32\[1, 4\]\)"),
    ],
)
def test_models_that_take_something_else(inputs: list[InputSpec], message: str, tmp_path: Path) -> None:
    save_wav(tmp_path / "a.wav", tone(0.1))
    with pytest.raises(DataError, match=message):
        opened(tmp_path / "a.wav", *inputs)


def test_an_input_may_have_a_value(tmp_path: Path) -> None:
    save_wav(tmp_path / "a.wav", tone(0.1))
    samples = opened(tmp_path, spec("audio", 1, 400), spec("h", 1, 4), reading=Reading(("h.value=0.5",)))
    assert next(iter(samples))["h"].tolist() == [[0.5] * 4]


def test_silence_is_named_where_a_state_varies(tmp_path: Path) -> None:
    model = load(detector(tmp_path / "vad.onnx"))
    infer_types(model)
    save_wav(tmp_path / "wavs" / "a.wav", np.zeros(16000))
    reading = Reading(preprocess="rate=16000")
    samples = opened(tmp_path / "wavs", *input_specs(model), reading=reading, facts=ModelFacts.of(model))
    found = [one for one in examine(model, samples).warnings if one.code == "constant-samples"]
    assert [one.message for one in found] == ["every value of 'input' is 0, in all 63 samples"]
