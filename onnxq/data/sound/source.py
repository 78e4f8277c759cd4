"""Samples from recordings: windows of the waveform, and the steps of models that keep a state.

Tests: `tests/data/test_sound_source.py`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from onnxq.data.constants import constant
from onnxq.data.npz import Source
from onnxq.data.pictures.settings import Readers, number, parse_numbers, parse_settings
from onnxq.data.pictures.source import class_numbers
from onnxq.data.reading import ModelFacts, Preparation, Reading
from onnxq.data.recurrent.feed import Feed, feed_preparations, float_model, make_feed
from onnxq.data.recurrent.pairs import find_pairs
from onnxq.data.sound.decode import Recording, SoundDecoder
from onnxq.data.sound.features import EXAMPLES as FEATURE_EXAMPLES
from onnxq.data.sound.features import KEYS as FEATURE_KEYS
from onnxq.data.sound.features import FeatureLayout, Features, find_layout, read_features, refuse_shape, whole
from onnxq.data.sound.files import Sounds
from onnxq.data.text_file import read_object
from onnxq.data.validation import InputSpec
from onnxq.errors import DataError
from onnxq.text import as_list, counted, join_words
from onnxq.warning import WarningLine

SOUND = re.compile(r"audio|wave|wav|speech|signal|sound|pcm|samples|^input|^x$")
RATE = re.compile(r"^(sr|fs|rate|sample_?rate|sampling_?rate)$")
LENGTH = re.compile(r"len")
RATES = ("sampling_rate", "sample_rate", "samplerate", "sr")
CONFIGS = ("preprocessor_config.json", "feature_extractor_config.json", "config.json")
MOST_WINDOWS = 512  # of all recordings together, unless there are more recordings
LONGEST = 30.0  # seconds of a recording that is one sample
LESS, SHARE = 0.8, 0.25  # of the model's rate, and of the recordings: what had less has no high sounds
LOWEST = 100  # samples a second; a rate below it was meant in kHz
SHORTEST = 128  # frames of a waveform; a shorter axis holds features


def _rate_in_hz(text: str) -> int | None:
    rate = whole(text)
    return rate if rate is not None and rate >= LOWEST else None


def _above_zero(text: str) -> float | None:
    value = number(text)
    return value if value is not None and value > 0 else None


KEYS: Readers = {
    "rate": _rate_in_hz,
    "length": whole,
    "hop": whole,
    "scale": _above_zero,
    "value": parse_numbers,
    **FEATURE_KEYS,
}
EXAMPLES = {
    **FEATURE_EXAMPLES,
    "rate": "rate=16000, the model's samples a second, not thousands of them",
    "length": "length=512, samples of one window",
    "hop": "hop=256, samples from one window to the next; of features, from one frame to the next",
    "scale": "scale=32768: samples of -1 … 1 are multiplied by it",
    "value": "NAME.value=0, for an input that takes no sound",
}


@dataclass(frozen=True)
class SoundInputs:
    """The values that each input of a model gets.

    Attributes:
        wave: The waveform, or features of it.
        rate: The rate as a number; None where the model does not take it.
        lengths: How many samples of a window are sound; likewise.
        mask: 1 for those that are; likewise.
        states: What the model made of the window before.
        constants: By name, an array that is the same for all samples.
        features: What the waveform becomes; None where it stays one.
        layout: Where the input has the axes of features.

    """

    wave: InputSpec
    rate: InputSpec | None = None
    lengths: InputSpec | None = None
    mask: InputSpec | None = None
    states: tuple[InputSpec, ...] = ()
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    features: Features | None = None
    layout: FeatureLayout | None = None

    @property
    def channels(self) -> int:
        """How many channels the waveform has; features are made of one."""
        if self.layout is not None:
            return 1
        return (self.wave.fixed(2 if self.last else 1) or 1) if len(self.wave.shape or ()) == 3 else 1

    @property
    def last(self) -> bool:
        """Whether channels come behind the samples of a waveform."""
        return _channels_last(self.wave)

    @property
    def batch(self) -> int:
        """How many windows one sample has."""
        return (self.wave.fixed(0) or 1) if len(self.wave.shape or ()) > 1 else 1

    @property
    def length(self) -> int | None:
        """How many samples a window has; None where that is open."""
        if self.features is not None and self.layout is not None:
            return None if self.layout.frames is None else self.features.samples(self.layout.frames)
        return self.wave.fixed(len(self.wave.shape or ()) - (2 if self.last else 1))


def takes_sound(inputs: Sequence[InputSpec], reading: Reading) -> bool:
    """Whether an input has the shape of a waveform, or the user asks for features of sound."""
    asked = any(text.strip().startswith("features=") for one in as_list(reading.preprocess) for text in one.split(","))
    return asked or any(_is_wave(spec) for spec in inputs)


def _is_wave(spec: InputSpec) -> bool:
    shape, kind = spec.shape, spec.numpy_dtype
    if shape is None or len(shape) not in (1, 2, 3) or kind is None or not (kind.kind == "f" or kind == np.int16):
        return False
    if _channels_last(spec):
        return True
    length = spec.fixed(len(shape) - 1)
    return (length is None or length >= SHORTEST) and (len(shape) < 3 or spec.fixed(1) in (1, 2, None))


def _channels_last(spec: InputSpec) -> bool:
    """Whether a waveform is `[batch, length, channels]`; with two channels, the name has to say that it is sound."""
    if spec.shape is None or len(spec.shape) != 3:
        return False
    length, channels = spec.fixed(1), spec.fixed(2)
    named = SOUND.search(spec.name.lower()) is not None
    return (channels == 1 or (channels == 2 and named)) and (length is None or length >= SHORTEST)


def sound_inputs(
    inputs: Sequence[InputSpec],
    constants: Mapping[str, np.ndarray],
    features: Features | None = None,
    frames: int | None = None,
) -> SoundInputs:
    """Tell what each input takes, by its name, type and shape.

    Args:
        inputs: Of the model.
        constants: By name, arrays that the user gives.
        features: What the waveform becomes; None where it stays one.
        frames: How many of them a sample has, where the user says so.

    Raises:
        DataError: Several inputs look like a waveform, or one takes something else.

    """
    left = [spec for spec in inputs if spec.name not in constants]
    layouts: dict[str, FeatureLayout] = {}
    if features is not None:
        found = {spec.name: find_layout(spec, features, frames) for spec in left}
        layouts = {name: layout for name, layout in found.items() if layout is not None}
        if not layouts:
            raise refuse_shape(left, features)
    waves = [spec for spec in left if (_is_wave(spec) if features is None else spec.name in layouts)]
    if len(waves) > 1:
        named = [spec for spec in waves if SOUND.search(spec.name.lower())]
        waves = named or waves
    if len(waves) != 1:
        names = " and ".join(f"'{spec.name}'" for spec in waves[:2])
        raise DataError(
            f"{names} both look like {'features' if features else 'a waveform'}"
            if waves
            else "no input takes a waveform",
            "Give arrays: an .npz file.",
        )
    roles: dict[str, InputSpec] = {}
    states: list[InputSpec] = []
    for spec in (spec for spec in left if spec is not waves[0]):
        kind = "" if spec.numpy_dtype is None else spec.numpy_dtype.kind
        name = spec.name.lower()
        if "mask" in name and kind in "iub":
            roles["mask"] = spec
        elif kind in "iu" and RATE.match(name):
            roles["rate"] = spec
        elif kind in "iu" and LENGTH.search(name):
            roles["lengths"] = spec
        else:
            states.append(spec)
    layout = layouts.get(waves[0].name)
    return SoundInputs(waves[0], states=tuple(states), constants=constants, features=features, layout=layout, **roles)


def sound_sources(sounds: Sounds, inputs: Sequence[InputSpec], facts: ModelFacts, reading: Reading) -> list[Source]:
    """Make sources of recordings, which are decoded as they are asked for.

    A model with states gets one source for each recording, at whose beginning its states are reset.

    Raises:
        DataError: soundfile is not installed, a recording is broken, an input takes something else, or the rate or the
            length of a window is not known.

    """
    shared, single = parse_settings(as_list(reading.preprocess), [spec.name for spec in inputs], KEYS, EXAMPLES)
    constants = {spec.name: constant(spec, single[spec.name]["value"]) for spec in inputs if spec.name in single}
    wanted = None if "features" in shared else sound_inputs(inputs, constants)
    decoder = SoundDecoder()
    recordings = [decoder.open(path) for path in sounds.files]
    rate, said, assumed = _rate(recordings, shared.get("rate"), facts)
    features = read_features(shared, rate)
    wanted = wanted or sound_inputs(inputs, constants, features, shared.get("frames"))
    pairs = find_pairs(wanted.states, facts.outputs)
    stateful = bool(wanted.states or reading.state)
    if pairs is None:
        raise _no_state(wanted.states, facts)
    length, hop = _length(wanted, shared, stateful=stateful)
    cutter = _Cutter(decoder, wanted, rate, length, hop or length, float(shared.get("scale", 1.0)))
    windows, notes = _windows(cutter, recordings, stateful=stateful)
    origin = " and ".join(filter(None, ["--preprocess" if shared else "", said]))
    words = cutter.words(recordings)
    settings: dict[str, Any] = {"rate": rate, "length": length, "hop": hop, "scale": cutter.scale}
    settings |= {} if features is None else {"features": asdict(features)}
    told = (Preparation(wanted.wave.name, words, origin, settings, assumed),)
    classes = _classes(sounds, facts)
    if not stateful:
        sources = [_plain_source(sounds, cutter, list(chain(*windows)), classes, told)]
    elif wanted.batch > 1:
        raise DataError(
            f"the model takes {wanted.batch} recordings at once and has states", "Export it with a batch of 1."
        )
    else:
        model = float_model(pairs, facts) if pairs else None
        feeds = [make_feed(inputs, pairs, facts, model=model) if pairs else None for _ in windows]
        sources = [
            _stateful_source(cutter, steps, classes, feed, told) for steps, feed in zip(windows, feeds, strict=True)
        ]
    first = replace(sources[0], notes=(*sounds.notes, *notes), warnings=_of_rates(recordings, rate))
    return [first, *sources[1:]]


def _no_state(states: Sequence[InputSpec], facts: ModelFacts) -> DataError:
    names = join_words([f"'{spec.name}' ({spec})" for spec in states[:3]])
    outputs = ", ".join(spec.name for spec in facts.outputs) or "none"
    hint = f"Say which: --state OUTPUT={states[0].name}, or --preprocess {states[0].name}.value=0. Outputs: {outputs}."
    return DataError(f"no output is the next value of {names}", hint)


def _of_rates(recordings: Sequence[Recording], rate: int) -> tuple[WarningLine, ...]:
    """Say that recordings have a lower rate than the model takes."""
    low = [one.rate for one in recordings if one.rate < LESS * rate]
    if len(low) < SHARE * len(recordings):
        return ()
    total = counted(len(recordings), "recording")
    message = f"{len(low)} of {total} had {max(low)} Hz or less, and the model takes {rate}: no sound above "
    message += f"{max(low) // 2} Hz is in them"
    remedy = "Give recordings like those in use, or say the model's rate: --preprocess rate=16000."
    return (WarningLine("low-rate", message, remedy),)


def _rate(recordings: Sequence[Recording], asked: int | None, facts: ModelFacts) -> tuple[int, str, str]:
    """Return the rate of the model, who says it, and what is assumed."""
    if asked is not None:
        return asked, "", ""
    for name in CONFIGS:
        path = facts.beside(name)
        if path is not None and (found := _rate_of(read_object(path))) is not None:
            return found, name, ""
    found = _rate_of(facts.metadata)
    if found is not None:
        return found, "the model's metadata", ""
    rates = Counter(one.rate for one in recordings)
    if len(rates) > 1:
        shown = join_words([f"{rate} Hz ({counted(count, 'file')})" for rate, count in rates.items()])
        raise DataError(f"the recordings have several rates: {shown}", "Say the model's: --preprocess rate=16000.")
    rate = next(iter(rates))
    return rate, "", f"no file says the model's rate: {rate} Hz, that of the recordings, is assumed"


def _rate_of(table: Mapping[str, Any]) -> int | None:
    for key in RATES:
        text = str(table.get(key, ""))
        if text.isascii() and text.isdecimal() and int(text) > 0:
            return int(text)
    return None


def _length(wanted: SoundInputs, shared: Mapping[str, Any], *, stateful: bool) -> tuple[int | None, int | None]:
    """Return the length of a window and how far the next one is; None for whole recordings."""
    length, asked, hop = wanted.length, shared.get("length"), shared.get("hop")
    if wanted.features is not None:
        frames = None if wanted.layout is None else wanted.layout.frames
        if frames is None and stateful:
            hint = "Give those that it is used with: --preprocess frames=1."
            raise DataError("the model has states, and how many frames a step has is not known", hint)
        return length, None if frames is None else frames * wanted.features.hop
    if length is not None and asked not in (None, length):
        raise DataError(f"the model takes {length} samples, and --preprocess says length={asked}", "Leave it out.")
    length = length or asked
    if length is None and stateful:
        hint = "Give the length that it is used with: --preprocess length=512."
        raise DataError("the model has states, and how many samples a step has is not known", hint)
    if hop is not None and (length is None or hop > length):
        raise DataError(f"hop={hop} leaves out parts of the sound", "Ask for no more than the length of a window.")
    return length, hop


Window = tuple[int, Recording, int, int]  # number of the recording, it, first frame, frame behind the last one


@dataclass(frozen=True)
class _Cutter:
    """Cuts recordings into windows.

    Attributes:
        decoder: Reads them.
        wanted: What the inputs take.
        rate: Of the model.
        length: Of a window; None for whole recordings.
        hop: From one window to the next.
        scale: What samples of -1 … 1 are multiplied by.

    """

    decoder: SoundDecoder
    wanted: SoundInputs
    rate: int
    length: int | None
    hop: int | None
    scale: float

    def frames(self, recording: Recording) -> int:
        """Return how many samples a recording has at the model's rate."""
        return -(-recording.frames * self.rate // recording.rate)

    def windows(self, number: int, recording: Recording) -> list[Window]:
        """Return all windows of a recording; the last one is filled up with silence."""
        frames = self.frames(recording)
        if self.length is None or self.hop is None:
            return [(number, recording, 0, min(frames, int(LONGEST * self.rate)))]
        count = max(1, math.ceil((frames - self.length) / self.hop) + 1)
        starts = (index * self.hop for index in range(count))
        return [(number, recording, start, start + self.length) for start in starts]

    def words(self, recordings: Sequence[Recording]) -> str:
        """Say for people what is done."""
        features = self.wanted.features
        parts = [f"{features.words() if features is not None else 'waveform'} at {self.rate} Hz"]
        others = sorted({one.rate for one in recordings} - {self.rate})
        if others:
            parts.append(f"resampled from {join_words([f'{rate} Hz' for rate in others])}")
        if self.length is None:
            parts.append("whole recordings")
        else:
            parts.append(f"windows of {self.length} samples ({1000 * self.length / self.rate:.4g} ms)")
            parts += [f"every {self.hop}"] if self.hop != self.length else []
        if self._factor() != 1:
            parts.append(f"times {self._factor():g}")
        return ", ".join(parts)

    def _factor(self) -> float:
        return 32767.0 if self.scale == 1 and self.wanted.wave.numpy_dtype == np.int16 else self.scale

    def sample(self, windows: Sequence[Window]) -> dict[str, Any]:
        """Return the feeds of one window, or of a batch of them."""
        wanted = self.wanted
        longest = max(stop - start for _, _, start, stop in windows)
        rows, used = [], []
        for _, recording, start, stop in windows:
            made = self.decoder.read(recording, start, start + longest, self.rate, wanted.channels)
            rows.append(made)
            used.append(min(stop, self.frames(recording)) - start)
        wave = np.stack(rows) * self._factor()
        if wanted.features is not None and wanted.layout is not None:
            return self._features(wave[:, 0], used, wanted.features, wanted.layout)
        rank, dtype = len(wanted.wave.shape or ()), wanted.wave.numpy_dtype or np.dtype(np.float32)
        if dtype == np.int16:
            wave = np.clip(np.round(wave), -32768, 32767)
        if rank == 3:
            wave = np.moveaxis(wave, 1, 2) if wanted.last else wave
        else:
            wave = wave[:, 0] if rank == 2 else wave[0, 0]
        return self._with_roles(wave.astype(dtype), np.array(used, np.int64), longest)

    def _features(
        self, waves: np.ndarray, used: Sequence[int], features: Features, layout: FeatureLayout
    ) -> dict[str, Any]:
        """Return the feeds for waveforms `[batch, samples]`, of which so many samples are sound."""
        short = features.frame - waves.shape[1]
        waves = np.pad(waves, [(0, 0), (0, max(short, 0))])
        made = layout.arrange(np.stack([features.of(wave) for wave in waves]))
        count = features.frames(waves.shape[1])
        told = np.array([min(features.frames(samples), count) for samples in used], np.int64)
        return self._with_roles(made.astype(self.wanted.wave.numpy_dtype or np.float32), told, count)

    def _with_roles(self, values: np.ndarray, told: np.ndarray, longest: int) -> dict[str, Any]:
        """Return the feeds: the sound, and how much of it is sound where an input takes that."""
        wanted = self.wanted
        sample: dict[str, Any] = dict(wanted.constants) | {wanted.wave.name: values}
        for spec, array in (
            (wanted.rate, np.full(len(told), self.rate, np.int64)),
            (wanted.lengths, told),
            (wanted.mask, (np.arange(longest)[None] < told[:, None]).astype(np.int64)),
        ):
            if spec is not None:
                sample[spec.name] = _shaped(array, spec)
        return sample


def _shaped(array: np.ndarray, spec: InputSpec) -> np.ndarray:
    rank = array.ndim if spec.shape is None else len(spec.shape)
    one = array[0] if rank < array.ndim else array
    return np.asarray(one, spec.numpy_dtype or np.dtype(np.int64))


def _windows(
    cutter: _Cutter, recordings: Sequence[Recording], *, stateful: bool
) -> tuple[list[list[Window]], list[str]]:
    """Cut all recordings; of long ones only a part is used: the beginning where there are states, or spread windows."""
    most = max(MOST_WINDOWS // len(recordings), 1)
    found, notes, total = [], [], 0
    for index, recording in enumerate(recordings):
        windows = cutter.windows(index, recording)
        total += len(windows)
        if len(windows) > most:
            windows = windows[:most] if stateful else [windows[i * len(windows) // most] for i in range(most)]
        found.append(windows)
    used = sum(map(len, found))
    if used < total:
        which = "the first ones of each recording" if stateful else "spread over each recording"
        notes.append(f"{used} of {total} windows are used, {which}")
    short = sum(2 * cutter.frames(one) < cutter.length for one in recordings) if cutter.length is not None else 0
    if short and not stateful:
        window = f"a window of {cutter.length} samples"
        notes.append(f"{counted(short, 'recording')} shorter than half of {window}: silence fills it up")
    longest = int(LONGEST * cutter.rate)
    cut = sum(cutter.frames(one) > longest for one in recordings) if cutter.length is None else 0
    if cut:
        notes.append(f"{counted(cut, 'recording')} cut to {LONGEST:g} seconds")
    return found, notes


def _plain_source(
    sounds: Sounds,
    cutter: _Cutter,
    windows: Sequence[Window],
    classes: Sequence[int] | None,
    told: tuple[Preparation, ...],
) -> Source:
    batch = cutter.wanted.batch
    count, dropped = divmod(len(windows), batch)
    if not count:
        raise DataError(
            f"{sounds.label} gives {counted(len(windows), 'window')}, and the model takes {batch} at once", "Give more."
        )

    def read() -> Iterator[Mapping[str, Any]]:
        for start in range(0, count * batch, batch):
            yield cutter.sample(windows[start : start + batch])

    labels = None if classes is None else np.array([classes[number] for number, *_ in windows], np.int64)
    given: Mapping[str, np.ndarray] = {} if labels is None else {"_label": labels}
    return Source(sounds.label, read, count, dropped, batch, lambda: given, told)


def _stateful_source(
    cutter: _Cutter,
    steps: Sequence[Window],
    classes: Sequence[int] | None,
    feed: Feed | None,
    told: tuple[Preparation, ...],
) -> Source:
    label = str(steps[0][1].path)

    def read() -> Iterator[Mapping[str, Any]]:
        made = (cutter.sample([step]) for step in steps)
        return made if feed is None else feed.run([made], label)

    given: Mapping[str, np.ndarray] = {}
    if classes is not None:
        given = {"_label": np.full(len(steps), classes[steps[0][0]], np.int64)}
    told = told if feed is None else (*told, *feed_preparations(feed, ""))
    return Source(label, read, len(steps), read_labels=lambda: given, preparations=told, shareable=False)


def _classes(sounds: Sounds, facts: ModelFacts) -> list[int] | None:
    """Return the class of each recording among the model's outputs."""
    if sounds.classes is None:
        return None
    known = class_numbers(sounds.names, sounds.label, facts)
    return [known[one] if known else one for one in sounds.classes]
