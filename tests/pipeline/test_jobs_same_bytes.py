"""The file depends neither on how many jobs there are, nor on the memory that they may take."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import build, floats, node

from onnxq.pipeline.quantize import quantize
from onnxq.runtime import memory
from onnxq.targets import host


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Convolutions whose channels differ much in size, so that all trials have something to find."""
    nodes = [
        node("Conv", "x w0", "a", pads=[1, 1, 1, 1]),
        node("Clip", "a low high", "b"),
        node("Conv", "b w1", "c", pads=[1, 1, 1, 1]),
        node("Sigmoid", "c", "s"),
        node("Mul", "c s", "d"),
        node("Conv", "d w2 bias", "y", pads=[1, 1, 1, 1]),
    ]
    weights = {f"w{i}": floats(16 if i < 2 else 4, 16 if i else 3, 3, 3, seed=i) for i in range(3)}
    weights["w0"] *= 4.0 ** (floats(16, 1, 1, 1, seed=7))
    weights |= {"low": floats() * 0, "high": floats() * 0 + 6, "bias": floats(4, seed=8)}
    path = tmp_path / "m.onnx"
    onnx.save(build(nodes, {"x": ["N", 3, 24, 24]}, ["y"], weights), path)
    return path


def _digest(model: Path, monkeypatch: pytest.MonkeyPatch, processors: int, most: int | None = None) -> str:
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda _: set(range(processors)), raising=False)
    monkeypatch.setattr(memory, "_limit", most)
    output = model.with_name("q.onnx")
    quantize(model, samples=[{"x": floats(1, 3, 24, 24, seed=i)} for i in range(12)], output=output, force=True)
    return hashlib.sha256(output.read_bytes()).hexdigest()


def test_the_file_does_not_depend_on_the_number_of_jobs(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = _digest(model, monkeypatch, 1)
    assert _digest(model, monkeypatch, 2) == alone
    assert _digest(model, monkeypatch, 5) == alone
    assert _digest(model, monkeypatch, 5, most=1) == alone


def _command(model: Path, data: str, jobs: int) -> bytes:
    """Quantize as the command line does, in a process of its own."""
    output = model.with_name(f"{jobs}.onnx")
    command = [sys.executable, "-m", "onnxq", "quantize", model.name, "-d", data, "-o", output.name, "-j", str(jobs)]
    run = subprocess.run(command, cwd=model.parent, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return output.read_bytes()


def test_copies_of_the_process_change_no_byte(model: Path) -> None:
    np.savez(model.with_name("data.npz"), x=floats(24, 3, 24, 24, seed=3))
    assert _command(model, "data.npz", 2) == _command(model, "data.npz", 1)


def test_no_copy_reads_what_a_function_of_the_user_holds_open(model: Path) -> None:
    floats(24, 3, 24, 24, seed=3).tofile(model.with_name("x.bin"))
    program = """
        import os
        import numpy as np

        FILE = open("x.bin", "rb")  # one place in it, which copies of this process would share

        def samples():
            with open("processes.txt", "a") as log:
                print(os.getpid(), file=log)
            FILE.seek(0)
            for _ in range(24):
                yield {"x": np.frombuffer(FILE.read(4 * 3 * 24 * 24), np.float32).reshape(1, 3, 24, 24)}
    """
    model.with_name("given.py").write_text(textwrap.dedent(program))
    np.savez(model.with_name("data.npz"), x=floats(24, 3, 24, 24, seed=3))
    assert _command(model, "given:samples", 2) == _command(model, "given:samples", 1)
    assert len(set(model.with_name("processes.txt").read_text().split())) == 2, "one for each run"
