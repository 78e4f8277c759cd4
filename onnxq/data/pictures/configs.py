"""Preprocessing as other tools write it down: next to a model, or in its metadata.

The files are `preprocessor_config.json` (Hugging Face), `config.json` of timm, `args.yaml` and `metadata.yaml` of
ultralytics, and the `.xml` that OpenVINO keeps next to an exported model. The metadata are those of ultralytics,
OpenVINO's Model API and the ONNX standard (`Image.BitmapPixelFormat`, `Image.NominalPixelRange`).

Tests: `tests/data/test_picture_configs.py`.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from onnxq.data.pictures.flat_yaml import read_yaml
from onnxq.data.pictures.settings import INTERPOLATIONS, PictureSettings, number
from onnxq.data.reading import ModelFacts
from onnxq.data.text_file import read_object
from onnxq.errors import DataError

FILTERS = dict(enumerate(("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")))  # Pillow's numbers
PIXELS = {"Gray8": "grey", "Rgb8": "rgb", "Bgr8": "bgr", "Rgba8": "rgba", "Bgra8": "bgra"}
RANGES = {"NominalRange_0_255": "bytes", "Normalized_0_1": "unit", "Normalized_1_1": "signed"}
RESIZES = {
    "standard": "squash",
    "fit_to_window": "letterbox",
    "fit_to_window_letterbox": "letterbox",
    "crop": "shortest",
}
LEAST_SQUASHED = 384  # pixels of a side, from which on ConvNeXT's pictures are stretched and not cut
ULTRALYTICS = "ultralytics"
PREFIX = "model_info "  # of OpenVINO's keys in the metadata of an ONNX model


def find_settings(facts: ModelFacts, named: str | None = None) -> tuple[PictureSettings, str]:
    """Look for what is said about preprocessing.

    Args:
        facts: Of the model.
        named: A file to read instead, or `none` to read nothing.

    Returns:
        What was found, and where; empty where nothing was.

    Raises:
        DataError: A file cannot be read, or says what is not supported.

    """
    if named == "none":
        return {}, ""
    if named is not None:
        return read_config(Path(named)), named
    stem = facts.path.with_suffix(".xml").name if facts.path is not None else "model.xml"
    path = facts.beside("preprocessor_config.json")
    if path is not None:
        return read_config(path), path.name
    for name in ("config.json", "metadata.yaml", "args.yaml", stem):
        path = facts.beside(name)
        found = read_config(path, optional=True) if path is not None else {}
        if found:
            return found, name
    found = of_metadata(facts.metadata)
    return found, "the model's metadata" if found else ""


def read_config(path: Path, *, optional: bool = False) -> PictureSettings:
    """Read a file that says how pictures are preprocessed.

    Args:
        path: The file.
        optional: Whether it may be about something else; then nothing is found.

    Raises:
        DataError: It cannot be read, or says nothing about pictures though it should.

    """
    try:
        text = path.read_text("utf-8")
        if path.suffix == ".xml":
            found = of_openvino(_rt_info(text))
        elif path.suffix in (".yaml", ".yml"):
            found = of_ultralytics(read_yaml(text, str(path)))
        else:
            found = _of_json(json.loads(text), str(path))
    except (OSError, ValueError, ElementTree.ParseError, RecursionError) as error:
        if optional:
            return {}
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise DataError(
            f"{path} cannot be read: {reason}", "Mend it, or ignore it: --preprocess config=none."
        ) from error
    except DataError:
        if optional and path.suffix in (".yaml", ".yml"):
            return {}
        raise
    if not found and not optional:
        raise DataError(f"{path} says nothing about pictures", "Ignore it: --preprocess config=none.")
    return found


def _of_json(table: Any, label: str) -> PictureSettings:
    if not isinstance(table, dict):
        raise ValueError("it is no JSON object")
    timm = table.get("pretrained_cfg") or (table if "input_size" in table and "crop_pct" in table else None)
    if isinstance(timm, dict):
        return of_timm(timm, label)
    if any(key in table for key in ("image_mean", "do_resize", "do_normalize", "do_rescale", "image_processor_type")):
        return of_transformers(table, label)
    return {}


def of_transformers(table: Mapping[str, Any], label: str) -> PictureSettings:
    """Read a `preprocessor_config.json` of Hugging Face's image processors.

    Raises:
        DataError: It asks for something that is not supported.

    """
    found: PictureSettings = {}
    size, crop = _sides(table.get("size"), label), _sides(table.get("crop_size"), label)
    fraction = table.get("crop_pct")
    cropped = table.get("do_center_crop") or "max_size" in table or fraction is not None
    if isinstance(table.get("size"), int) and size is not None and not cropped:  # one number was for both sides then
        size = {"height": size["shortest_edge"], "width": size["shortest_edge"]}
    if table.get("do_resize", True) and size is not None:
        if "longest_edge" in size or table.get("do_pad"):
            found |= {"resize": "letterbox", "align": "topleft", "pad": (0,)}
        elif "height" in size:
            found |= {"resize": "squash", "size": (size["height"], size["width"])}
        elif isinstance(fraction, int | float) and 0 < fraction <= 1:
            edge = size["shortest_edge"]  # as ConvNeXT's processor does it
            found |= {"resize": int(edge / fraction) if edge < LEAST_SQUASHED else "squash", "size": (edge, edge)}
        else:
            found["resize"] = size["shortest_edge"]
    elif table.get("do_resize") is False:
        found["resize"] = "none"
    if table.get("do_center_crop") and crop is not None:
        edge = crop.get("shortest_edge", 0)
        found["size"] = (crop.get("height", edge), crop.get("width", edge))
        if found.get("resize") == "squash":
            raise DataError(
                f"{label} stretches pictures and then cuts them", "Say it with --preprocess, and config=none."
            )
    if "resample" in table:
        found |= _interpolation(FILTERS.get(table["resample"]), label)
    if table.get("do_flip_channel_order"):
        found["channels"] = "bgr"
    return found | _transformers_values(table, label)


def _transformers_values(table: Mapping[str, Any], label: str) -> PictureSettings:
    rescaled, normalised = table.get("do_rescale", True), table.get("do_normalize", True)
    factor = table.get("rescale_factor", 1 / 255)
    mean, std = table.get("image_mean"), table.get("image_std")
    if not (isinstance(factor, int | float) and factor > 0):
        raise DataError(f"{label}: rescale_factor is {factor!r}", "It is a number above 0.")
    found: PictureSettings = {"scale": 1 / factor if rescaled else 1.0}
    if abs(found["scale"] - round(found["scale"], 6)) < 1e-6:
        found["scale"] = round(found["scale"], 6)
    if normalised and mean is not None and std is not None:
        found |= {"mean": _floats(mean, "image_mean", label), "std": _floats(std, "image_std", label)}
        if not rescaled and max(found["mean"]) <= 1:
            found["scale"] = 255.0  # processors that normalise without a rescaling take means of 0 … 1 for 0 … 255
    return found


def of_timm(table: Mapping[str, Any], label: str) -> PictureSettings:
    """Read the `pretrained_cfg` of a model of timm.

    Raises:
        DataError: It asks for something that is not supported.

    """
    found: PictureSettings = {"scale": 255.0}
    shape = table.get("input_size")
    if not (isinstance(shape, list) and len(shape) == 3 and all(isinstance(one, int) for one in shape)):
        raise DataError(f"{label}: input_size is {shape!r}", "It is [channels, height, width].")
    height, width = shape[1:]
    fraction = table.get("crop_pct") or 0.875
    mode = table.get("crop_mode") or "center"
    if mode == "squash" and fraction == 1:
        found["resize"] = "squash"
    elif mode == "center":
        found["resize"] = math.floor(min(height, width) / fraction)
    else:
        raise DataError(f"{label}: crop_mode '{mode}' is not supported", "Say it with --preprocess, and config=none.")
    found["size"] = (height, width)
    if "interpolation" in table:
        found |= _interpolation(table["interpolation"], label)
    for key in ("mean", "std"):
        if key in table:
            found[key] = _floats(table[key], key, label)
    return found


def of_ultralytics(table: Mapping[str, Any]) -> PictureSettings:
    """Read what ultralytics writes about a model: `imgsz` and `task`; nothing where it is not from there."""
    size, task = table.get("imgsz"), str(table.get("task", ""))
    if task not in ("detect", "segment", "pose", "obb", "classify") or size is None:
        return {}
    sides = [size, size] if isinstance(size, int) else size
    if not (isinstance(sides, list | tuple) and len(sides) == 2 and all(isinstance(side, int) for side in sides)):
        return {}
    found: PictureSettings = {"size": tuple(sides), "scale": 255.0, "mean": (0.0,), "std": (1.0,)}
    fit: PictureSettings = {"resize": "shortest"} if task == "classify" else {"resize": "letterbox", "pad": (114,)}
    return {**found, **fit}


def of_openvino(table: Mapping[str, str]) -> PictureSettings:
    """Read what OpenVINO's Model API keeps under `model_info`.

    Pictures are taken to be blue first there, as OpenCV reads them, and `reverse_input_channels` turns them.
    """
    found: PictureSettings = {}
    for key, name in (("mean_values", "mean"), ("scale_values", "std")):
        values = tuple(number(text) for text in re.split(r"[\s,;\[\]()]+", table.get(key, "")) if text)
        if values and None not in values and (name == "mean" or min(value or 0 for value in values) > 0):
            found[name] = values
    if found:
        found["scale"] = 1.0
    resize = RESIZES.get(table.get("resize_type", ""))
    if resize is not None:
        found["resize"] = resize
    if resize == "letterbox":
        found["align"] = "center" if table["resize_type"].endswith("letterbox") else "topleft"
        found["pad"] = (int(number(table.get("pad_value") or "0") or 0),)
    if table.get("reverse_input_channels", "").lower() in ("true", "yes", "1"):
        found["channels"] = "rgb"
    return found


def of_metadata(metadata: Mapping[str, str]) -> PictureSettings:
    """Read what a model says in its own metadata."""
    found = of_openvino({key[len(PREFIX) :]: value for key, value in metadata.items() if key.startswith(PREFIX)})
    if found:
        return found
    if metadata.get("author", "").lower() == ULTRALYTICS:
        found = of_ultralytics({key: _literal(metadata.get(key, "")) for key in ("imgsz", "task")})
        if found:
            return found
    if metadata.get("Image.BitmapPixelFormat") in PIXELS:
        found["channels"] = PIXELS[metadata["Image.BitmapPixelFormat"]]
    if metadata.get("Image.NominalPixelRange") in RANGES:
        found["normalize"] = RANGES[metadata["Image.NominalPixelRange"]]
    return found


def class_names(facts: ModelFacts) -> list[str]:
    """Return the names of a model's classes in the order of its outputs; empty if they are not known."""
    path = facts.beside("config.json")
    table = {} if path is None else read_object(path)
    named = table.get("id2label") or table.get("label_names")
    if named is None:
        named = _literal(facts.metadata.get("names", ""))
    if isinstance(named, Mapping):
        pairs = [(int(key), str(name)) for key, name in named.items() if str(key).isdecimal()]
        return [name for _, name in sorted(pairs)] if len(pairs) == len(named) else []
    return [str(name) for name in named] if isinstance(named, list) else []


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text


def _sides(value: Any, label: str) -> dict[str, int] | None:
    if value is None:
        return None
    table = {"shortest_edge": value} if isinstance(value, int) else value
    known = [{"shortest_edge"}, {"height", "width"}, {"shortest_edge", "longest_edge"}, {"longest_edge"}]
    whole = isinstance(table, dict) and all(isinstance(side, int) and side > 0 for side in table.values())
    if not whole or set(table) not in known:
        raise DataError(f"{label}: a size is {value!r}", "Say it with --preprocess, and config=none.")
    return dict(table)


def _interpolation(name: object, label: str) -> PictureSettings:
    if name not in INTERPOLATIONS:
        known = ", ".join(INTERPOLATIONS)
        raise DataError(f"{label}: the interpolation {name!r} is not known", f"Known are {known}: --preprocess.")
    return {"interpolation": name}


def _floats(values: object, key: str, label: str) -> tuple[float, ...]:
    listed: Sequence[Any] = values if isinstance(values, list | tuple) else [values]
    if not listed or not all(isinstance(one, int | float) and math.isfinite(one) for one in listed):
        raise DataError(f"{label}: {key} is {values!r}", "It is a list of numbers.")
    return tuple(float(one) for one in listed)


def _rt_info(text: str) -> dict[str, str]:
    root = ElementTree.fromstring(text)
    info = root.find("./rt_info/model_info")
    return {one.tag: one.get("value", "") for one in info} if info is not None else {}
