"""Samples from pictures: the settings of each input, and a source that decodes one picture at a time.

Tests: `tests/data/test_picture_source.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from onnxq.data.constants import constant
from onnxq.data.npz import Source
from onnxq.data.pictures.configs import class_names, find_settings
from onnxq.data.pictures.decode import Decoder
from onnxq.data.pictures.files import Pictures
from onnxq.data.pictures.preprocess import PictureLayout, Preprocess, picture_layout, resolve_settings, shared_settings
from onnxq.data.pictures.settings import PictureSettings, parse_settings
from onnxq.data.reading import ModelFacts, Preparation, Reading
from onnxq.data.validation import InputSpec
from onnxq.errors import DataError
from onnxq.text import as_list, counted, join_words


@dataclass(frozen=True)
class PictureInputs:
    """The values that each input of a model gets.

    Attributes:
        pictures: By name, what is done with pictures; in the order of the inputs.
        constants: By name, an array that is the same for all samples.
        preparations: What there is to say about that.

    """

    pictures: Mapping[str, Preprocess]
    constants: Mapping[str, np.ndarray]
    preparations: tuple[Preparation, ...]

    @property
    def batch(self) -> int:
        """How many pictures one sample has."""
        return max((how.layout.batch or 1 for how in self.pictures.values()), default=1)


def takes_pictures(inputs: Sequence[InputSpec], reading: Reading) -> bool:
    """Whether an input has the shape of pictures."""
    shared, single = parse_settings(as_list(reading.preprocess), [spec.name for spec in inputs])
    return any(_layout(spec, shared, single.get(spec.name, {})) is not None for spec in inputs)


def picture_inputs(inputs: Sequence[InputSpec], facts: ModelFacts, reading: Reading) -> PictureInputs:
    """Decide the values of each input, by the user's settings, the files next to the model, and its shape.

    Raises:
        DataError: No input takes pictures, something is missing, or contradicts the model.

    """
    shared, single = parse_settings(as_list(reading.preprocess), [spec.name for spec in inputs])
    found, origin = find_settings(facts, shared.pop("config", None))
    hows: dict[str, Preprocess] = {}
    constants: dict[str, np.ndarray] = {}
    preparations = []
    for spec in inputs:
        own = single.get(spec.name, {})
        if "value" in own:
            constants[spec.name] = constant(spec, own["value"])
            preparations.append(_told(spec, constants[spec.name]))
            continue
        layout = _layout(spec, shared, own)
        if layout is None:
            raise _no_picture(spec, inputs)
        asked = {**shared, **own}
        settings = _fitting(found, spec, layout, asked)
        how, assumed = resolve_settings(spec, layout, shared_settings(settings, asked))
        hows[spec.name] = how
        said = " and ".join(filter(None, ["--preprocess" if asked else "", origin if settings else ""]))
        preparations.append(Preparation(spec.name, how.words(), said, how.as_settings(), assumed))
    if not hows:
        raise DataError("every input has a value, and none takes pictures", "Leave one to the pictures.")
    return PictureInputs(hows, constants, tuple(preparations))


def _layout(spec: InputSpec, shared: PictureSettings, own: PictureSettings) -> PictureLayout | None:
    return None if "value" in own else picture_layout(spec, own.get("layout", shared.get("layout")))


def _fitting(found: PictureSettings, spec: InputSpec, layout: PictureLayout, asked: PictureSettings) -> PictureSettings:
    """Take from a config what an input can have: the model's own shape and type outweigh a file next to it."""
    kept = dict(found)
    own = asked.get("size", (layout.height, layout.width))
    shorter = None if None in own else min(own)
    size = kept.get("size")
    if size is not None and any(side not in (None, given) for side, given in zip(own, size, strict=True)):
        del kept["size"]
        if isinstance(kept.get("resize"), int) and shorter is not None:  # the same share is cut off
            kept["resize"] = max(math.floor(kept["resize"] * shorter / min(size)), shorter)
    resize = kept.get("resize")
    if isinstance(resize, int) and "size" not in kept and shorter is not None and resize < shorter:
        kept["resize"] = "shortest"
    if isinstance(resize, int) and "size" not in kept and shorter is None:
        kept["size"] = (resize, resize)
    if spec.numpy_dtype is not None and spec.numpy_dtype.kind == "u":
        for key in ("scale", "mean", "std", "normalize"):
            kept.pop(key, None)
    if layout.channels not in (None, 3):
        for key in ("channels", "mean", "std"):
            value = kept.get(key)
            if key == "channels" or (value is not None and len(value) not in (1, layout.channels)):
                kept.pop(key, None)
    return kept


def _told(spec: InputSpec, constant: np.ndarray) -> Preparation:
    values = sorted({float(value) for value in constant.ravel()})
    words = f"always {', '.join(f'{value:g}' for value in values[:4])}{', …' if len(values) > 4 else ''}"
    return Preparation(spec.name, words, "--preprocess", {"value": values})


def _no_picture(spec: InputSpec, inputs: Sequence[InputSpec]) -> DataError:
    if len(inputs) > 1 and all(picture_layout(one, None) is None for one in inputs):
        said = " and ".join(f"'{one.name}' ({one})" for one in inputs[:2])
        return DataError(f"no input takes pictures: not {said}", "Give what the model takes: see `onnxq inspect`.")
    if len(inputs) == 1:
        hint = "Pictures go to inputs of three or four dimensions, of float or uint8, with 1, 3 or 4 channels."
        if (
            spec.shape is not None
            and len(spec.shape) in (3, 4)
            and all(spec.fixed(a) is None for a in range(1, len(spec.shape)))
        ):
            hint = "If it does, say which axis has the channels: --preprocess layout=nchw,size=224."
        return DataError(f"'{spec.name}' ({spec}) does not look like an input for pictures", hint)
    return DataError(
        f"'{spec.name}' ({spec}) does not look like an input for pictures",
        f"Give it a value: --preprocess {spec.name}.value=0.",
    )


def picture_source(pictures: Pictures, wanted: PictureInputs, facts: ModelFacts) -> Source:
    """Make a source of pictures that are decoded as they are asked for; one sample is in memory at a time.

    Raises:
        DataError: The numbers of pictures and inputs differ, there are fewer than the model's batch, or Pillow is not
            installed. When read: a picture cannot be decoded.

    """
    decoder, batch = Decoder(), wanted.batch
    width = len(pictures.rows[0])
    if width != len(wanted.pictures):
        names = join_words([f"'{name}'" for name in wanted.pictures])
        last = list(wanted.pictures)[-1]
        given = f"{pictures.label} gives {counted(width, 'picture')} a sample"
        raise DataError(
            f"{given}, and the model takes {len(wanted.pictures)}: {names}",
            f"Give a text file with so many paths in each line, or --preprocess {last}.value=0.",
        )
    count, dropped = divmod(len(pictures.rows), batch)
    if not count:
        raise DataError(
            f"{pictures.label} has {len(pictures.rows)} pictures, and the model takes {batch} at once", "Give more."
        )

    def read() -> Iterator[Mapping[str, np.ndarray]]:
        for start in range(0, count * batch, batch):
            yield _Decoded(partial(_sample, decoder, pictures.rows[start : start + batch], wanted))

    return Source(
        pictures.label,
        read,
        count,
        dropped,
        batch,
        read_labels=_labels(pictures, facts),
        preparations=wanted.preparations,
        notes=pictures.notes,
        decoders={name: how.first_picture for name, how in wanted.pictures.items()},
        enlarged=decoder.enlarged,
    )


class _Decoded(Mapping[str, np.ndarray]):
    """A sample whose pictures are decoded once one of its arrays is asked for: those between others are left out."""

    def __init__(self, decode: Callable[[], Mapping[str, np.ndarray]]) -> None:
        self._decode = decode

    @cached_property
    def _arrays(self) -> Mapping[str, np.ndarray]:
        return self._decode()

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def _sample(decoder: Decoder, rows: Sequence[Sequence[object]], wanted: PictureInputs) -> Mapping[str, np.ndarray]:
    sample: dict[str, np.ndarray] = dict(wanted.constants)
    for place, (name, how) in enumerate(wanted.pictures.items()):
        arrays = [decoder.read(row[place], how) for row in rows]  # type: ignore[arg-type]
        sample[name] = arrays[0] if how.layout.batch is None else _stacked(arrays)
    return sample


def _stacked(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return arrays[0][None] if len(arrays) == 1 else np.stack(arrays)


def _labels(pictures: Pictures, facts: ModelFacts) -> Callable[[], Mapping[str, np.ndarray]]:
    def read() -> Mapping[str, np.ndarray]:
        if pictures.classes is None:
            return {}
        numbers = class_numbers(pictures.names, pictures.label, facts)
        return {"_label": np.array([numbers[one] if numbers else one for one in pictures.classes], np.int64)}

    return read


def class_numbers(given: Sequence[str], label: str, facts: ModelFacts) -> list[int]:
    """Return the number of each class among the model's outputs: by name, by the folder's number, or by their order.

    Args:
        given: Names of the folders.
        label: Names where they are, for messages.
        facts: Of the model.

    Raises:
        DataError: None of that fits.

    """
    names = list(given)
    if not names:
        return []
    known = {name.lower(): index for index, name in reversed(list(enumerate(class_names(facts))))}
    if known and all(name.lower() in known for name in names):
        return [known[name.lower()] for name in names]
    if all(name.isdecimal() for name in names):
        return [int(name) for name in names]
    if facts.classes in (None, len(names)):
        return list(range(len(names)))
    raise DataError(
        f"{label} has {len(names)} folders of classes, and the model tells {facts.classes} apart",
        "Name the folders by the numbers of their classes: 0, 1, 2, …",
    )
