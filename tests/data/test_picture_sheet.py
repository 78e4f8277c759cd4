"""Pictures of a sheet: which samples are kept, how large they are, and that colours are those of the file."""

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto
from picture_support import photos, save_picture

from onnxq.data.pictures.sheet import MOST, SIDE, PictureSheet
from onnxq.data.reading import Reading
from onnxq.data.samples import InputSpec, open_samples

WIDE = ("n", 3, 200, 300)


def sheet_of(source: Path, *preprocess: str, shape=WIDE, name: str = "x"):
    spec = InputSpec(name, TensorProto.FLOAT, shape)
    samples = open_samples(source, [spec], Reading(preprocess=preprocess))
    sheet = PictureSheet(samples.decoders)
    for sample in samples:
        sheet.add(sample)
    return sheet.thumbnails()


def pixels(uri: str) -> np.ndarray:
    from PIL import Image

    head, _, content = uri.partition(",")
    assert head == "data:image/jpeg;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))).convert("RGB"))


@pytest.mark.parametrize("settings", ["normalize=imagenet", "normalize=caffe,channels=bgr", "normalize=signed"])
@pytest.mark.parametrize("shape", [WIDE, ("n", 200, 300, 3), (3, 200, 300)])
def test_colours_come_back(tmp_path: Path, settings: str, shape) -> None:
    colour = np.array([200, 120, 40], np.uint8)
    save_picture(tmp_path / "a.png", np.broadcast_to(colour, (200, 300, 3)).copy())
    (found,) = sheet_of(tmp_path, settings, shape=shape)
    assert (found.width, found.height, found.sample, found.input) == (SIDE, 64, 0, "x")
    assert np.abs(pixels(found.uri).astype(int) - colour).max() <= 6  # what JPEG adds


@pytest.mark.parametrize("count", [1, 11, 12, 13, 24, 25, 60])
def test_few_samples_are_kept_from_the_first_to_the_last(tmp_path: Path, count: int) -> None:
    found = sheet_of(photos(tmp_path, count), "normalize=unit", shape=("n", 3, 16, 16))
    places = [one.sample for one in found]
    assert len(places) == min(count, MOST)
    assert places[0] == 0
    assert places == sorted(set(places))
    assert places[-1] >= count * 0.6 or count == 1
    assert sum(len(one.uri) for one in found) < MOST * 8000


def test_grey_pictures_and_arrays(tmp_path: Path) -> None:
    (one,) = sheet_of(photos(tmp_path / "p", 1), "normalize=unit", shape=("n", 1, 20, 30))
    assert pixels(one.uri).shape == (20, 30, 3)
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 3, 8, 8), np.float32))
    assert sheet_of(tmp_path / "a.npz", shape=("n", 3, 8, 8)) == ()
