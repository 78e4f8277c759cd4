"""Recordings as numbers: decoding, channels, pieces, resampling, and broken files."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import peak_memory
from sound_support import save_wav, tone

from onnxq.data.sound.decode import SoundDecoder
from onnxq.data.sound.resampling import Resampler
from onnxq.errors import DataError

soundfile = pytest.importorskip("soundfile")


def test_16_bits_are_exact(tmp_path: Path) -> None:
    path = save_wav(tmp_path / "a.wav", tone(0.05))
    decoder = SoundDecoder()
    opened = decoder.open(path)
    assert (opened.frames, opened.rate, opened.channels) == (800, 16000, 1)
    expected = np.round(tone(0.05) * 32767) / 32768
    np.testing.assert_array_equal(decoder.read(opened, 0, 800, 16000, 1)[0], expected, strict=True)
    piece = decoder.read(opened, 700, 900, 16000, 1)[0]
    np.testing.assert_array_equal(piece, np.concatenate([expected[700:], np.zeros(100)]))


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24"])
def test_flac_is_the_same_as_wav(subtype: str, tmp_path: Path) -> None:
    codes = np.round(tone(0.05) * (1 << 23)).astype(np.int32) * 256
    codes = codes if subtype == "PCM_24" else codes // 65536 * 65536
    for name in ("a.flac", "a.wav"):
        soundfile.write(tmp_path / name, codes, 16000, subtype=subtype)
    decoder = SoundDecoder()
    both = [decoder.read(decoder.open(tmp_path / name), 0, 800, 16000, 1) for name in ("a.flac", "a.wav")]
    np.testing.assert_array_equal(*both, strict=True)


def test_channels_are_averaged_or_kept(tmp_path: Path) -> None:
    both = np.stack([tone(0.05), tone(0.05, seed=1)], axis=1)
    decoder = SoundDecoder()
    opened = decoder.open(save_wav(tmp_path / "a.wav", both))
    exact = np.round(both * 32767) / 32768
    np.testing.assert_array_equal(decoder.read(opened, 0, 800, 16000, 2), exact.T)
    np.testing.assert_array_equal(decoder.read(opened, 0, 800, 16000, 1)[0], exact.sum(axis=1) / 2)
    mono = decoder.open(save_wav(tmp_path / "b.wav", both[:, 0]))
    with pytest.raises(DataError, match="has 1 channel, and the model takes 2"):
        decoder.read(mono, 0, 800, 16000, 2)


@pytest.mark.parametrize(("source", "target"), [(44100, 16000), (8000, 16000), (48000, 16000), (22050, 16000)])
def test_a_tone_survives_resampling(source: int, target: int) -> None:
    wave = np.sin(2 * np.pi * 440 * np.arange(source) / source)
    resampler = Resampler(source, target)
    assert resampler.frames(source) == target
    first, last = resampler.needed(1000, target - 1000)
    made = resampler.resample(wave[None, first:last], first, 1000, target - 1000)[0]
    expected = np.sin(2 * np.pi * 440 * np.arange(1000, target - 1000) / target)
    assert np.abs(made - expected).max() < 1e-4


def test_what_the_lower_rate_cannot_hold_is_left_out() -> None:
    wave = np.sin(2 * np.pi * 15000 * np.arange(44100) / 44100)
    resampler = Resampler(44100, 16000)
    first, last = resampler.needed(1000, 2000)
    assert np.abs(resampler.resample(wave[None, first:last], first, 1000, 2000)).max() < 1e-3


def test_pieces_fit_together(tmp_path: Path) -> None:
    decoder = SoundDecoder()
    opened = decoder.open(save_wav(tmp_path / "a.wav", tone(0.2, 44100), 44100))
    whole = decoder.read(opened, 0, 3000, 16000, 1)
    pieces = [decoder.read(opened, start, start + 500, 16000, 1) for start in range(0, 3000, 500)]
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), whole, strict=True)


def test_a_long_recording_is_read_in_pieces(tmp_path: Path) -> None:
    path = save_wav(tmp_path / "a.wav", np.zeros(16000 * 60))
    decoder = SoundDecoder()
    opened = decoder.open(path)

    def read_all() -> None:
        for start in range(0, opened.frames, 1600):
            decoder.read(opened, start, start + 1600, 16000, 1)

    assert peak_memory(read_all) < 1 << 20


WAV = b"RIFF" + struct.pack("<I", 100) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16000, 32000, 2, 16)


def broken() -> dict[str, tuple[bytes, str]]:
    data = WAV + b"data" + struct.pack("<I", 3200) + bytes(3200)
    return {
        "empty.wav": (b"", "is empty"),
        "text.wav": (b"hello, this is no sound", "cannot be decoded"),
        "cut.wav": (data[:1000], "is cut off: 30 % of its sound is there"),
        "head.wav": (WAV[:20], "cannot be decoded"),
        "no_data.wav": (WAV, "cannot be decoded|holds no sound"),
        "silent.wav": (WAV + b"data" + struct.pack("<I", 0), "holds no sound"),
        "codec.wav": (data.replace(struct.pack("<H", 1), struct.pack("<H", 0x7777), 1), "cannot be decoded"),
        "channels.wav": (data[:22] + struct.pack("<H", 0) + data[24:], "cannot be decoded"),
        "mp3.wav": (b"ID3\x04" + bytes(200), "is an MP3 file, whatever its name says"),
        "frames.wav": (b"\xff\xfb\x90" + bytes(20), "cannot be decoded|is an MP3"),
        "png.wav": (b"\x89PNG\r\n\x1a\n" + bytes(100), "is a picture"),
        "jpeg.flac": (b"\xff\xd8\xff\xe0" + bytes(100), "is a picture"),
        "zip.wav": (b"PK\x03\x04" + bytes(100), "is a zip archive"),
        "page.flac": (b"<!DOCTYPE html><html></html>", "is a web page"),
        "json.flac": (b'{"error": "not found"}', "is JSON"),
        "pointer.wav": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "is a Git LFS pointer"),
        "empty.flac": (b"", "is empty"),
        "head.flac": (b"fLaC" + bytes(4), "cannot be decoded"),
        "zeros.flac": (bytes(500), "cannot be decoded"),
        "zeros.wav": (bytes(500), "cannot be decoded"),
    }


@pytest.mark.parametrize("name", broken())
def test_broken_recordings_are_named(name: str, tmp_path: Path) -> None:
    content, message = broken()[name]
    path = tmp_path / name
    path.write_bytes(content)
    decoder = SoundDecoder()
    with pytest.raises(DataError, match=message) as caught:
        decoder.open(path)
    assert name in caught.value.message
    assert caught.value.hint


def test_a_flac_file_that_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "a.flac"
    soundfile.write(path, tone(1.0), 16000)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    decoder = SoundDecoder()
    opened = decoder.open(path)
    with pytest.raises(DataError, match=r"a\.flac (is cut off after|cannot be decoded)"):
        decoder.read(opened, 0, opened.frames, 16000, 1)


def test_numbers_that_are_none(tmp_path: Path) -> None:
    wave = tone(0.05)
    wave[100] = np.nan
    soundfile.write(tmp_path / "a.wav", wave, 16000, subtype="FLOAT")
    decoder = SoundDecoder()
    with pytest.raises(DataError, match="holds NaN or infinity"):
        decoder.read(decoder.open(tmp_path / "a.wav"), 0, 800, 16000, 1)


def test_soundfile_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(DataError, match="reading recordings needs soundfile, which is not installed") as caught:
        SoundDecoder()
    assert caught.value.hint == "Install it: pip install 'onnxq[audio]'"
