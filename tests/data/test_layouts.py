"""Arrays whose axes are in another order than the model's: the transpose that puts them right is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from onnxq.data.layouts import layout_hint, order_of_axes
from onnxq.data.samples import open_samples
from onnxq.data.validation import InputSpec, conform
from onnxq.errors import DataError

NCHW = (1, 3, 224, 224)
PICTURES = InputSpec("image", TensorProto.FLOAT, ("n", 3, 224, 224))


@pytest.mark.parametrize(
    ("shape", "wanted", "keep_first", "expected"),
    [
        ((1, 224, 224, 3), NCHW, True, (0, 3, 1, 2)),
        ((1, 3, 224, 224), (1, 224, 224, 3), True, (0, 2, 3, 1)),
        ((224, 224, 3), (3, 224, 224), False, (2, 0, 1)),
        ((3, 224, 224), (224, 224, 3), False, (1, 2, 0)),
        ((8, 64, 16), (None, 16, 64), True, (0, 2, 1)),
        ((480, 640, 3), (3, 480, 640), False, (2, 0, 1)),
        ((640, 480, 3), (3, 480, 640), False, (2, 1, 0)),  # width and height, too
        ((3, 224, 224, 1), NCHW, True, None),
        ((3, 224, 224, 1), NCHW, False, (3, 0, 1, 2)),
        ((1, 200, 200, 3), NCHW, True, None),
        (NCHW, NCHW, True, (0, 1, 2, 3)),
        ((4,), (4,), False, None),
        ((2,) * 7, (2,) * 7, False, None),
    ],
)
def test_the_order_of_axes(
    shape: tuple[int, ...], wanted: tuple[int | None, ...], keep_first: bool, expected: tuple[int, ...] | None
) -> None:
    assert order_of_axes(shape, wanted, keep_first=keep_first) == expected


@pytest.mark.parametrize(
    ("shape", "wanted", "settings", "expected"),
    [
        ((1, 224, 224, 3), NCHW, {}, "(NHWC was given for NCHW): array.transpose(0, 3, 1, 2)."),
        ((224, 224, 3), (3, 224, 224), {"behind": 1}, "(HWC was given for CHW): array.transpose(0, 3, 1, 2)."),
        ((1, 50, 64, 12), (1, 12, 50, 64), {}, "in another order of axes: array.transpose(0, 3, 1, 2)."),  # heads
        ((1, 4, 8, 8), (1, 8, 8, 4), {}, "(NCHW was given for NHWC): array.transpose(0, 2, 3, 1)."),
        ((40, 80, 7), (7, 40, 80), {"behind": 1}, "in another order of axes: array.transpose(0, 3, 1, 2)."),
        ((28, 28), (None, 28, 28), {}, "An axis of size 1 is missing: numpy.expand_dims(array, 0)."),
        ((32, 28, 28), (None, 1, 28, 28), {}, "An axis of size 1 is missing: numpy.expand_dims(array, 1)."),
        ((224, 224, 3), NCHW, {}, "The batch axis is missing, and the others are in another order: "),
        ((100, 64), (None, 1, 8, 8), {}, "The numbers fit in another shape: array.reshape(-1, 1, 8, 8)."),
        ((8, 8), (None, 1, 8, 8), {}, "array.reshape(-1, 1, 8, 8)."),
        ((1, 1, 100, 1, 8, 8), (None, 1, 8, 8), {}, "array.reshape(-1, 1, 8, 8)."),
        ((100, 32), (None, 1, 8, 8), {}, ""),
        ((3, 64), (2, 1, 8, 8), {}, ""),
        ((100, 64), (None, None, 8, 8), {}, ""),
        ((100, 100, 3), NCHW, {}, ""),
        ((1, 200, 200, 3), NCHW, {"rows": 1}, ""),
        ((224,), NCHW, {}, ""),
        ((1, 4, 224, 224), NCHW, {}, "Pictures have four channels, the last one perhaps their opacity: array[:, :3]."),
        ((1, 224, 224, 4), (1, 224, 224, 3), {}, "array[:, :, :, :3]."),
        ((4, 224, 224, 4), NCHW, {}, ""),
        ((1, 3, 8, 8), (None, 1, 8, 8), {"rows": 9}, "the model takes grey: array.mean(axis=1, keepdims=True)."),
        ((1, 3, 160, 120), NCHW, {}, "Pictures are 160 × 120: resize them to 224 × 224, as in use."),
        ((8, 3, 224, 224), (8, 3, 224, 224), {"behind": 1}, ""),
        ((8, 3, 224, 224), (1, 3, 224, 225), {"behind": 1}, "Pictures are 224 × 224: resize them to 224 × 225"),
        ((8, 3, 224, 224), (1, 3, 224, 224), {"behind": 1}, "given batches of 8: array.reshape(-1, 3, 224, 224) gives"),
        ((1, 5), (4, 5), {"behind": 1}, "takes batches of 4, and is given batches of 1: array.reshape(-1, 5) gives"),
        ((1, 9, 9, 3), (1, 8, 8, 3), {}, "Pictures are 9 × 9: resize them to 8 × 8, as in use."),
    ],
)
def test_the_sentence(shape: tuple[int, ...], wanted: tuple[int | None, ...], settings: dict, expected: str) -> None:
    found = layout_hint(shape, wanted, **settings)
    assert expected in found
    assert bool(found) is bool(expected)


def hint(path: Path, array: np.ndarray) -> str:
    np.savez(path, image=array)
    with pytest.raises(DataError) as caught:
        open_samples([path], [PICTURES])
    return caught.value.hint


def test_files_say_the_transpose_of_the_array_that_is_in_them(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    batch = np.zeros((2, 224, 224, 3), np.uint8)
    assert "array.transpose(0, 3, 1, 2)." in hint(path, batch)
    np.savez(path, image=batch.transpose(0, 3, 1, 2))
    assert open_samples([path], [PICTURES]).count == 2
    stack = batch[:, None]
    assert "array.transpose(0, 1, 4, 2, 3)." in hint(path, stack)
    np.savez(path, image=stack.transpose(0, 1, 4, 2, 3))
    assert open_samples([path], [PICTURES]).count == 2
    assert "array.transpose(2, 0, 1)[None]." in hint(path, batch[0])
    assert "Prepare the data" in hint(path, batch[:, :100])
    assert "array.transpose(3, 2, 0, 1)." in hint(path, np.zeros((224, 224, 3, 5), np.uint8))  # samples come last
    grey = batch.transpose(0, 3, 1, 2)[:, :1]
    assert "numpy.repeat(array, 3, axis=1)." in hint(path, grey)
    assert "numpy.repeat(array, 3, axis=2)." in hint(path, grey[:, None])
    np.savez(path, image=np.repeat(grey, 3, axis=1))
    assert open_samples([path], [PICTURES]).count == 2


def test_samples_in_python_say_it_too() -> None:
    with pytest.raises(DataError) as caught:
        conform({"image": np.zeros((1, 224, 224, 3))}, [PICTURES], "samples[0]")
    assert "input 'image' has 3 in dimension 1" in caught.value.message
    assert "array.transpose(0, 3, 1, 2)." in caught.value.hint
