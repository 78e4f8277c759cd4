"""What quantizing does is counted, not timed: copies, parses, plans, sessions, model runs, calls for each node.

Forms are what plans ask about a node: what it would become.

The bounds are a tenth above what is counted today. A commit that raises one says what that buys.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from bench_chain import chain
from helpers import build, floats, node

import onnxq
from onnxq.ir import model as model_module
from onnxq.pipeline.quantize import quantize
from onnxq.planning import planner
from onnxq.stages import prepare, replan
from onnxq.targets import host

PACKAGE = str(Path(onnxq.__file__).parent)
CALLS_FOR_A_NODE = 1600  # Python functions called for one more MatMul or Relu of a chain, from load to save
MOST = {"copies": 28, "parses": 4, "plans": 20, "forms": 143, "sessions": 23, "runs": 277}
FAST = {"copies": 5, "parses": 3, "plans": 5, "forms": 50, "sessions": 4, "runs": 40}


@pytest.fixture
def counts(model: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts of expensive things."""
    host.host_saturates()  # asked once in a process, and so is what onnxruntime fuses
    samples = [{"x": floats(1, 3, 24, 24)}]
    quantize(model, samples=samples, output=model.with_name("first.onnx"), fast=True)
    found: Counter[str] = Counter()

    def count(owner: Any, name: str, what: str) -> None:
        before: Callable[..., Any] = getattr(owner, name)

        def counted(*given: Any, **settings: Any) -> Any:
            found[what] += 1
            return before(*given, **settings)

        monkeypatch.setattr(owner, name, counted)

    count(model_module.Model, "copy", "copies")
    count(model_module, "parse_graph", "parses")
    for module in (planner, replan, prepare):
        count(module, "plan_again", "plans")
    count(planner, "form_of", "forms")
    count(ort.InferenceSession, "__init__", "sessions")
    count(ort.InferenceSession, "run", "runs")
    return found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Three convolutions, with what each search has something to try on."""
    nodes = [
        node("Conv", "x w0", "a", pads=[1, 1, 1, 1]),
        node("Clip", "a low high", "b"),
        node("Conv", "b w1", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "d"),
        node("Conv", "d w2 bias", "y", pads=[1, 1, 1, 1]),
    ]
    weights = {f"w{i}": floats(16 if i < 2 else 4, 16 if i else 3, 3, 3, seed=i) for i in range(3)}
    weights["w0"] *= 4.0 ** floats(16, 1, 1, 1, seed=7)
    weights |= {"low": floats() * 0, "high": floats() * 0 + 6, "bias": floats(4, seed=8)}
    path = tmp_path / "m.onnx"
    onnx.save(build(nodes, {"x": ["N", 3, 24, 24]}, ["y"], weights), path)
    return path


@pytest.mark.parametrize("fast", [False, True])
def test_no_more_is_copied_planned_opened_or_run_than_before(model: Path, counts: Counter[str], fast: bool) -> None:
    samples = [{"x": floats(1, 3, 24, 24, seed=i)} for i in range(24)]
    report = quantize(model, samples=samples, output=model.with_name("q.onnx"), fast=fast)
    timed = report.comparison.latency if report.comparison is not None else None
    counts["runs"] -= 0 if timed is None else 2 * timed.pairs  # as many as the clock allows
    most = FAST if fast else MOST
    assert {what: number for what, number in counts.items() if number > most[what]} == {}, dict(counts)


def test_the_float_model_runs_once_on_each_sample_that_variants_are_judged_on(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onnxq.search import float_outputs

    ran: list[bytes] = []
    before = float_outputs.run_session

    def run(session: Any, names: Any, sample: dict[str, np.ndarray]) -> list[Any]:
        ran.append(sample["x"].tobytes())
        return before(session, names, sample)

    monkeypatch.setattr(float_outputs, "run_session", run)
    samples = [{"x": floats(1, 3, 24, 24, seed=i)} for i in range(24)]
    quantize(model, samples=samples, output=model.with_name("q.onnx"))
    assert len(ran) == len(set(ran)) <= len(samples)


def _calls(length: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Count the Python functions that are called to quantize a chain of MatMul and Relu."""
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda _: {0}, raising=False)  # a profile is one of a thread
    nodes = []
    for index in range(length):
        nodes.append(node("MatMul", f"v{index} w{index}", f"m{index}"))
        nodes.append(node("Relu", f"m{index}", f"v{index + 1}"))
    weights = {f"w{index}": floats(16, 16, seed=index) / 4 for index in range(length)}
    path = folder / f"chain{length}.onnx"
    onnx.save(build(nodes, {"v0": [1, 16]}, [f"v{length}"], weights), path)
    count = 0

    def called(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(called)
    try:
        quantize(path, "dynamic-int8", output=folder / "q.onnx", force=True)
    finally:
        sys.setprofile(None)
    return count


def test_the_work_for_a_node_is_bounded_and_does_not_grow_with_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _calls(3, tmp_path, monkeypatch)  # imports, and what is cached for good
    short, middle, long = (_calls(length, tmp_path, monkeypatch) for length in (10, 40, 70))
    first, second = (middle - short) / 60, (long - middle) / 60
    assert second <= 1.1 * first, (first, second)
    assert second <= CALLS_FOR_A_NODE, second


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
