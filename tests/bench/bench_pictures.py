"""Reading pictures by onnxq and by Pillow alone, in turn: time, and memory for more and more of them.

    python tests/bench/bench_pictures.py [PICTURES]

Pillow alone opens, decodes, converts to RGB, resizes the shorter side to 256 and cuts out 224 × 224 pixels as bytes.
onnxq does the same, turns pictures by their EXIF data, normalises them and checks each sample against the input.
"""

from __future__ import annotations

import io
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto
from PIL import Image

from onnxq.data.reading import Reading
from onnxq.data.samples import InputSpec, Samples, open_samples

MOST_RATIO = 1.3
SIZES = ((500, 375), (1280, 960))  # of ImageNet, and of a small photo
ROUNDS = 7


def save_photos(folder: Path, count: int, size: tuple[int, int]) -> list[Path]:
    """Save JPEGs that look like photos: smooth areas with noise."""
    found = []
    for index in range(count):
        generator = np.random.default_rng(index)
        small = generator.uniform(0, 255, (12, 16, 3)).astype(np.uint8)
        wide = np.asarray(Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)).astype(np.int16)
        noisy = np.clip(wide + generator.normal(0, 6, wide.shape), 0, 255).astype(np.uint8)
        stream = io.BytesIO()
        Image.fromarray(noisy).save(stream, "JPEG", quality=90)
        found.append(folder / f"{index}.jpg")
        found[-1].write_bytes(stream.getvalue())
    return found


def by_pillow(paths: list[Path]) -> None:
    """Read pictures as a script without onnxq does, up to the bytes."""
    for path in paths:
        with Image.open(path) as image:
            coloured = image.convert("RGB")
        scale = 256 / min(coloured.size)
        width, height = (round(side * scale) for side in coloured.size)
        resized = coloured.resize((width, height), Image.Resampling.BILINEAR)
        left, top = (width - 224) // 2, (height - 224) // 2
        np.asarray(resized.crop((left, top, left + 224, top + 224)))


def opened(folder: Path) -> Samples:
    """Open a folder as onnxq does."""
    spec = InputSpec("x", TensorProto.FLOAT, (1, 3, 224, 224))
    return open_samples(folder, [spec], Reading(preprocess=("resize=256,normalize=imagenet",)))


def by_onnxq(folder: Path) -> None:
    """Read pictures by onnxq, up to the values of the input."""
    for _ in opened(folder):
        pass


def seconds(call: Callable[[], None]) -> float:
    """Measure processor time: others on the machine don't count."""
    started = time.process_time()
    call()
    return time.process_time() - started


def ratio(folder: Path, count: int, size: tuple[int, int]) -> tuple[float, float]:
    """Return the median of onnxq's time by Pillow's, and Pillow's for one picture in milliseconds."""
    paths = save_photos(folder, count, size)
    found, alone = [], []
    for _ in range(ROUNDS):
        plain = seconds(lambda: by_pillow(paths))
        found.append(seconds(lambda: by_onnxq(folder)) / plain)
        alone.append(1000 * plain / count)
    return statistics.median(found), statistics.median(alone)


def peak(folder: Path) -> float:
    """Return the most memory of Python objects while a folder is read, in megabytes."""
    tracemalloc.start()
    by_onnxq(folder)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most / 1e6


@pytest.mark.bench
def test_reading_costs_little_more_than_pillow(tmp_path: Path) -> None:
    assert ratio(tmp_path, 24, SIZES[0])[0] <= MOST_RATIO


def main() -> int:
    """Print the ratios; return 1 if one is above the limit."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 48
    worst = 0.0
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            found, alone = ratio(Path(folder), count, size)
            worst = max(worst, found)
            print(f"{size[0]} × {size[1]}: Pillow {alone:.2f} ms a picture, onnxq {found:.2f} times as long")
    for number in (8, 32, 128):
        with tempfile.TemporaryDirectory() as folder:
            save_photos(Path(folder), number, SIZES[0])
            print(f"{number} pictures: at most {peak(Path(folder)):.2f} MB")
    return int(worst > MOST_RATIO)


if __name__ == "__main__":
    sys.exit(main())
