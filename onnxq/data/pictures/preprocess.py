"""Derive the preprocessing of pictures from settings and the shape of an input.

Tests: `tests/data/test_picture_settings.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxq.data.conventions import Convention
from onnxq.data.pictures.settings import NORMALIZATIONS, PictureSettings
from onnxq.data.validation import InputSpec
from onnxq.errors import DataError

COUNTS = {"grey": 1, "rgb": 3, "bgr": 3, "rgba": 4, "bgra": 4}
BY_COUNT = {1: "grey", 3: "rgb", 4: "rgba"}
PAD = 114  # of a letterbox: the grey that detectors of the YOLO family are trained with
GREATEST = 255.0
NEEDS_SIZE = "Say what the model is trained with, for example --preprocess size=224."


@dataclass(frozen=True)
class PictureLayout:
    """The layout of an input: channels first or last, and whether there is an axis of pictures in front.

    Attributes:
        first: Whether channels come before height and width.
        batch: How many pictures one sample has; None where the input has no axis for them.
        channels, height, width: Sizes; None where the model leaves them open.

    """

    first: bool
    batch: int | None
    channels: int | None
    height: int | None
    width: int | None


@dataclass(frozen=True)
class Preprocess:
    """The preprocessing of each picture for one input.

    `value = (byte / scale - mean) / std`, by channel in the order of the input; nothing for an input of bytes.

    Attributes:
        layout: Of the input.
        dtype: Of the input.
        height, width: What comes out; None where pictures keep their own size.
        resize: `shortest`, `squash`, `letterbox`, `none`, or the length that the shorter side gets.
        interpolation: One of Pillow's filters.
        channels: `rgb`, `bgr`, `grey`, `rgba` or `bgra`.
        scale: What bytes are divided by.
        mean, std: One number, or one for each channel.
        pad: Colour of what no picture covers, by channel or one for all.
        align: Where a picture lies in a letterbox.

    """

    layout: PictureLayout
    dtype: np.dtype[Any]
    height: int | None
    width: int | None
    resize: str | int
    interpolation: str
    channels: str
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    pad: tuple[int, ...]
    align: str

    @property
    def count(self) -> int:
        """Number of channels."""
        return COUNTS[self.channels]

    def table(self) -> np.ndarray:
        """Tabulate what each byte becomes, `[channels, 256]`, rounded once."""
        levels = np.arange(256, dtype=np.float64) / self.scale
        values = np.stack([(levels - mean) / std for mean, std in self._figures()])
        return values.astype(self.dtype)

    def decode(self, values: np.ndarray) -> np.ndarray:
        """Get a picture for people back from the values of one sample's first row.

        Args:
            values: `[channels, height, width]` or `[height, width, channels]`, as `layout` says.

        Returns:
            Bytes `[height, width, 1 or 3]`, red first.

        """
        wide = np.moveaxis(values, 0, -1) if self.layout.first else values
        mean, std = np.array(self._figures()).T
        pixels = np.clip(np.rint((wide.astype(np.float64) * std + mean) * self.scale), 0, 255).astype(np.uint8)
        pixels = pixels[..., ::-1] if self.channels == "bgr" else pixels
        pixels = pixels[..., [2, 1, 0]] if self.channels == "bgra" else pixels
        return np.ascontiguousarray(pixels[..., :3])

    def first_picture(self, values: np.ndarray, most: int) -> np.ndarray:
        """Get the first picture of a sample back for people, every so many pixels; see `decode`.

        Args:
            values: Of the input, with or without an axis of pictures in front.
            most: Most pixels of a side.

        """
        one = values if self.layout.batch is None else values[0]
        rows, columns = one.shape[1:] if self.layout.first else one.shape[:2]
        step = max(-(-max(rows, columns) // most), 1)
        return self.decode(one[:, ::step, ::step] if self.layout.first else one[::step, ::step])

    def _figures(self) -> list[tuple[float, float]]:
        means, stds = (values * self.count if len(values) == 1 else values for values in (self.mean, self.std))
        return list(zip(means, stds, strict=True))

    def words(self) -> str:
        """Say for people what is done."""
        size = "their own size" if self.height is None else f"{self.height}×{self.width}"
        fit = {
            "squash": f"stretched to {size}",
            "letterbox": f"letterboxed to {size} on {'/'.join(map(str, self.pad))}",
            "none": size if self.height is None else f"centre {size}",
            "shortest": f"shrunk to cover {size}, centre cut out",
        }
        done = fit.get(str(self.resize)) or f"shorter side to {self.resize}, centre {size}"
        name = {"grey": "grey"}.get(self.channels, self.channels.upper())
        return f"{name}, {done}, {self._values_in_words()}"

    def _values_in_words(self) -> str:
        if self.scale == 1 and set(self.mean) == {0.0} and set(self.std) == {1.0}:
            return "bytes as they are"
        scaled = "x" if self.scale == 1 else f"x / {self.scale:g}"
        if set(self.mean) != {0.0}:
            scaled += f" - {_listed(self.mean)}"
        if set(self.std) != {1.0}:
            scaled = f"({scaled}) / {_listed(self.std)}" if " " in scaled else f"{scaled} / {_listed(self.std)}"
        return scaled

    def as_settings(self) -> dict[str, Any]:
        """Return it as plain data, as `--preprocess` takes it."""
        size = None if self.height is None else [self.height, self.width]
        return {
            "size": size,
            "resize": self.resize,
            "interpolation": self.interpolation,
            "channels": self.channels,
            "scale": self.scale,
            "mean": list(self.mean),
            "std": list(self.std),
            "pad": list(self.pad),
            "align": self.align,
            "layout": "nchw" if self.layout.first else "nhwc",
        }


def _listed(values: Sequence[float]) -> str:
    return f"{values[0]:g}" if len(set(values)) == 1 else "[" + ", ".join(f"{value:g}" for value in values) + "]"


def picture_layout(spec: InputSpec, wanted: str | None = None) -> PictureLayout | None:
    """Read from the shape of an input how it takes pictures; None where it takes none.

    Args:
        spec: The input.
        wanted: `nchw` or `nhwc` where that is known.

    """
    if spec.shape is None or len(spec.shape) not in (3, 4) or spec.numpy_dtype is None:
        return None
    if spec.numpy_dtype.kind not in "fu" or (spec.numpy_dtype.kind == "u" and spec.numpy_dtype.itemsize > 1):
        return None
    batched = len(spec.shape) == 4
    if not batched and None in [spec.fixed(axis) for axis in range(3)]:
        return None  # sequences rather
    start = int(batched)
    sizes = [spec.fixed(axis) for axis in range(start, start + 3)]
    firsts = [first for first in (True, False) if sizes[0 if first else 2] in BY_COUNT]
    if wanted is not None:
        first = wanted == "nchw"
        if sizes[0 if first else 2] not in (None, *BY_COUNT):
            return None
    elif not firsts:
        return None
    else:
        first = firsts[0]
    channels, height, width = sizes if first else (sizes[2], sizes[0], sizes[1])
    if (height is not None and height < 2) or (width is not None and width < 2):
        return None  # a vector
    return PictureLayout(first, (spec.fixed(0) or 1) if batched else None, channels, height, width)


def resolve_settings(spec: InputSpec, layout: PictureLayout, settings: PictureSettings) -> tuple[Preprocess, str]:
    """Put settings and an input together.

    Returns:
        What is done with each picture, and what is assumed for lack of a setting, in words.

    Raises:
        DataError: A setting contradicts the input, or one is missing that cannot be known.

    """
    assert spec.numpy_dtype is not None  # `picture_layout` has seen to it
    channels = _channels(spec, layout, settings)
    height, width = _size(spec, layout, settings)
    scale, mean, std, assumed = _values(spec, channels, settings)
    pad = settings.get("pad", (PAD if settings.get("resize") == "letterbox" else 0,))
    count = COUNTS[channels]
    for key, values in (("mean", mean), ("std", std), ("pad", pad)):
        if len(values) not in (1, count):
            hint = f"Give one number, or {count}." if count > 1 else "Give one number."
            raise DataError(f"{key} has {len(values)} numbers, and '{spec.name}' has {count} channels", hint)
    resize = settings.get("resize", "shortest")
    if height is None and resize != "none":
        raise DataError(f"the size of pictures for '{spec.name}' ({spec}) is not known", NEEDS_SIZE)
    if isinstance(resize, int) and height is not None and width is not None and resize < min(height, width):
        raise DataError(
            f"resize={resize} makes pictures smaller than the {height}×{width} of '{spec.name}'",
            "The shorter side has to cover the size, or choose resize=letterbox.",
        )
    filled = Preprocess(
        layout=layout,
        dtype=spec.numpy_dtype,
        height=height,
        width=width,
        resize=resize,
        interpolation=settings.get("interpolation", "bilinear"),
        channels=channels,
        scale=scale,
        mean=mean,
        std=std,
        pad=pad,
        align=settings.get("align", "center"),
    )
    return filled, assumed


def _channels(spec: InputSpec, layout: PictureLayout, settings: PictureSettings) -> str:
    if "channels" in settings:
        chosen: str = settings["channels"]
    else:
        chosen = BY_COUNT[layout.channels or 3]
    if layout.channels is not None and COUNTS[chosen] != layout.channels:
        raise DataError(
            f"channels={chosen} are {COUNTS[chosen]}, and '{spec.name}' has {layout.channels} ({spec})",
            f"Choose {' or '.join(name for name, count in COUNTS.items() if count == layout.channels)}.",
        )
    return chosen


def _size(spec: InputSpec, layout: PictureLayout, settings: PictureSettings) -> tuple[int | None, int | None]:
    fixed = (layout.height, layout.width)
    if "size" not in settings:
        if None in fixed and settings.get("resize") != "none":
            raise DataError(f"the size of pictures for '{spec.name}' ({spec}) is not known", NEEDS_SIZE)
        return fixed if None not in fixed else (None, None)
    wanted: tuple[int, int] = settings["size"]
    for own, given, side in zip(fixed, wanted, ("height", "width"), strict=True):
        if own not in (None, given):
            raise DataError(
                f"size={wanted[0]}x{wanted[1]} does not fit '{spec.name}' ({spec}), whose {side} is {own}",
                "Leave size out: the model says it.",
            )
    return wanted


def _values(
    spec: InputSpec, channels: str, settings: PictureSettings
) -> tuple[float, tuple[float, ...], tuple[float, ...], str]:
    """Return scale, mean, deviation, and what was assumed."""
    assert spec.numpy_dtype is not None
    said = [key for key in ("normalize", "scale", "mean", "std") if key in settings]
    if "normalize" in said and len(said) > 1:
        raise DataError(f"normalize and {said[1]} say the same thing", "Give one of them.")
    if spec.numpy_dtype.kind == "u":
        return _bytes(spec, settings)
    if "normalize" in settings:
        return (*_of_convention(NORMALIZATIONS[settings["normalize"]], channels), "")
    mean, std = settings.get("mean", (0.0,)), settings.get("std", (1.0,))
    if "scale" in settings:
        scale = settings["scale"]
    else:  # means and deviations below 1 are those of pictures from 0 to 1
        scale = GREATEST if max(map(abs, mean)) <= 1 and max(std) <= 1 else 1.0
    if max(map(abs, mean)) > GREATEST / scale + 1e-6:
        raise DataError(
            f"mean {max(mean):g} lies beyond what values have after their division by {scale:g}",
            f"Write {EXAMPLE_CENTRED} for a mean of bytes, or a mean from 0 to {GREATEST / scale:g}.",
        )
    assumed = "" if said else f"nothing says how pictures are normalised for '{spec.name}': 0 … 1 is assumed"
    return scale, mean, std, assumed


EXAMPLE_CENTRED = "scale=1"


def _bytes(spec: InputSpec, settings: PictureSettings) -> tuple[float, tuple[float, ...], tuple[float, ...], str]:
    plain = (settings.get("scale", 1.0), *settings.get("mean", (0.0,)), *settings.get("std", (1.0,)))
    if settings.get("normalize", "bytes") != "bytes" or set(plain) - {0.0, 1.0}:
        raise DataError(
            f"'{spec.name}' takes bytes ({spec}): nothing is scaled", "Leave scale, mean, std and normalize out."
        )
    return 1.0, (0.0,), (1.0,), ""


def _of_convention(convention: Convention, channels: str) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
    """Return the figures of a convention in the order of the channels; grey has those of green, alpha from 0 to 1."""
    order = {"rgb": (0, 1, 2), "bgr": (2, 1, 0), "grey": (1,), "rgba": (0, 1, 2), "bgra": (2, 1, 0)}[channels]
    mean, std = ([figures[index] for index in order] for figures in (convention.mean, convention.std))
    bytes_like = all(abs(one - 1 / GREATEST) < 1e-12 for one in convention.std)
    if bytes_like:  # of bytes: no division by 255 and by 1 / 255 one after the other
        mean, std, scale = [round(one * GREATEST, 3) for one in mean], [1.0] * len(order), 1.0
    else:
        scale = GREATEST
    if channels in ("rgba", "bgra"):
        mean, std = [*mean, 0.0], [*std, 1.0]
    return scale, _short(mean), _short(std)


def _short(values: Sequence[float]) -> tuple[float, ...]:
    return (values[0],) if len(set(values)) == 1 else tuple(values)


def shared_settings(found: Mapping[str, Any], asked: Mapping[str, Any]) -> PictureSettings:
    """Join settings that were found with those asked for, which win: one way to make values displaces another.

    Args:
        found: Of a config.
        asked: Of the user.

    """
    joined = dict(found)
    if "normalize" in asked:
        for key in ("scale", "mean", "std"):
            joined.pop(key, None)
    if {"scale", "mean", "std"} & set(asked):
        joined.pop("normalize", None)
    if "resize" in asked:
        joined.pop("pad", None)
    return {**joined, **asked}
