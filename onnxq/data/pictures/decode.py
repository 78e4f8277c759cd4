"""One picture from its file to the values of an input. Errors of decoding name the file.

Sizes and crops are rounded as torchvision rounds them, and letterboxes as ultralytics does. Nothing is decoded at a
smaller scale to save time: that would give other pixels than the model sees in use.

Tests: `tests/data/test_picture_decoding.py`.
"""

from __future__ import annotations

import stat
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxq.data.extras import need
from onnxq.data.pictures.preprocess import Preprocess
from onnxq.errors import DataError
from onnxq.ir.storage.lfs import POINTER, pointer_error

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "WEBP", "BMP")  # a JPEG of several pictures (MPO) counts as JPEG
MODES = {"grey": "L", "rgb": "RGB", "bgr": "RGB", "rgba": "RGBA", "bgra": "RGBA"}
WHITE = (255, 255, 255, 255)
DEEP = ("I;16", "I;16B", "I;16L", "I;16N", "I")  # grey of 16 bit, which Pillow's own conversion would clip
REPLACE = "Mend the file, or take it out of the data."
MOST_LOOKED_AT = 64  # bytes of a file that is no picture
ORIENTATION = 0x0112  # in EXIF data: how a camera was held
MOST_RATIO = 400  # of the sides: a picture of one row and 100 000 columns is none


class Decoder:
    """Decodes pictures; Pillow is imported when one is made.

    Attributes:
        enlarged: By file, how many times larger a picture was made, where it was.

    Raises:
        DataError: Pillow is not installed.

    """

    def __init__(self) -> None:
        self._image = need("PIL.Image", "images", "reading pictures")
        how = self._image.Transpose
        self._turns = {
            2: how.FLIP_LEFT_RIGHT,
            3: how.ROTATE_180,
            4: how.FLIP_TOP_BOTTOM,
            5: how.TRANSPOSE,
            6: how.ROTATE_270,
            7: how.TRANSVERSE,
            8: how.ROTATE_90,
        }
        self._tables: dict[Preprocess, np.ndarray] = {}
        self.enlarged: dict[Path, float] = {}
        self._scale = 1.0  # of the picture at work

    def read(self, path: Path, how: Preprocess) -> np.ndarray:
        """Read a picture as the values of an input, without an axis of pictures in front.

        Raises:
            DataError: Names the file and what is wrong with it.

        """
        return self.values(self.pixels(path, how), how)

    def pixels(self, path: Path, how: Preprocess) -> np.ndarray:
        """Read a picture as bytes `[height, width, channels]`, in the order of the input's channels.

        Raises:
            DataError: Names the file and what is wrong with it.

        """
        _refuse_irregular(path)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what Pillow warns of is either harmless or raised below
                with self._image.open(path, formats=FORMATS) as image:
                    _refuse_animated(image, path)
                    upright = self._upright(image)
                    self._scale = 1.0
                    fitted = self._fit(self._coloured(upright, MODES[how.channels], path), how, path)
                    if self._scale > 1:
                        self.enlarged[path] = self._scale
                    pixels = np.asarray(fitted)
        except DataError:
            raise
        except Exception as error:  # Pillow's decoders raise whatever a damaged file leads them to
            raise _undecodable(path, error, self._image) from error
        pixels = pixels[..., None] if pixels.ndim == 2 else pixels
        return pixels[..., [2, 1, 0, 3][: how.count]] if how.channels in ("bgr", "bgra") else pixels

    def values(self, pixels: np.ndarray, how: Preprocess) -> np.ndarray:
        """Normalise bytes and put them in the order of the input's axes."""
        table = self._tables.get(how)
        if table is None:
            table = self._tables[how] = how.table()
        height, width, count = pixels.shape
        first = how.layout.first
        result = np.empty((count, height, width) if first else (height, width, count), how.dtype)
        for channel in range(count):
            plane = result[channel] if first else result[..., channel]
            plane[...] = table[channel].take(pixels[..., channel])
        return result

    def _upright(self, image: Image) -> Image:
        """Turn a picture as its EXIF data say; what is damaged there is what no viewer follows."""
        image.load()
        try:
            turn = self._turns.get(image.getexif().get(ORIENTATION, 1))
        except Exception:  # damaged EXIF data, of which Pillow raises anything
            turn = None
        return image if turn is None else image.transpose(turn)

    def _coloured(self, image: Image, mode: str, path: Path) -> Image:
        """Convert colours: 16 bits to 8, transparency laid on white unless the input takes it."""
        if image.mode in DEEP:
            image = self._shallow(image, path)
        elif image.mode == "F":
            raise DataError(f"{path} holds floats, not the bytes of a picture", "Save it as a picture of 8 bits.")
        transparent = image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info
        if transparent and mode != "RGBA":
            full = image.convert("RGBA")
            if full.getchannel("A").getextrema() != (255, 255):
                image = self._image.alpha_composite(self._image.new("RGBA", full.size, WHITE), full)
            else:
                image = full
        return image if image.mode == mode else image.convert(mode)

    def _shallow(self, image: Image, path: Path) -> Image:
        deep = np.asarray(image)
        if deep.size and (deep.min() < 0 or deep.max() > 65535):
            raise DataError(f"{path} holds values beyond 16 bits", "Save it as a picture of 8 bits.")
        bytes_: Image = self._image.fromarray(np.rint(deep.astype(np.float64) / 257).astype(np.uint8))
        return bytes_

    def _fit(self, image: Image, how: Preprocess, path: Path) -> Image:
        """Resize and cut, or pad, to the size of the input."""
        width, height = image.size
        if max(width, height) > MOST_RATIO * min(width, height):
            raise DataError(f"{path} is {width} pixels wide and {height} high: no picture has such sides", REPLACE)
        if how.height is None or how.width is None:
            return image
        if how.resize == "squash":
            return self._resized(image, how.width, how.height, how)
        if how.resize == "letterbox":
            ratio = min(how.height / height, how.width / width)
            inner = self._resized(image, max(round(width * ratio), 1), max(round(height * ratio), 1), how)
            return self._placed(inner, how)
        if how.resize == "shortest":
            ratio = max(how.height / height, how.width / width)
            image = self._resized(
                image, max(round(width * ratio), how.width), max(round(height * ratio), how.height), how
            )
        elif isinstance(how.resize, int):
            short, long = min(width, height), max(width, height)
            long = int(how.resize * long / short)
            sides = (how.resize, long) if width <= height else (long, how.resize)
            image = self._resized(image, *sides, how)
        return self._cropped(image, how)

    def _resized(self, image: Image, width: int, height: int, how: Preprocess) -> Image:
        if image.size == (width, height):
            return image
        self._scale = max(min(width / image.width, height / image.height), self._scale)
        return image.resize((width, height), getattr(self._image.Resampling, how.interpolation.upper()))

    def _cropped(self, image: Image, how: Preprocess) -> Image:
        assert how.height is not None
        assert how.width is not None
        if image.width < how.width or image.height < how.height:
            image = self._placed(image, how, max(image.width, how.width), max(image.height, how.height))
        left, top = round((image.width - how.width) / 2), round((image.height - how.height) / 2)
        if (left, top) == (0, 0) and image.size == (how.width, how.height):
            return image
        return image.crop((left, top, left + how.width, top + how.height))

    def _placed(self, image: Image, how: Preprocess, width: int | None = None, height: int | None = None) -> Image:
        """Lay a picture on a ground of one colour."""
        width, height = width or how.width or image.width, height or how.height or image.height
        if image.size == (width, height):
            return image
        colour: Any = how.pad * len(image.getbands()) if len(how.pad) == 1 else how.pad
        if how.channels in ("bgr", "bgra"):
            colour = (*colour[2::-1], *colour[3:])  # it is said in the order of the input
        ground = self._image.new(image.mode, (width, height), colour if len(colour) > 1 else colour[0])
        across, down = width - image.width, height - image.height
        centred = how.align == "center"
        ground.paste(image, (round(across / 2 - 0.1), round(down / 2 - 0.1)) if centred else (0, 0))
        placed: Image = ground
        return placed


def _refuse_irregular(path: Path) -> None:
    """Refuse what is no file, or an empty one, before anything waits for it."""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError) and path.is_symlink():
            told = f"{path} is a link to {path.readlink()}, which does not exist"
            raise DataError(told, "Mend the link, or remove it.") from error
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path} cannot be read: {reason}", "Check its name and permissions.") from error
    if not stat.S_ISREG(found.st_mode):
        raise DataError(f"{path} is no regular file", REPLACE)
    if not found.st_size:
        raise DataError(f"{path} is empty", REPLACE)


def _refuse_animated(image: Image, path: Path) -> None:
    """Refuse several frames; a second picture for depth or a preview, which phones write (MPO), is none."""
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":
        raise DataError(f"{path} is animated: {frames} frames", "Save the frames that are wanted as pictures.")


def _undecodable(path: Path, error: Exception, module: Any) -> DataError:
    """Say why a file cannot be decoded."""
    if isinstance(error, PermissionError):
        return DataError(f"{path} cannot be read: {error.strerror}", "Check its permissions.")
    try:
        with path.open("rb") as file:
            start = file.read(MOST_LOOKED_AT)
    except OSError:
        start = b""
    pointer = pointer_error(start[: len(POINTER)], str(path), DataError, "picture")
    if pointer is not None:
        return pointer
    if isinstance(error, module.UnidentifiedImageError):
        kind = next((f": it begins like {name}" for magic, name in MAGIC if start.startswith(magic)), "")
        return DataError(f"{path} is no JPEG, PNG, WebP or BMP picture, or a damaged one{kind}", REPLACE)
    if isinstance(error, module.DecompressionBombError):
        return DataError(f"{path} is a picture of too many pixels", "Make it smaller.")
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return DataError(f"{path} cannot be decoded: {reason}", REPLACE)


MAGIC = (
    (b"GIF8", "a GIF"),
    (b"II*\0", "a TIFF"),
    (b"MM\0*", "a TIFF"),
    (b"<!DOCTYPE", "a web page"),
    (b"<html", "a web page"),
    (b"<?xml", "XML"),
    (b"<svg", "SVG"),
    (b"%PDF", "PDF"),
    (b"PK", "a zip archive"),
    (b"\0\0\0\x18ftyp", "HEIC or AVIF"),
    (b"\0\0\0\x1cftyp", "HEIC or AVIF"),
    (b"\0\0\0\x20ftyp", "HEIC or AVIF"),
    (b"\0\0\0\x24ftyp", "HEIC or AVIF"),
)
