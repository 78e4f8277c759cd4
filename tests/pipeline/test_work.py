"""How much work quantizing does, counted in calls and runs, which are the same on every machine."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import onnx
from bench_chain import chain

import onnxq
from onnxq.pipeline.quantize import quantize

PACKAGE = str(Path(onnxq.__file__).parent)


@contextmanager
def counted_calls() -> Iterator[Counter[str]]:
    """Count the calls of every function of onnxq, by module and name."""
    calls = Counter[str]()

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            calls[f"{frame.f_globals['__name__']}.{frame.f_code.co_qualname}"] += 1

    before: Callable[..., object] | None = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def calls_of_a_chain(folder: Path, length: int) -> Counter[str]:
    source = folder / f"chain{length}.onnx"
    onnx.save(chain(length), source)
    with counted_calls() as calls:
        quantize(source, "dynamic-int8", output=folder / f"q{length}.onnx")
    return calls


def test_work_grows_no_faster_than_the_graph(tmp_path: Path) -> None:
    calls_of_a_chain(tmp_path, 20)  # imports and caches
    short, long = calls_of_a_chain(tmp_path, 100), calls_of_a_chain(tmp_path, 200)
    slow = {name: (short[name], count) for name, count in long.items() if count > 2.2 * short[name] + 50}
    assert not slow
    assert sum(long.values()) < 2.1 * sum(short.values())
