"""Pictures decoded: colours, orientation, sizes, and twenty files that are no pictures."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto
from picture_support import picture, png, save_picture

from onnxq.data.pictures.preprocess import Preprocess, picture_layout, resolve_settings
from onnxq.data.pictures.settings import parse_settings
from onnxq.data.validation import InputSpec
from onnxq.errors import DataError

Image = pytest.importorskip("PIL.Image")
from onnxq.data.pictures.decode import Decoder  # noqa: E402  (needs Pillow)


def how(text: str = "normalize=bytes", count: int = 3, size: tuple[int, int] = (24, 32)) -> Preprocess:
    spec = InputSpec("x", TensorProto.FLOAT, ("n", *size, count))
    layout = picture_layout(spec)
    assert layout is not None
    return resolve_settings(spec, layout, parse_settings([text], ["x"])[0])[0]


def pixels(path: Path, text: str = "normalize=bytes", count: int = 3, size: tuple[int, int] = (24, 32)) -> np.ndarray:
    return Decoder().pixels(path, how(text, count, size))


@pytest.mark.parametrize("suffix", ["png", "bmp", "webp"])
def test_lossless_pictures_come_back_to_the_bit(tmp_path: Path, suffix: str) -> None:
    options = {"lossless": True} if suffix == "webp" else {}
    path = save_picture(tmp_path / f"a.{suffix}", picture(), **options)
    assert (pixels(path) == picture()).all()


def test_values_are_those_of_the_formula_in_both_layouts(tmp_path: Path) -> None:
    path = save_picture(tmp_path / "a.png", picture())
    expected = ((picture() / 255.0 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]).astype(np.float32)
    last = Decoder().read(path, how("normalize=imagenet"))
    np.testing.assert_array_equal(last, expected)
    spec = InputSpec("x", TensorProto.FLOAT16, (1, 3, 24, 32))
    layout = picture_layout(spec)
    assert layout is not None
    first = Decoder().read(path, resolve_settings(spec, layout, {"normalize": "imagenet"})[0])
    np.testing.assert_array_equal(
        first, np.moveaxis(expected.astype(np.float64), -1, 0).astype(np.float16), strict=False
    )


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_as_exif_says(tmp_path: Path, orientation: int) -> None:
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save_picture(tmp_path / "a.png", picture(), exif=exif)
    with Image.open(path) as image:
        expected = np.asarray(ImageOps.exif_transpose(image))
    size = (24, 32) if orientation < 5 else (32, 24)
    assert (pixels(path, size=size) == expected).all()


def test_damaged_exif_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    Image.fromarray(picture()).save(path, exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    plain = save_picture(tmp_path / "b.jpg", picture())
    assert (pixels(path) == pixels(plain)).all()


def test_grey_becomes_colour_and_colour_grey(tmp_path: Path) -> None:
    grey = save_picture(tmp_path / "g.png", picture(channels=1))
    assert (pixels(grey) == picture(channels=1)[..., None]).all()
    coloured = save_picture(tmp_path / "c.png", picture())
    assert (pixels(coloured, count=1)[..., 0] == np.asarray(Image.fromarray(picture()).convert("L"))).all()


def test_sixteen_bits_are_not_clipped(tmp_path: Path) -> None:
    deep = (picture(channels=1).astype(np.uint16)) * 257
    path = tmp_path / "deep.png"
    Image.fromarray(deep).save(path)
    assert (pixels(path, count=1)[..., 0] == picture(channels=1)).all()


def test_transparency_is_laid_on_white(tmp_path: Path) -> None:
    array = np.dstack([picture(), np.full((24, 32), 255, np.uint8)])
    opaque = save_picture(tmp_path / "o.png", array)
    assert (pixels(opaque) == picture()).all()
    array[:4, :, 3] = 0
    holes = save_picture(tmp_path / "h.png", array)
    assert (pixels(holes)[:4] == 255).all()
    assert (pixels(holes)[4:] == picture()[4:]).all()
    assert (pixels(holes, count=4)[:4, :, 3] == 0).all()


def test_a_palette_with_transparency(tmp_path: Path) -> None:
    image = Image.fromarray(picture()).quantize(8)
    path = tmp_path / "p.png"
    image.save(path, transparency=0)
    found = pixels(path)
    index = np.asarray(image)
    assert (found[index == 0] == 255).all()
    assert (found[index != 0] == np.asarray(image.convert("RGB"))[index != 0]).all()


def test_cmyk_is_converted(tmp_path: Path) -> None:
    path = tmp_path / "c.jpg"
    Image.fromarray(picture()).convert("CMYK").save(path, quality=95)
    assert np.abs(pixels(path).astype(int) - picture()).mean() < 8


def test_bgr_is_the_other_way_round(tmp_path: Path) -> None:
    path = save_picture(tmp_path / "a.png", picture())
    assert (pixels(path, "normalize=bytes,channels=bgr") == picture()[..., ::-1]).all()


def test_alpha_goes_to_an_input_of_four_channels(tmp_path: Path) -> None:
    path = save_picture(tmp_path / "a.png", picture())
    found = Decoder().read(path, how("scale=1,std=1,1,1,255", 4))
    assert (found[..., 3] == 1).all()
    assert (found[..., :3] == picture()).all()


def test_the_shorter_side_and_the_centre_are_those_of_torchvision(tmp_path: Path) -> None:
    array = picture(40, 61)
    path = save_picture(tmp_path / "a.png", array)
    resized = Image.fromarray(array).resize((int(32 * 61 / 40), 32), Image.Resampling.BICUBIC)
    left, top = round((resized.width - 24) / 2), round((32 - 24) / 2)
    expected = np.asarray(resized)[top : top + 24, left : left + 24]
    assert (pixels(path, "normalize=bytes,resize=32,interpolation=bicubic", size=(24, 24)) == expected).all()


def test_a_letterbox_has_the_picture_in_its_middle(tmp_path: Path) -> None:
    array = picture(16, 32)
    path = save_picture(tmp_path / "a.png", array)
    middle = pixels(path, "normalize=bytes,resize=letterbox", size=(32, 32))
    assert (middle[8:24] == array).all()
    assert (middle[:8] == 114).all()
    assert (middle[24:] == 114).all()
    corner = pixels(path, "normalize=bytes,resize=letterbox,align=topleft,pad=0,1,2,channels=bgr", size=(32, 32))
    assert (corner[:16] == array[..., ::-1]).all()
    assert (corner[16:] == [0, 1, 2]).all()


@pytest.mark.parametrize(
    ("text", "size"), [("resize=squash", (7, 50)), ("resize=shortest", (48, 48)), ("resize=none", (8, 80))]
)
def test_every_size_is_met(tmp_path: Path, text: str, size: tuple[int, int]) -> None:
    path = save_picture(tmp_path / "a.png", picture())
    assert pixels(path, f"normalize=bytes,{text}", size=size).shape == (*size, 3)


def test_a_second_picture_of_a_phone_is_no_animation(tmp_path: Path) -> None:
    path = tmp_path / "phone.jpg"
    first, second = Image.fromarray(picture()), Image.fromarray(picture(seed=1))
    first.save(path, format="MPO", save_all=True, append_images=[second], quality=95)
    assert np.abs(pixels(path).astype(int) - picture()).mean() < 8


def _bytes(kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(picture()).save(stream, kind, **options)
    return stream.getvalue()


def _frames(kind: str) -> bytes:
    stream = io.BytesIO()
    frames = [Image.fromarray(picture(seed=seed)) for seed in range(3)]
    frames[0].save(stream, kind, save_all=True, append_images=frames[1:])
    return stream.getvalue()


HEADER = b"\0\0\x75\x30\0\0\x75\x30\x08\x02\0\0\0"  # 30 000 pixels each way
BROKEN: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "empty": ("a.jpg", lambda: b"", "is empty"),
    "truncated JPEG": ("a.jpg", lambda: _bytes("JPEG")[:400], "cannot be decoded"),
    "JPEG of half": (
        "a.jpg",
        lambda: _bytes("JPEG", quality=95)[: len(_bytes("JPEG", quality=95)) // 2],
        "cannot be decoded",
    ),
    "truncated PNG": ("a.png", lambda: _bytes("PNG")[:200], "cannot be decoded"),
    "PNG without data": (
        "a.png",
        lambda: png([(b"IHDR", b"\0\0\0\4\0\0\0\4\x08\x02\0\0\0"), (b"IEND", b"")]),
        "cannot be decoded",
    ),
    "PNG with a wrong checksum": ("a.png", lambda: _bytes("PNG")[:20] + b"\x55" + _bytes("PNG")[21:], "picture"),
    "PNG with damaged data": (
        "a.png",
        lambda: png([(b"IHDR", b"\0\0\0\4\0\0\0\4\x08\x02\0\0\0"), (b"IDAT", b"nothing"), (b"IEND", b"")]),
        "cannot be decoded",
    ),
    "truncated WebP": ("a.webp", lambda: _bytes("WEBP")[:60], "a.webp"),
    "truncated BMP": ("a.bmp", lambda: _bytes("BMP")[:500], "cannot be decoded"),
    "BMP of a header": ("a.bmp", lambda: _bytes("BMP")[:20], "a.bmp"),
    "a web page": ("a.jpg", lambda: b"<!DOCTYPE html><p>404", "it begins like a web page"),
    "text": ("a.jpg", lambda: b"hello", "is no JPEG, PNG, WebP or BMP picture"),
    "noise": ("a.jpg", lambda: bytes(range(256)) * 9, "is no JPEG, PNG, WebP or BMP picture"),
    "a GIF by another name": ("a.jpg", lambda: _bytes("GIF"), "it begins like a GIF"),
    "a TIFF by another name": ("a.png", lambda: _bytes("TIFF"), "it begins like a TIFF"),
    "HEIC by another name": ("a.jpg", lambda: b"\0\0\0\x18ftypheic" + bytes(64), "it begins like HEIC"),
    "a large one": ("a.jpg", lambda: b"\0\0\0\x18ftypheic" + bytes(3 << 20), "it begins like HEIC"),
    "an LFS pointer": (
        "a.jpg",
        lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        "Git LFS pointer",
    ),
    "animated WebP": ("a.webp", lambda: _frames("WEBP"), "is animated: 3 frames"),
    "animated PNG": ("a.png", lambda: _frames("PNG"), "is animated: 3 frames"),
    "too many pixels": ("a.png", lambda: png([(b"IHDR", HEADER), (b"IDAT", b""), (b"IEND", b"")]), "too many pixels"),
    "a zip archive": ("a.png", lambda: b"PK\x03\x04" + bytes(40), "it begins like a zip archive"),
    "a strip": ("a.png", lambda: _strip(), "no picture has such sides"),
}


def _strip() -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.zeros((1, 900, 3), np.uint8)).save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_named(tmp_path: Path, kind: str) -> None:
    name, content, words = BROKEN[kind]
    path = tmp_path / name
    path.write_bytes(content())
    with pytest.raises(DataError) as caught:
        pixels(path)
    assert str(path) in caught.value.message
    assert words in caught.value.message
    assert caught.value.hint
    assert "\n" not in caught.value.message


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "dangling.png").symlink_to(tmp_path / "nothing.png")
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    for name, words in {
        "folder.png": "no regular file",
        "pipe.png": "no regular file",
        "dangling.png": "is a link to .*nothing.png, which does not exist",
        "loop.png": "cannot be read",
    }.items():
        with pytest.raises(DataError, match=words):
            pixels(tmp_path / name)


def test_at_least_twenty_kinds_of_broken_files() -> None:
    assert len(BROKEN) >= 20
