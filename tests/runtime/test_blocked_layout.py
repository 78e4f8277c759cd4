"""Runs that judge a model give the same bits, whatever the width of the processor's vectors."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import build, floats, node
from numpy._core._multiarray_umath import __cpu_features__ as features

from onnxq.ir import infer_types, parse
from onnxq.runtime.blocked_layout import BLOCKED_LAYOUT, sums_by_blocks
from onnxq.runtime.in_memory import InMemory
from onnxq.runtime.session import open_session, run_session

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
from as_processor import available, environment

# channels, filters, window, groups; whether sums follow the blocks
CONVS = {
    "window": (16, 16, 3, 1, True),
    "few channels": (3, 16, 3, 1, False),
    "eight channels": (8, 16, 3, 1, True),
    "pointwise": (40, 24, 1, 1, False),
    "depthwise": (32, 32, 3, 32, False),
    "grouped": (32, 64, 3, 4, True),
}


def conv_model(channels: int, filters: int, window: int, group: int, *, behind: str = "Relu") -> bytes:
    nodes = [
        node("Conv", "x w b", "c", group=group, pads=[window // 2] * 4),
        node("HardSigmoid", "c", "h"),
        node(behind, "h", "y"),
    ]
    weights = {"w": floats(filters, channels // group, window, window, seed=1), "b": floats(filters, seed=2)}
    return build(nodes, {"x": [1, channels, 20, 20]}, ["y"], weights).SerializeToString()


def models() -> list[tuple[bytes, bool]]:
    made = [(conv_model(*sizes), expected) for *sizes, expected in CONVS.values()]
    # 24 channels are three blocks with AVX2, and no whole blocks with AVX-512
    averaged = [
        (conv_model(c, c, 3, c, behind="GlobalAveragePool"), expected) for c, expected in ((24, True), (32, False))
    ]
    return made + averaged


def digests() -> list[str]:
    """Return a digest of what each model gives where it is judged."""
    found = []
    for data, _ in models():
        model = parse(data)
        infer_types(model)
        shape = model.graph.inputs[0].shape
        assert shape is not None
        session = open_session(InMemory(model), threads=1, exact=True)
        (made,) = run_session(session, None, {"x": floats(*map(int, shape), seed=3)})
        found.append(hashlib.sha256(np.ascontiguousarray(made).tobytes()).hexdigest())
    return found


def test_convs_whose_sums_follow_blocks_are_known() -> None:
    for data, expected in models():
        model = parse(data)
        infer_types(model)
        assert sums_by_blocks(model) == expected


@pytest.mark.skipif(not available("avx2"), reason="needs x86-64 with Linux and a C compiler")
@pytest.mark.skipif(not features.get("FMA3"), reason="without fused multiply-add, each product is rounded")
def test_bits_are_the_same_as_with_avx2() -> None:
    code = f"import sys; sys.path[:0] = {sys.path!r}; import test_blocked_layout as t; print(*t.digests())"
    command = [sys.executable, "-c", code]
    masked = subprocess.run(
        command, cwd=Path(__file__).parent, env=environment("avx2"), capture_output=True, text=True, check=True
    )
    assert masked.stdout.split() == digests()


def test_only_runs_that_judge_leave_the_layout_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def load(model: bytes, settings: object, **_: object) -> None:
        asked.append(settings.without)  # type: ignore[attr-defined]

    monkeypatch.setattr("onnxq.runtime.in_memory.load_native", load)
    for name in ("window", "pointwise"):
        model = parse(conv_model(*CONVS[name][:4]))
        infer_types(model)
        open_session(InMemory(model))
        open_session(InMemory(model), exact=True)
    assert asked == [(), (BLOCKED_LAYOUT,), (), ()]
