"""When Python's collector of cycles runs: not while graphs are all alive, and behind variants that were tried."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from onnxq.ir import Model

HEAVY = 8 << 20  # bytes of weights from which on copies are not left lying about


def collect(model: Model) -> None:
    """Let go of variants of a model that were tried: nodes and values hold each other, and new weights with them.

    While the collector is off, somebody has to. Of a small model they are not worth the time.
    """
    if model.weight_bytes >= HEAVY:
        gc.collect()


@contextmanager
def uncollected() -> Iterator[None]:
    """Switch the cyclic collector off: a graph is all alive, and scanning it over and over costs quadratic time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
