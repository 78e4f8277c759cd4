"""Features of sound that models take in place of the waveform: STFT, log mel energies, and the filter banks of Kaldi.

Sources: Allen, 1977, "Short Term Spectral Analysis, Synthesis, and Modification by Discrete Fourier Transform"; the mel
scales of HTK and of Slaney's Auditory Toolbox, as in librosa; `compute-fbank-feats` of Kaldi without dither.

Tests: `tests/data/test_sound_features.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import permutations
from typing import Any

import numpy as np

from onnxq.data.pictures.settings import Readers, number
from onnxq.data.validation import InputSpec
from onnxq.errors import DataError
from onnxq.text import counted

KINDS = ("stft", "logmel", "fbank")
WINDOWS = ("hann", "sqrt-hann", "hamming", "povey", "ones")
MELS = ("htk", "slaney")
LOGS = ("e", "10", "db")
FRAME_SECONDS, HOP_SECONDS = 0.025, 0.010  # of log mel energies, as in speech recognition
BANKS = 80  # mel bands, as there
STFT = 512
PREEMPHASIS, LOWEST = 0.97, 20.0  # of Kaldi
FLOOR, KALDI_FLOOR = 1e-10, float(np.finfo(np.float32).eps)  # of energies, below which a logarithm says nothing
LINEAR, STEP = 1000.0, math.log(6.4) / 27  # of Slaney's scale: linear up to so many Hz, then logarithmic


def whole(text: str) -> int | None:
    """Read a whole number above zero; None where it is none."""
    return int(text) if text.isascii() and text.isdecimal() and int(text) > 0 else None


def _among(words: Sequence[str]) -> Any:
    return lambda text: text.lower() if text.lower() in words else None


KEYS: Readers = {
    "features": _among(KINDS),
    "n_fft": whole,
    "frame": whole,
    "frames": whole,
    "window": _among(WINDOWS),
    "n_mels": whole,
    "mel": _among(MELS),
    "fmin": number,
    "fmax": number,
    "log": _among(LOGS),
    "gain": number,
    "offset": number,
}
EXAMPLES = {
    "features": f"features={'|'.join(KINDS)}",
    "n_fft": "n_fft=512, samples of a Fourier transform",
    "frame": "frame=400, samples of the window of a frame, at most n_fft",
    "frames": "frames=100, frames of a sample, where the model leaves them open",
    "window": f"window={'|'.join(WINDOWS)}",
    "n_mels": "n_mels=80, bands",
    "mel": f"mel={'|'.join(MELS)}",
    "fmin": "fmin=20, Hz where the lowest band begins",
    "fmax": "fmax=8000, Hz where the highest band ends",
    "log": f"log={'|'.join(LOGS)}",
    "gain": "gain=0.1: features are multiplied by it",
    "offset": "offset=2: it is added to features after that",
}


@dataclass(frozen=True)
class Features:
    """How a waveform becomes features.

    Attributes:
        kind: `stft`: real and imaginary parts; `logmel`: logarithms of mel energies; `fbank`: the same as Kaldi does.
        rate: Samples a second.
        n_fft: Samples of a transform; a frame is filled up with zeros.
        frame: Samples of the window.
        hop: Samples from one frame to the next.
        window: Its form.
        n_mels, mel, fmin, fmax: Number of bands, their scale, and the bounds of all in Hz.
        log: Base of the logarithm, or `db` for 10·log10.
        gain, offset: Features are multiplied by the one; then the other is added.

    """

    kind: str
    rate: int
    n_fft: int
    frame: int
    hop: int
    window: str
    n_mels: int = BANKS
    mel: str = "htk"
    fmin: float = 0.0
    fmax: float = 0.0
    log: str = "e"
    gain: float = 1.0
    offset: float = 0.0

    @property
    def bins(self) -> int:
        """How many values a frame has; of an STFT, complex ones."""
        return self.n_fft // 2 + 1 if self.kind == "stft" else self.n_mels

    def samples(self, frames: int) -> int:
        """Return how many samples so many frames take."""
        return (frames - 1) * self.hop + self.frame

    def frames(self, samples: int) -> int:
        """Return how many whole frames so many samples have, one at least."""
        return max((samples - self.frame) // self.hop + 1, 1)

    def of(self, wave: np.ndarray) -> np.ndarray:
        """Return the features of a waveform, float64.

        Args:
            wave: `[samples]`; it has `samples(frames)` of them.

        Returns:
            `[frames, bins, 2]` of an STFT, `[frames, bins]` of mel energies.

        """
        count = self.frames(len(wave))
        places = self.hop * np.arange(count)[:, None] + np.arange(self.frame)
        rows = wave.astype(np.float64)[places]
        if self.kind == "fbank":
            rows = rows - rows.mean(axis=1, keepdims=True)
            rows = rows - PREEMPHASIS * np.concatenate([rows[:, :1], rows[:, :-1]], axis=1)
        spectrum = np.fft.rfft(rows * window_of(self.window, self.frame), self.n_fft, axis=1)
        if self.kind == "stft":
            return self.gain * np.stack([spectrum.real, spectrum.imag], axis=2) + self.offset
        energies = (spectrum.real**2 + spectrum.imag**2) @ self.banks
        logs = np.log(np.maximum(energies, KALDI_FLOOR if self.kind == "fbank" else FLOOR))
        factor = {"e": 1.0, "10": 1 / math.log(10), "db": 10 / math.log(10)}[self.log]
        return np.asarray(self.gain * factor * logs + self.offset)

    @cached_property
    def banks(self) -> np.ndarray:
        """The triangles of all bands: float64 `[n_fft / 2 + 1, n_mels]`, each 1 at its peak, by Slaney of area 1."""
        frequencies = np.arange(self.n_fft // 2 + 1) * self.rate / self.n_fft
        low, high = hz_to_mel(np.array([self.fmin, self.fmax]), self.mel)
        edges = np.linspace(low, high, self.n_mels + 2)
        if self.kind == "fbank":  # Kaldi's triangles are straight on the mel scale, others in Hz
            at = hz_to_mel(frequencies, self.mel)
            found = _triangles(at, edges)
            found[-1] = 0.0
            return found
        corners = mel_to_hz(edges, self.mel)
        found = _triangles(frequencies, corners)
        return found * 2 / (corners[2:] - corners[:-2]) if self.mel == "slaney" else found

    def words(self) -> str:
        """Say for people what is done."""
        named = {"stft": "STFT", "logmel": f"{self.n_mels} log mel energies", "fbank": f"{self.n_mels} Kaldi fbanks"}
        size = f"{self.frame} samples" + (f" filled up to {self.n_fft}" if self.frame < self.n_fft else "")
        told = f"{named[self.kind]} of {self.window} windows of {size}, every {self.hop}"
        told += f", {self.fmin:g} to {self.fmax:g} Hz" if self.kind != "stft" else ""
        told += f", times {self.gain:g}" if self.gain != 1 else ""
        return told + (f", plus {self.offset:g}" if self.offset else "")


def _triangles(at: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the height at each place of the triangles between every third edge: `[places, edges - 2]`."""
    rising = (at[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - at[:, None]) / (edges[2:] - edges[1:-1])
    return np.asarray(np.maximum(np.minimum(rising, falling), 0.0))


def window_of(name: str, size: int) -> np.ndarray:
    """Return a window, float64 `[size]`: periodic, but `povey` symmetric as in Kaldi."""
    if name == "ones":
        return np.ones(size)
    turn = 2 * np.pi * np.arange(size)
    if name == "povey":
        return np.asarray((0.5 - 0.5 * np.cos(turn / max(size - 1, 1))) ** 0.85)
    if name == "hamming":
        return np.asarray(0.54 - 0.46 * np.cos(turn / size))
    hann = 0.5 - 0.5 * np.cos(turn / size)
    return np.asarray(np.sqrt(hann) if name == "sqrt-hann" else hann)


def hz_to_mel(hz: np.ndarray, scale: str) -> np.ndarray:
    """Return mels of frequencies."""
    if scale == "htk":
        return np.asarray(1127.0 * np.log1p(hz / 700.0))
    return np.asarray(np.where(hz < LINEAR, hz * 3 / 200, 15 + np.log(np.maximum(hz, LINEAR) / LINEAR) / STEP))


def mel_to_hz(mels: np.ndarray, scale: str) -> np.ndarray:
    """Return frequencies of mels."""
    if scale == "htk":
        return np.asarray(700.0 * np.expm1(mels / 1127.0))
    return np.asarray(np.where(mels < 15, mels * 200 / 3, LINEAR * np.exp(STEP * (mels - 15))))


def read_features(given: Mapping[str, Any], rate: int) -> Features | None:
    """Return the features that a user asks for; None for a waveform.

    Args:
        given: Settings by key; the other ones of sounds may be among them.
        rate: Samples a second.

    Raises:
        DataError: A setting belongs to other features, or does not go with another one.

    """
    kind = given.get("features")
    if kind is None:
        if stray := [key for key in given if key in KEYS]:
            raise DataError(f"--preprocess has {stray[0]} without features", f"Add {EXAMPLES['features']}.")
        return None
    if "length" in given:
        raise DataError("--preprocess has length, and features have frames", "Give frames=100, or leave it out.")
    mel_only = [key for key in ("n_mels", "mel", "fmin", "fmax", "log") if key in given]
    if kind == "stft" and mel_only:
        raise DataError(f"--preprocess has {mel_only[0]}, which features=stft does not have", "Ask for logmel.")
    stft = kind == "stft"
    frame = given.get("frame", given.get("n_fft", STFT) if stft else round(FRAME_SECONDS * rate))
    n_fft = given.get("n_fft", frame if stft else 1 << (frame - 1).bit_length())
    if frame > n_fft:
        raise DataError(f"--preprocess: a frame of {frame} samples does not fit n_fft={n_fft}", "Give a larger n_fft.")
    found = Features(
        kind,
        rate,
        n_fft,
        frame,
        given.get("hop", max(n_fft // 2, 1) if stft else max(round(HOP_SECONDS * rate), 1)),
        given.get("window", "povey" if kind == "fbank" else "hann"),
        given.get("n_mels", BANKS),
        given.get("mel", "htk"),
        given.get("fmin", LOWEST if kind == "fbank" else 0.0),
        given.get("fmax", rate / 2),
        given.get("log", "e"),
        given.get("gain", 1.0),
        given.get("offset", 0.0),
    )
    if not stft and not 0 <= found.fmin < found.fmax <= rate / 2:
        told = f"bands from {found.fmin:g} to {found.fmax:g} Hz do not fit {rate} Hz"
        raise DataError(f"--preprocess: {told}", f"Stay between 0 and {rate / 2:g}.")
    return found


@dataclass(frozen=True)
class FeatureLayout:
    """The places of the axes of features in an input.

    Attributes:
        order: Which of an array's axes (frames, bins, parts of a complex number) stand where, from the first to the
            last; -1 for an axis of one.
        frames: How many frames a sample has; None where that is open.

    """

    order: tuple[int, ...]
    frames: int | None = field(default=None)

    def arrange(self, features: np.ndarray) -> np.ndarray:
        """Return `[batch, frames, bins(, 2)]` as the input has it."""
        axes = [axis + 1 for axis in self.order if axis >= 0]
        found = features.transpose(0, *axes)
        for place, axis in enumerate(self.order, 1):
            found = np.expand_dims(found, place) if axis < 0 else found
        return found


def find_layout(spec: InputSpec, features: Features, frames: int | None) -> FeatureLayout | None:
    """Find the axes of features in an input behind its axis of the batch; None where they do not fit.

    Args:
        spec: The input.
        features: What it is to take.
        frames: How many the user asks for.

    """
    shape, kind = spec.shape, spec.numpy_dtype
    axes = 3 if features.kind == "stft" else 2
    if shape is None or kind is None or kind.kind != "f" or len(shape) < axes + 1:
        return None
    wanted = [frames, features.bins, 2][:axes]
    extra = len(shape) - 1 - axes
    best: FeatureLayout | None = None
    for order in sorted(set(permutations([*range(axes), *[-1] * extra])), key=_unusual):
        sizes = [1 if axis < 0 else wanted[axis] for axis in order]
        held = [spec.fixed(place) for place in range(1, len(shape))]
        known = all(size is None or want in (None, size) for size, want in zip(held, sizes, strict=True))
        sure = all(size == 1 for size, axis in zip(held, order, strict=True) if axis < 0)
        sure &= all(size == 2 for size, axis in zip(held, order, strict=True) if axis == 2)
        if known and sure:
            found = FeatureLayout(order, frames or held[order.index(0)])
            exact = held[order.index(1)] == features.bins
            if exact:
                return found
            best = best or found
    return best


def _unusual(order: tuple[int, ...]) -> tuple[Any, ...]:
    """Sort orders: frames before bins, parts last, axes of one outside."""
    return order.index(0) > order.index(1), 2 in order and order[-1] != 2, order


def refuse_shape(inputs: Sequence[InputSpec], features: Features) -> DataError:
    """Return the error of a model that takes no such features."""
    parts = "real and imaginary parts of " if features.kind == "stft" else ""
    shapes = ", ".join(f"'{spec.name}' is {spec}" for spec in inputs[:3])
    hint = "Give the n_fft" if features.kind == "stft" else "Give the n_mels"
    told = f"no input takes frames of {parts}{counted(features.bins, 'bin' if features.kind == 'stft' else 'band')}"
    return DataError(f"{told}: {shapes}", f"{hint} that the model was trained with, or arrays.")
