"""The settings for the preprocessing of pictures: `KEY=VALUE`, checked.

Settings are a dictionary of the keys in `KEYS`. Those of a config file and those of the user are joined key by key.

Tests: `tests/data/test_picture_settings.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from onnxq.data.conventions import BYTES, CENTRED, IMAGENET, SIGNED, UNIT, Convention
from onnxq.errors import DataError
from onnxq.text import did_you_mean

PictureSettings = dict[str, Any]
NORMALIZATIONS: dict[str, Convention] = {
    "imagenet": IMAGENET,
    "unit": UNIT,
    "signed": SIGNED,
    "bytes": BYTES,
    "caffe": CENTRED,
}
CHANNELS = ("rgb", "bgr", "grey", "rgba", "bgra")
RESIZES = ("shortest", "squash", "letterbox", "none")
INTERPOLATIONS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
LAYOUTS = ("nchw", "nhwc")
ALIGNS = ("center", "topleft")
MOST_SIDE = 1 << 14


Readers = dict[str, Callable[[str], Any]]


def parse_settings(
    texts: Iterable[str],
    names: Sequence[str],
    keys: Readers | None = None,
    examples: Mapping[str, str] | None = None,
) -> tuple[PictureSettings, dict[str, PictureSettings]]:
    """Read what a user says.

    Args:
        texts: Each `KEY=VALUE`, or several with commas between them; a value may be a list with commas.
        names: Of the model's inputs: `NAME.KEY=VALUE` is about one of them.
        keys: How the value of each key is read; those of pictures by default.
        examples: What to write for each key.

    Returns:
        What is said about all pictures, and about single inputs by their names.

    Raises:
        DataError: A key is unknown, or its value is wrong.

    """
    shared: PictureSettings = {}
    single: dict[str, PictureSettings] = {}
    for key, value in _pairs(texts):
        name = max((name for name in names if key.startswith(f"{name}.")), key=len, default="")
        bare = key[len(name) + 1 :] if name else key
        front, point, behind = bare.rpartition(".")
        if point and behind in (KEYS if keys is None else keys):
            hint = did_you_mean(front, names, cutoff=0.6) or f"Inputs are {', '.join(names)}."
            raise DataError(f"--preprocess has '{key}', and no input is called '{front}'", hint)
        target = single.setdefault(name, {}) if name else shared
        if bare in target:
            raise DataError(f"--preprocess has '{key}' twice", "Give it once.")
        if bare == "value" and not name:
            hint = f"Write for example {names[0]}.value=0." if names else ""
            raise DataError("--preprocess: 'value' belongs to an input", hint)
        target[bare] = read_setting(bare, value, "--preprocess", keys, examples)
    return shared, single


def _pairs(texts: Iterable[str]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for text in texts:
        first = True
        for piece in text.split(","):
            key, equals, value = piece.partition("=")
            if equals:
                found.append((key.strip(), value.strip()))
            elif first or not found:
                meant = f"normalize={piece}" if piece in NORMALIZATIONS else "size=224"
                raise DataError(
                    f"--preprocess has '{piece}', which is not KEY=VALUE", f"Write for example --preprocess {meant}."
                )
            else:
                found[-1] = (found[-1][0], f"{found[-1][1]},{piece.strip()}")
            first = False
    return found


def read_setting(
    key: str, text: str, where: str, keys: Readers | None = None, examples: Mapping[str, str] | None = None
) -> Any:
    """Read the value of one setting.

    Raises:
        DataError: The key is unknown, or the value is wrong; `where` names the place.

    """
    known = KEYS if keys is None else keys
    if key not in known:
        hint = did_you_mean(key, known, cutoff=0.6) or f"Keys are {', '.join(known)}."
        if key in KEYS:
            hint = f"It is about pictures, and these data are none. {hint}"
        raise DataError(f"{where} has an unknown key '{key}'", hint)
    value = known[key](text)
    if value is None:
        hint = f"Write {(examples or EXAMPLES)[key]}."
        if "=" in text:
            hint = f"Put commas between settings: {key}={text.replace(' ', ',')}."
        raise DataError(f"{where}: {key} cannot be '{text}'", hint)
    return value


def _size(text: str) -> tuple[int, int] | None:
    found = re.fullmatch(r"(\d+)(?:\s*[x×,]\s*(\d+))?", text, re.ASCII)
    if found is None:
        return None
    height, width = int(found[1]), int(found[2] or found[1])
    return (height, width) if 0 < height <= MOST_SIDE and 0 < width <= MOST_SIDE else None


def _resize(text: str) -> str | int | None:
    if text in RESIZES:
        return text
    return int(text) if text.isascii() and text.isdecimal() and 0 < int(text) <= MOST_SIDE else None


def number(text: str) -> float | None:
    """Read a number or a fraction such as `1/255`; None where it is none."""
    above, slash, below = text.partition("/")
    try:
        value = float(above) / float(below) if slash else float(text)
    except (ValueError, ZeroDivisionError):
        return None
    return value if math.isfinite(value) else None


def parse_numbers(text: str) -> tuple[float, ...] | None:
    """Read numbers with commas between them, in brackets or not; None where one is none."""
    inner = text[1:-1] if text[:1] + text[-1:] in ("[]", "()") else text
    values = [number(part) for part in inner.replace(";", ",").split(",")]
    return None if None in values else tuple(value for value in values if value is not None)


def _positive(text: str) -> float | None:
    value = number(text)
    return value if value is not None and value >= 1 else None  # a scale below 1 is a factor, and this divides


def _deviations(text: str) -> tuple[float, ...] | None:
    values = parse_numbers(text)
    return values if values is not None and all(value > 0 for value in values) else None


def _pad(text: str) -> tuple[int, ...] | None:
    values = parse_numbers(text)
    if values is None or not all(value == int(value) and 0 <= value <= 255 for value in values):
        return None
    return tuple(int(value) for value in values)


def _one_of(known: Iterable[str]) -> Callable[[str], str | None]:
    words = {word: word for word in known} | {"gray": "grey", "centre": "center"}
    choices = tuple(known)
    return lambda text: word if (word := words.get(text.lower())) in choices else None


KEYS: dict[str, Callable[[str], Any]] = {
    "size": _size,
    "resize": _resize,
    "interpolation": _one_of(INTERPOLATIONS),
    "channels": _one_of(CHANNELS),
    "normalize": _one_of(NORMALIZATIONS),
    "scale": _positive,
    "mean": parse_numbers,
    "std": _deviations,
    "pad": _pad,
    "align": _one_of(ALIGNS),
    "layout": _one_of(LAYOUTS),
    "config": lambda text: text or None,
    "value": parse_numbers,
}
EXAMPLES = {
    "size": "size=224, or size=HEIGHTxWIDTH",
    "resize": f"resize=256 (the shorter side), or resize={'|'.join(RESIZES)}",
    "interpolation": f"interpolation={'|'.join(INTERPOLATIONS)}",
    "channels": f"channels={'|'.join(CHANNELS)}",
    "normalize": f"normalize={'|'.join(NORMALIZATIONS)}",
    "scale": "scale=255: values are divided by it",
    "mean": "mean=0.485,0.456,0.406, after the division by scale",
    "std": "std=0.229,0.224,0.225, above 0",
    "pad": "pad=114, from 0 to 255",
    "align": f"align={'|'.join(ALIGNS)}",
    "layout": f"layout={'|'.join(LAYOUTS)}",
    "config": "config=FILE, or config=none to ignore those next to the model",
    "value": "NAME.value=0, for an input that no picture goes to",
}
