"""Features of sound against their formulas, written out as loops, and what models take them."""

from __future__ import annotations

import cmath
import math
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto
from sound_support import recordings

from onnxq.data.reading import ModelFacts, Reading
from onnxq.data.samples import Samples, open_samples
from onnxq.data.sound.features import Features, find_layout, hz_to_mel, mel_to_hz, read_features, window_of
from onnxq.data.validation import InputSpec
from onnxq.errors import DataError

RATE = 8000
WAVE = np.sin(np.arange(200) ** 1.5 / 40) + 0.1 * np.cos(np.arange(200))


def spectrum(frame: list[float], n_fft: int) -> list[complex]:
    """The discrete Fourier transform by its definition."""
    return [
        sum(value * cmath.exp(-2j * math.pi * at * bin_ / n_fft) for at, value in enumerate(frame))
        for bin_ in range(n_fft // 2 + 1)
    ]


def mel(hz: float) -> float:
    return 1127 * math.log(1 + hz / 700)


def test_stft_is_the_transform_of_each_window() -> None:
    features = Features("stft", RATE, 32, 24, 10, "sqrt-hann", gain=2, offset=1)
    found = features.of(WAVE)
    assert found.shape == (18, 17, 2)
    for frame in (0, 7, 17):
        window = [math.sqrt(0.5 - 0.5 * math.cos(2 * math.pi * at / 24)) for at in range(24)]
        expected = spectrum([WAVE[10 * frame + at] * window[at] for at in range(24)], 32)
        np.testing.assert_allclose(found[frame, :, 0], [1 + 2 * value.real for value in expected], atol=1e-9)
        np.testing.assert_allclose(found[frame, :, 1], [1 + 2 * value.imag for value in expected], atol=1e-9)


@pytest.mark.parametrize(("log", "factor"), [("e", 1.0), ("10", 1 / math.log(10)), ("db", 10 / math.log(10))])
def test_log_mel_energies_are_sums_below_triangles(log: str, factor: float) -> None:
    features = Features("logmel", RATE, 64, 64, 30, "hann", 6, "htk", 100.0, 3000.0, log)
    found = features.of(WAVE)
    window = [0.5 - 0.5 * math.cos(2 * math.pi * at / 64) for at in range(64)]
    energies = [abs(value) ** 2 for value in spectrum([WAVE[30 + at] * window[at] for at in range(64)], 64)]
    edges = [700 * (math.exp((mel(100) + (mel(3000) - mel(100)) * at / 7) / 1127) - 1) for at in range(8)]
    for band in range(6):
        low, middle, high = edges[band : band + 3]
        total = 0.0
        for bin_, energy in enumerate(energies):
            hz = bin_ * RATE / 64
            height = (hz - low) / (middle - low) if hz <= middle else (high - hz) / (high - middle)
            total += max(height, 0) * energy
        assert found[1, band] == pytest.approx(factor * math.log(max(total, 1e-10)), rel=1e-9)


def test_banks_of_kaldi() -> None:
    features = read_features({"features": "fbank", "n_mels": 5}, RATE)
    assert features is not None
    assert (features.frame, features.hop, features.n_fft, features.window) == (200, 80, 256, "povey")
    frame = (WAVE - WAVE.mean()).tolist()
    frame = [frame[0] - 0.97 * frame[0], *(frame[at] - 0.97 * frame[at - 1] for at in range(1, 200))]
    window = [(0.5 - 0.5 * math.cos(2 * math.pi * at / 199)) ** 0.85 for at in range(200)]
    energies = [abs(value) ** 2 for value in spectrum([a * b for a, b in zip(frame, window, strict=True)], 256)]
    step = (mel(4000) - mel(20)) / 6
    for band in range(5):
        left = mel(20) + band * step
        heights = [1 - abs(mel(bin_ * RATE / 256) - left - step) / step for bin_ in range(128)]
        total = sum(max(height, 0) * energy for height, energy in zip(heights, energies, strict=False))
        assert features.of(WAVE)[0, band] == pytest.approx(math.log(total), rel=1e-9)


def test_scales_of_mel() -> None:
    hz = np.array([0, 440, 1000, 4000.0])
    np.testing.assert_allclose(hz_to_mel(hz, "slaney"), [0, 6.6, 15, 15 + 27 * math.log(4) / math.log(6.4)])
    for scale in ("htk", "slaney"):
        np.testing.assert_allclose(mel_to_hz(hz_to_mel(hz, scale), scale), hz, atol=1e-9)
    slaney = Features("logmel", 16000, 512, 400, 160, "hann", 40, "slaney", 0.0, 8000.0)
    np.testing.assert_allclose(slaney.banks.sum(axis=0) * 16000 / 512, 1, rtol=0.2)  # each has area 1
    assert window_of("ones", 3).tolist() == [1, 1, 1]
    assert window_of("hamming", 4)[0] == pytest.approx(0.08)


def spec(*shape: int | str, name: str = "mix", dtype: int = TensorProto.FLOAT) -> InputSpec:
    return InputSpec(name, dtype, shape)


STFT = Features("stft", 16000, 512, 512, 256, "hann")
MELS = Features("logmel", 16000, 512, 400, 160, "hann", 32, fmax=8000.0)


@pytest.mark.parametrize(
    ("features", "shape", "frames", "expected"),
    [
        (STFT, (1, 257, 1, 2), None, (1, 257, 1, 2)),
        (STFT, (1, "t", 257, 2), 4, (1, 4, 257, 2)),
        (STFT, (1, 2, 257, 5), None, (1, 2, 257, 5)),
        (MELS, ("n", 76, 32, 1), None, (1, 76, 32, 1)),
        (MELS, ("n", 1, 32, 76), None, (1, 1, 32, 76)),
        (MELS, ("n", 32, "t"), 9, (1, 32, 9)),
        (MELS, ("n", 32, 32), None, (1, 32, 32)),
        (MELS, ("n", "t", "f"), 9, (1, 9, 32)),
        (MELS, ("n", 76, 40), None, None),
        (MELS, ("n", 76, 32), 75, None),
        (STFT, (1, 257, 1), None, None),
        (MELS, ("n", 76, 32, 3), None, None),
    ],
)
def test_axes_are_found_by_their_sizes(
    features: Features, shape: tuple[int | str, ...], frames: int | None, expected: tuple[int, ...] | None
) -> None:
    layout = find_layout(spec(*shape), features, frames)
    if expected is None:
        assert layout is None
        return
    assert layout is not None
    assert layout.frames is not None
    made = features.of(np.arange(features.samples(layout.frames)) % 7 / 7.0)
    arranged = layout.arrange(made[None])
    assert arranged.shape == expected
    assert sorted(arranged.ravel().tolist()) == sorted(made.ravel().tolist())


def test_frames_come_before_bands_where_both_could_be() -> None:
    layout = find_layout(spec("n", 32, 32), MELS, None)
    assert layout is not None
    made = MELS.of(np.arange(MELS.samples(32)) % 5 / 5.0)
    np.testing.assert_array_equal(layout.arrange(made[None])[0], made)


def opened(source: Path, *inputs: InputSpec, preprocess: str) -> Samples:
    return open_samples(source, inputs, Reading(preprocess=preprocess), ModelFacts())


pytest.importorskip("soundfile")


def test_recordings_become_frames_that_follow_each_other(tmp_path: Path) -> None:
    recordings(tmp_path, 1, seconds=0.05)
    told = "features=logmel,rate=16000,n_mels=32,scale=32768"
    whole = next(iter(opened(tmp_path, spec("n", "t", 32), preprocess=told)))["mix"]
    assert whole.shape == (1, 3, 32)
    assert whole.dtype == np.float32
    samples = opened(tmp_path, spec("n", 2, 32, 1), preprocess=told)
    rows = [sample["mix"][0, :, :, 0] for sample in samples]
    np.testing.assert_allclose(np.concatenate(rows)[:3], whole[0], rtol=1e-6)
    assert samples.preparations[0].words.startswith("32 log mel energies of hann windows of 400 samples filled up")
    assert samples.preparations[0].settings["features"]["n_mels"] == 32


def test_lengths_and_masks_count_frames(tmp_path: Path) -> None:
    recordings(tmp_path, 1, seconds=0.05)
    inputs = [spec("n", 8, 80), spec("n", name="lengths", dtype=TensorProto.INT64)]
    (sample,) = opened(tmp_path, *inputs, preprocess="features=fbank,rate=16000")
    assert sample["lengths"].tolist() == [3]


@pytest.mark.parametrize(
    ("preprocess", "said"),
    [
        ("features=mfcc", "features cannot be 'mfcc'"),
        ("features=logmel,rate=16000", "no input takes frames of 80 bands: 'mix' is"),
        ("features=stft,n_fft=256", "no input takes frames of real and imaginary parts of 129 bins"),
        ("features=stft,n_mels=32", "has n_mels, which features=stft does not have"),
        ("features=logmel,n_mels=32,length=400", "has length, and features have frames"),
        ("features=logmel,n_mels=32,frame=400,n_fft=256", "a frame of 400 samples does not fit n_fft=256"),
        ("features=logmel,n_mels=32,fmax=9000,rate=16000", "bands from 0 to 9000 Hz do not fit 16000 Hz"),
        ("n_fft=512", "has n_fft without features"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, preprocess: str, said: str) -> None:
    recordings(tmp_path, 1, seconds=0.05)
    inputs = [spec("n", 76, 32)] if preprocess != "n_fft=512" else [spec("n", 400)]
    with pytest.raises(DataError) as error:
        opened(tmp_path, *inputs, preprocess=preprocess)
    assert said in error.value.message
    assert error.value.hint
