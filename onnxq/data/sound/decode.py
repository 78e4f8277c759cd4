"""Recordings decoded by soundfile, piece by piece: a long one is never in memory whole.

Tests: `tests/data/test_sound_decoding.py`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onnxq.data.extras import need
from onnxq.data.sound.resampling import Resampler
from onnxq.data.unread.formats import WEB_PAGE, is_web_page
from onnxq.errors import DataError
from onnxq.ir.storage.lfs import pointer_error
from onnxq.text import counted

UNKNOWN = (0, 0xFFFFFFFF)  # sizes that a recorder writes which cannot go back to the header


@dataclass(frozen=True)
class Recording:
    """One recording, opened.

    Attributes:
        path: Its file.
        frames: How many it has, at its own rate.
        rate: Frames a second.
        channels: How many it has.

    """

    path: Path
    frames: int
    rate: int
    channels: int


class SoundDecoder:
    """Reads recordings. The library is imported when the first decoder is made."""

    def __init__(self) -> None:
        self._library: Any = need("soundfile", "audio", "reading recordings")
        self._resamplers: dict[tuple[int, int], Resampler] = {}

    def open(self, path: Path) -> Recording:
        """Read what the header of a recording says.

        Raises:
            DataError: The file is broken, cut off, empty, or something else.

        """
        try:
            with path.open("rb") as file:
                start = file.read(512)
            found = self._library.info(str(path))
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}", "Check its name and permissions.") from error
        except (RuntimeError, TypeError) as error:
            raise _broken(path, start, error) from error
        if path.suffix.lower() == ".wav":
            _refuse_cut(path)
        if found.frames < 1:
            raise DataError(f"{path} holds no sound: it has no samples", "Remove it.")
        return Recording(path, int(found.frames), int(found.samplerate), int(found.channels))

    def read(self, recording: Recording, start: int, stop: int, rate: int, channels: int) -> np.ndarray:
        """Decode a piece at a rate; what lies outside the recording is silence.

        Args:
            recording: From `open`.
            start: First frame at `rate`.
            stop: Frame behind the last one.
            rate: Frames a second.
            channels: 1 for the mean of all channels; otherwise as many as the recording has.

        Returns:
            `[channels, stop - start]` in float64, from -1 to 1.

        Raises:
            DataError: The file is broken there, or holds NaN or infinity.

        """
        if channels not in (1, recording.channels):
            raise DataError(
                f"{recording.path} has {counted(recording.channels, 'channel')}, and the model takes {channels}",
                f"Convert it first, for example with sox {recording.path.name} -c {channels} OUT.wav.",
            )
        if rate == recording.rate:
            return self._frames(recording, start, stop, channels)
        pair = (recording.rate, rate)
        resampler = self._resamplers.setdefault(pair, Resampler(*pair))
        first, last = resampler.needed(start, stop)
        return resampler.resample(self._frames(recording, first, last, channels), first, start, stop)

    def _frames(self, recording: Recording, start: int, stop: int, channels: int) -> np.ndarray:
        """Decode frames at the recording's own rate."""
        first, last = max(start, 0), min(stop, recording.frames)
        made = np.zeros((channels, stop - start))
        if last <= first:
            return made
        try:
            read, _ = self._library.read(str(recording.path), last - first, first, dtype="float64", always_2d=True)
        except (RuntimeError, OSError) as error:
            raise DataError(f"{recording.path} cannot be decoded: {_reason(error)}", "Remove or replace it.") from error
        if len(read) != last - first:
            at = (first + len(read)) / recording.rate
            raise DataError(f"{recording.path} is cut off after {at:.1f} seconds", "Remove or replace it.")
        if not np.isfinite(read).all():
            raise DataError(f"{recording.path} holds NaN or infinity", "Remove or replace it.")
        made[:, first - start : last - start] = _mean(read) if channels == 1 else read.T
        return made


def _mean(frames: np.ndarray) -> np.ndarray:
    """Return the mean of the channels, summed one after another."""
    total = frames[:, 0].copy()
    for channel in range(1, frames.shape[1]):
        total += frames[:, channel]
    return np.asarray(total / frames.shape[1])


def _broken(path: Path, start: bytes, error: Exception) -> DataError:
    pointer = pointer_error(start, str(path), DataError, "data")
    if pointer is not None:
        return pointer
    if not start:
        return DataError(f"{path} is empty", "Remove it.")
    if is_web_page(start):
        return DataError(f"{path} is a web page, whatever its name says", WEB_PAGE.hint)
    kind = next((name for sign, name in SIGNS.items() if start.startswith(sign)), None)
    if kind is not None:
        return DataError(f"{path} is {kind}, whatever its name says", "Convert it to .wav or .flac.")
    return DataError(f"{path} cannot be decoded: {_reason(error)}", "Remove or replace it.")


SIGNS = {
    b"ID3": "an MP3 file",
    b"\xff\xfb": "an MP3 file",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"PK": "a zip archive",
    b"<": "a web page",
    b"{": "JSON",
}


def _reason(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text.rpartition(": ")[2].rstrip(".") or text


def _refuse_cut(path: Path) -> None:
    """Refuse a `.wav` file whose header promises more sound than is there."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(4) != b"RIFF":
            return
        file.seek(12)
        while len(head := file.read(8)) == 8:
            name, length = struct.unpack("<4sI", head)
            if name == b"data":
                if length not in UNKNOWN and file.tell() + length > size:
                    share = 100 * max(size - file.tell(), 0) / length
                    raise DataError(f"{path} is cut off: {share:.0f} % of its sound is there", "Remove or replace it.")
                return
            file.seek(length + length % 2, 1)
