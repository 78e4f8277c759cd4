"""Models with a few bytes changed, for `quantize` to refuse or to cope with; case `i` is the same on every machine.

Run as a script, `python tests/fuzz.py START STOP` judges those cases (see `mass`).
"""

from __future__ import annotations

import random
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from helpers import floats
from mass import main
from test_rivals import body, convs, in_a_function, matmul, recurrent, transformer
from verdict import Broken, Verdict, judge

SECONDS = 20  # of processor time, all threads; a sample model takes half of one
KILOBYTES = 1_500_000  # resident memory: ten times what the sample models take
SAMPLES = Path(__file__).parents[1] / "sample_models"
NAMES = ("digits_cnn", "digits_attention", "digits_depthwise", "digits_if", "digits_lstm")


@cache
def sources() -> tuple[bytes, ...]:
    """The sample models, as they are and without most of their weights, and small models of every kind."""
    large = [(SAMPLES / f"{name}.onnx").read_bytes() for name in NAMES]
    small = [matmul(8, 8), convs(2, 4), body("If"), body("Loop"), in_a_function(), recurrent("LSTM"), transformer(8, 4)]
    return *large, *(model.SerializeToString() for model in small for _ in range(2))


def mutate(data: bytes, dice: random.Random, other: bytes) -> bytes:
    """Change some bytes: cut, drop, insert, overwrite, flip, splice, or change what may be a length."""
    kind = dice.choice(("cut", "drop", "insert", "overwrite", "flip", "flip", "splice", "length", "length", "length"))
    at, size = _place(data, dice), dice.randrange(1, 9)
    if kind == "cut":
        return data[:at] or b"\x00"
    if kind == "drop":
        return data[:at] + data[at + size :]
    if kind == "insert":
        return data[:at] + dice.randbytes(size) + data[at:]
    if kind == "overwrite":
        return data[:at] + dice.randbytes(size) + data[at + size :]
    if kind == "flip":
        return data[:at] + bytes((data[at] ^ 1 << dice.randrange(8),)) + data[at + 1 :]
    if kind == "splice":
        start = dice.randrange(len(other))
        return data[:at] + other[start : start + dice.randrange(1, 200)] + data[at + size :]
    changed = dice.choice((0, 1, 0x7F, 0x80, 0xFF, (data[at] + 1) % 256, (data[at] - 1) % 256, data[at] // 2))
    return data[:at] + bytes((changed,)) + data[at + 1 :]


def _place(data: bytes, dice: random.Random) -> int:
    """A position, mostly near text: names and attributes stand among the lengths and tags that matter."""
    for _ in range(20):
        at = dice.randrange(len(data))
        if data[at : at + 4].isalnum() or dice.random() < 0.05:
            return max(0, at - dice.randrange(4))
    return dice.randrange(len(data))


def case(index: int) -> bytes:
    """The bytes of a mutated model."""
    dice = random.Random(index)
    data = dice.choice(sources())
    for _ in range(dice.randrange(1, 4)):
        data = mutate(data, dice, dice.choice(sources())) or b"\x00"
    return data


def name_of(index: int) -> str:
    """Name a case."""
    return f"mutation {index}"


def verdict_of(index: int) -> Verdict:
    """Quantize a mutated model, some with data, and hold it to the time and the memory it may take."""
    data, samples = case(index), _samples(index)
    with within(SECONDS):
        verdict = judge(data, samples, with_data=bool(samples), least_sqnr=None)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if used > KILOBYTES:
        raise Broken(f"{used} kB of memory")
    return verdict


def _samples(index: int) -> list[dict[str, Any]]:
    """Every third case has data: for the model as it was, so that it fits where the change spared the inputs."""
    if index % 3:
        return []
    model = onnx.ModelProto.FromString(random.Random(index).choice(sources()))
    weights = {w.name for w in model.graph.initializer}
    feeds: dict[str, Any] = {}
    for value in model.graph.input:
        if value.name not in weights:
            tensor = value.type.tensor_type
            shape = [dim.dim_value or 8 for dim in tensor.shape.dim]
            kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            feeds[value.name] = np.asarray(floats(*shape)).astype(kind)
    return [feeds] * 2


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Turn a case that takes too long into a broken one."""

    def stop(*_: object) -> None:
        raise Broken(f"takes more than {seconds} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


if __name__ == "__main__":
    main(name_of, verdict_of)
