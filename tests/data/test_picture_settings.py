"""What can be said about preprocessing, and what becomes of it for one input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from onnxq.data.pictures.preprocess import Preprocess, picture_layout, resolve_settings, shared_settings
from onnxq.data.pictures.settings import KEYS, parse_settings
from onnxq.data.validation import InputSpec
from onnxq.errors import DataError


def spec(*shape: int | str | None, dtype: int = TensorProto.FLOAT) -> InputSpec:
    return InputSpec("x", dtype, shape)


def made(text: str = "", of: InputSpec | None = None) -> Preprocess:
    of = of or spec("n", 3, 16, 20)
    shared, _ = parse_settings([text] if text else [], ["x"])
    layout = picture_layout(of, shared.get("layout"))
    assert layout is not None
    return resolve_settings(of, layout, shared)[0]


def test_commas_part_settings_and_numbers() -> None:
    assert parse_settings(["mean=[0.5, 0.4,0.3],std=(1,2,3)"], [])[0] == {"mean": (0.5, 0.4, 0.3), "std": (1, 2, 3)}
    shared, single = parse_settings(
        ["size=224x320,mean=0.485,0.456,0.406", "channels=gray", "mask.value=0,1", "a.b.scale=255"],
        ["mask", "a.b", "a"],
    )
    assert shared == {"size": (224, 320), "mean": (0.485, 0.456, 0.406), "channels": "grey"}
    assert single == {"mask": {"value": (0.0, 1.0)}, "a.b": {"scale": 255.0}}


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("imagenet", "has 'imagenet', which is not KEY=VALUE", "normalize=imagenet"),
        ("224", "has '224', which is not KEY=VALUE", "size=224"),
        ("sise=224", "unknown key 'sise'", "Did you mean 'size'?"),
        ("size=0", "size cannot be '0'", "HEIGHTxWIDTH"),
        ("size=big", "size cannot be 'big'", "size=224"),
        ("size=999999", "size cannot be '999999'", "size=224"),
        ("scale=1/255", "scale cannot be '1/255'", "values are divided by it"),
        ("scale=0", "scale cannot be '0'", "scale=255"),
        ("std=0", "std cannot be '0'", "above 0"),
        ("std=-1", "std cannot be '-1'", "above 0"),
        ("mean=x", "mean cannot be 'x'", "mean=0.485"),
        ("mean=nan", "mean cannot be 'nan'", "mean=0.485"),
        ("mean=1/0", "mean cannot be '1/0'", "mean=0.485"),
        ("channels=cmyk", "channels cannot be 'cmyk'", "rgb|bgr|grey"),
        ("resize=stretch", "resize cannot be 'stretch'", "squash"),
        ("normalize=torch", "normalize cannot be 'torch'", "imagenet"),
        ("pad=300", "pad cannot be '300'", "0 to 255"),
        ("align=left", "align cannot be 'left'", "topleft"),
        ("layout=chw", "layout cannot be 'chw'", "nchw"),
        ("interpolation=cubic", "interpolation cannot be 'cubic'", "bicubic"),
        ("value=0", "'value' belongs to an input", "x.value=0"),
        ("size=8,size=9", "has 'size' twice", "once"),
        ("config=", "config cannot be ''", "config=none"),
        ("y.size=3", "has 'y.size', and no input is called 'y'", "Inputs are x."),
    ],
)
def test_what_is_wrong_is_said(text: str, message: str, hint: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_settings([text], ["x"])
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_every_key_is_read_by_something() -> None:
    import onnxq.data.pictures.preprocess as preprocess
    import onnxq.data.pictures.source as source

    text = "".join(Path(module.__file__ or "").read_text("utf-8") for module in (preprocess, source))
    assert not [key for key in KEYS if f'"{key}"' not in text]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (("n", 3, 8, 9), (True, 1, 3, 8, 9)),
        ((4, 1, 8, 9), (True, 4, 1, 8, 9)),
        ((None, 8, 9, 3), (False, 1, 3, 8, 9)),
        ((1, 8, 9, 4), (False, 1, 4, 8, 9)),
        ((3, 8, 9), (True, None, 3, 8, 9)),
        ((8, 9, 1), (False, None, 1, 8, 9)),
        (("n", 3, "h", "w"), (True, 1, 3, None, None)),
    ],
)
def test_layouts_are_read_from_the_shape(shape, expected) -> None:
    layout = picture_layout(spec(*shape))
    assert layout is not None
    assert (layout.first, layout.batch, layout.channels, layout.height, layout.width) == expected


@pytest.mark.parametrize(
    "shape", [("n", 7), ("n", 16, 8, 8), ("a", "b", "c", "d"), (1, 1, 1, 16), ("n", 5, 8), ("n", 8, 3)]
)
def test_other_shapes_take_no_pictures(shape) -> None:
    assert picture_layout(spec(*shape)) is None
    assert picture_layout(spec("n", 3, 8, 8, dtype=TensorProto.INT64)) is None


def test_somebody_may_say_the_layout() -> None:
    layout = picture_layout(spec("a", "b", "c", "d"), "nhwc")
    assert layout is not None
    assert not layout.first
    assert made("layout=nhwc,size=8", spec("a", "b", "c", "d")).channels == "rgb"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("scale=255", lambda x: x / 255),
        ("normalize=unit", lambda x: x / 255),
        ("normalize=bytes", lambda x: x),
        ("normalize=signed", lambda x: x / 127.5 - 1),
        ("mean=0.5,std=0.5", lambda x: x / 127.5 - 1),
        ("mean=127.5,std=127.5", lambda x: (x - 127.5) / 127.5),
        ("scale=1,mean=0", lambda x: x),
        ("std=2", lambda x: x / 2),
    ],
)
def test_values(text: str, expected) -> None:
    levels = np.arange(256.0)
    np.testing.assert_allclose(made(text).table()[0], expected(levels), rtol=1e-6, atol=1e-6)


def test_imagenet_follows_the_channels() -> None:
    rgb, bgr, grey = (
        made(f"normalize=imagenet,channels={order}", spec("n", count, 8, 8))
        for order, count in (("rgb", 3), ("bgr", 3), ("grey", 1))
    )
    assert rgb.mean == (0.485, 0.456, 0.406)
    assert bgr.mean == rgb.mean[::-1]
    assert bgr.std == rgb.std[::-1]
    assert grey.mean == (0.456,)
    caffe = made("normalize=caffe")
    assert caffe.scale == 1
    np.testing.assert_allclose(caffe.mean, (123.68, 116.78, 103.94), atol=0.02)


def test_what_nobody_said_is_told() -> None:
    of = spec("n", 3, 8, 8)
    layout = picture_layout(of)
    assert layout is not None
    assert "0 … 1 is assumed" in resolve_settings(of, layout, {})[1]
    assert resolve_settings(of, layout, {"scale": 255.0})[1] == ""


@pytest.mark.parametrize(
    ("text", "shape", "message"),
    [
        ("size=8", ("n", 3, 16, 16), "size=8x8 does not fit"),
        ("", ("n", 3, "h", "w"), "the size of pictures for 'x'"),
        ("channels=grey", ("n", 3, 8, 8), "channels=grey are 1"),
        ("mean=1,2", ("n", 3, 8, 8), "mean has 2 numbers"),
        ("pad=1,2", ("n", 3, 8, 8), "pad has 2 numbers"),
        ("resize=8", ("n", 3, 16, 16), "resize=8 makes pictures smaller"),
        ("normalize=unit,scale=255", ("n", 3, 8, 8), "say the same thing"),
        ("scale=255,mean=123", ("n", 3, 8, 8), "mean 123 lies beyond"),
    ],
)
def test_what_contradicts_the_input_is_refused(text: str, shape, message: str) -> None:
    with pytest.raises(DataError) as caught:
        made(text, spec(*shape))
    assert message in caught.value.message
    assert caught.value.hint


def test_bytes_are_not_scaled() -> None:
    of = spec("n", 8, 8, 3, dtype=TensorProto.UINT8)
    assert (made("", of).table() == np.arange(256)).all()
    with pytest.raises(DataError, match="takes bytes"):
        made("scale=255", of)


@pytest.mark.parametrize("channels", ["rgb", "bgr"])
@pytest.mark.parametrize("shape", [("n", 3, 8, 8), ("n", 8, 8, 3)])
def test_decoding_gives_the_picture_back(channels: str, shape) -> None:
    how = made(f"normalize=imagenet,channels={channels}", spec(*shape))
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    table = how.table()
    ordered = pixels[..., ::-1] if channels == "bgr" else pixels
    values = np.stack([table[c][ordered[..., c]] for c in range(3)], axis=0 if how.layout.first else -1)
    assert (how.decode(values) == pixels).all()


def test_what_a_user_says_displaces_what_a_config_says() -> None:
    found = {"scale": 255.0, "mean": (0.5,), "std": (0.5,), "resize": "letterbox", "pad": (114,)}
    assert shared_settings(found, {"normalize": "unit"}) == {"normalize": "unit", "resize": "letterbox", "pad": (114,)}
    assert shared_settings({"normalize": "unit"}, {"scale": 1.0}) == {"scale": 1.0}
    assert "pad" not in shared_settings(found, {"resize": "squash"})
    assert shared_settings(found, {"std": (1.0,)})["mean"] == (0.5,)


def test_words() -> None:
    assert made("normalize=imagenet").words() == (
        "RGB, shrunk to cover 16×20, centre cut out, (x / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]"
    )
    assert (
        made("resize=letterbox,normalize=bytes,channels=bgr").words()
        == "BGR, letterboxed to 16×20 on 114, bytes as they are"
    )
    assert made("resize=32,scale=255").words() == "RGB, shorter side to 32, centre 16×20, x / 255"
