"""Slips of arithmetic in pictures are told by their values; right pictures of any convention raise nothing."""

import numpy as np
import pytest
from onnx import parser

from onnxq.data.conventions import CONVENTIONS, IMAGENET, Convention
from onnxq.data.examine import examine
from onnxq.ir import parse

RANDOM = np.random.default_rng(0)


def photos(count: int = 20, channels: int = 3, side: int = 32) -> np.ndarray:
    """Smooth pictures of 0 … 255 that hold black and white pixels."""
    walk = np.cumsum(np.cumsum(RANDOM.normal(size=(count, channels, side, side)), -1), -2)
    low, high = walk.min(axis=(2, 3), keepdims=True), walk.max(axis=(2, 3), keepdims=True)
    return np.round((walk - low) / (high - low) * 255)


def letters() -> np.ndarray:
    """Black strokes on white, with some noise."""
    pictures = np.full((20, 3, 32, 32), 250.0)
    for picture in pictures:
        for column in RANDOM.integers(1, 31, 6):
            picture[:, 4:28, column] = 2
    return pictures + RANDOM.integers(-2, 6, pictures.shape)


def converted(x: np.ndarray, convention: Convention, axis: int = 1) -> np.ndarray:
    shape = [1] * 4
    shape[axis] = 3
    mean, std = (np.asarray(figures).reshape(shape) for figures in (convention.mean, convention.std))
    return (x / 255 - mean) / std


def warnings(arrays: np.ndarray) -> list[str]:
    shape = ", ".join(str(size) for size in arrays.shape[1:])
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[n, {shape}] x) => (float[n, {shape}] y) {{ y = Neg(x) }}'
    model = parse(parser.parse_model(text).SerializeToString())
    found = examine(model, [{"x": row[None].astype(np.float32)} for row in arrays]).warnings
    return [f"{warning.code}: {warning.message}" for warning in found]


@pytest.mark.parametrize("convention", CONVENTIONS, ids=lambda one: one.words)
def test_right_pictures_raise_nothing(convention: Convention) -> None:
    assert warnings(converted(photos(), convention)) == []
    assert warnings(converted(letters(), convention)) == []


def test_pictures_standardised_by_their_own_mean_are_named() -> None:
    x = photos(channels=1, side=16)
    by_pixel = (x - x.mean(0)) / x.std(0)
    for standardised in ((x - x.mean()) / x.std(), by_pixel):
        (found,) = warnings(standardised)
        assert found.startswith("wrong-normalization: the mean of 'x' over all samples is 0")
    colours = photos()
    (found,) = warnings((colours - colours.mean((0, 2, 3), keepdims=True)) / colours.std((0, 2, 3), keepdims=True))
    assert "standardised by themselves" in found


def test_pictures_that_are_standardised_one_by_one_or_by_other_pictures_raise_nothing() -> None:
    x = photos(channels=1, side=16)
    assert warnings((x - x.mean((1, 2, 3), keepdims=True)) / x.std((1, 2, 3), keepdims=True)) == []
    assert warnings((x - photos().mean()) / photos().std()) == []


def test_pictures_divided_twice_are_named() -> None:
    (found,) = warnings(photos() / 255 / 255)
    assert "(0 … 0.00392) are those of pictures that were divided by 255 twice" in found
    for convention in (IMAGENET, CONVENTIONS[2]):
        (found,) = warnings(converted(photos() / 255, convention))
        assert "hardly vary within a channel" in found
    (found,) = warnings(photos(channels=1) / 255 / 127.5 - 1)
    assert "hardly vary within a channel" in found


def test_mean_and_deviation_applied_twice_are_named() -> None:
    for axis in (1, 3):
        pictures = np.moveaxis(photos(), 1, axis)
        once = converted(pictures, IMAGENET, axis)
        assert warnings(once) == []
        (found,) = warnings(converted(once * 255, IMAGENET, axis))
        assert "have had ImageNet's mean and deviation applied twice" in found


@pytest.mark.parametrize("scale", [1, 1 / 128, 1 / 255], ids=["as they are", "128", "255"])
def test_bytes_read_as_int8_are_named(scale: float) -> None:
    (found,) = warnings(photos().astype(np.uint8).view(np.int8) * scale)
    assert "as bytes do that are read as int8" in found


@pytest.mark.parametrize("channels", [[0], [1, 2]])
def test_a_channel_that_holds_one_value_is_named(channels: list[int]) -> None:
    pictures = photos() / 255
    pictures[:, channels] = 0.5
    (found,) = warnings(pictures)
    assert found.startswith("constant-channel: channel")
    assert "of 'x' hold" in found
    assert "0.5 only" in found


def test_an_opaque_fourth_channel_is_usual() -> None:
    pictures = photos(channels=4)
    pictures[:, 3] = 255
    assert warnings(pictures) == []
