"""A sheet of pictures as the model sees them: decoded back to colours, and small.

Tests: `tests/data/test_picture_sheet.py`.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from onnxq.data.extras import need

MOST = 12  # pictures of a sheet, of all inputs together
MOST_INPUTS = 4
SIDE = 96  # pixels of the longer side
QUALITY = 80  # of the JPEG
Decode = Callable[[np.ndarray, int], np.ndarray]
"""Gives the bytes `[height, width, 1 or 3]` of the first picture of an input, every so many pixels."""


@dataclass(frozen=True)
class Thumbnail:
    """One small picture.

    Attributes:
        input: Name of the input.
        sample: Its place in the data, from 0.
        width: In pixels.
        height: In pixels.
        uri: The picture as a `data:` address, a JPEG in base64.

    """

    input: str
    sample: int
    width: int
    height: int
    uri: str


class PictureSheet:
    """Keeps a few pictures, evenly spread over samples that stream by.

    Args:
        decoders: For each input that takes pictures, how its values become colours again.

    """

    def __init__(self, decoders: Mapping[str, Decode]) -> None:
        self._decoders = dict(list(decoders.items())[:MOST_INPUTS])
        self._most = max(MOST // max(len(self._decoders), 1), 1)
        self._kept: list[tuple[int, dict[str, np.ndarray]]] = []
        self._seen, self._step = 0, 1

    def add(self, sample: Mapping[str, np.ndarray]) -> None:
        """Look at the next sample."""
        index, self._seen = self._seen, self._seen + 1
        if not self._decoders or index % self._step:
            return
        self._kept.append((index, {name: decode(sample[name], 2 * SIDE) for name, decode in self._decoders.items()}))
        if len(self._kept) == 2 * self._most:
            self._kept, self._step = self._kept[::2], 2 * self._step

    def thumbnails(self) -> tuple[Thumbnail, ...]:
        """Encode what was kept, input by input."""
        count = min(len(self._kept), self._most)
        chosen = [self._kept[place * len(self._kept) // count] for place in range(count)]
        return tuple(_thumbnail(name, index, found[name]) for name in self._decoders for index, found in chosen)


def _thumbnail(name: str, index: int, pixels: np.ndarray) -> Thumbnail:
    image = need("PIL.Image", "images", "a sheet of pictures").fromarray(
        pixels[..., 0] if pixels.shape[2] == 1 else pixels
    )
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=QUALITY)
    uri = f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
    return Thumbnail(name, index, image.width, image.height, uri)
