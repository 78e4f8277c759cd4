"""How long `onnxq check` takes: one model of 25 MB, and 50 models in one repository.

    python tests/bench/bench_check.py

Every time is that of a whole process, the start of the interpreter included, the least of five. The tests
limit the time of the processors.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxq.ir import load, save
from onnxq.project.entry import Entry
from onnxq.project.file import load_project
from onnxq.project.provenance import gather, record, written_hash

ROUNDS = 5
LAYERS = 25


def write_pair(folder: Path, name: str, megabytes: float) -> None:
    """Write a float model and one that passes for its quantized form: Q/DQ pairs, weights in 8 bit, nothing is run."""
    size = int((megabytes * 1e6 / LAYERS / 4) ** 0.5)
    random = np.random.default_rng(0)
    for quantized in (False, True):
        nodes, weights = [], []
        value = "x"
        for layer in range(LAYERS):
            weight = random.standard_normal((size, size)).astype(np.float32)
            reads = [value, f"w{layer}"]
            if quantized:
                weights += [
                    numpy_helper.from_array(np.clip(weight * 30, -127, 127).astype(np.int8), f"w{layer}"),
                    numpy_helper.from_array(np.float32(0.03), f"s{layer}"),
                    numpy_helper.from_array(np.int8(0), f"z{layer}"),
                ]
                nodes += [
                    helper.make_node("QuantizeLinear", [value, f"s{layer}", f"z{layer}"], [f"q{layer}"]),
                    helper.make_node("DequantizeLinear", [f"q{layer}", f"s{layer}", f"z{layer}"], [f"d{layer}"]),
                    helper.make_node("DequantizeLinear", [f"w{layer}", f"s{layer}", f"z{layer}"], [f"v{layer}"]),
                ]
                reads = [f"d{layer}", f"v{layer}"]
            else:
                weights.append(numpy_helper.from_array(weight, f"w{layer}"))
            value = f"y{layer}"
            nodes.append(helper.make_node("MatMul", reads, [value]))
        ends = [helper.make_tensor_value_info(end, 1, [1, size]) for end in ("x", value)]
        graph = helper.make_graph(nodes, name, ends[:1], ends[1:], weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, folder / f"{name}{'.int8' if quantized else ''}.onnx")


def stamp(entry: Entry) -> None:
    """Record that the second file was built from the first."""
    model = load(entry.quantized)
    wanted = gather(entry, load(entry.source))
    model.metadata.update(record(wanted, written_hash(model, model.serialize()), None))
    save(model, entry.quantized, force=True)


def repository(folder: Path, count: int, megabytes: float) -> None:
    """Make a project of `count` models, all up to date."""
    names = [f"model_{index}" for index in range(count)]
    for name in names:
        write_pair(folder, name, megabytes)
    np.savez(folder / "calib.npz", x=np.zeros((32, 1, 500), np.float32))
    tables = [f'[[models]]\nfloat = "{name}.onnx"\nmax-size = "1 GB"\n' for name in names]
    (folder / "onnxq.toml").write_text('[defaults]\ndata = ["calib.npz"]\n' + "".join(tables))
    for entry in load_project(folder / "onnxq.toml").entries:
        stamp(entry)


def seconds(folder: Path, rounds: int = ROUNDS) -> tuple[float, float]:
    """Time `onnxq check`, which has to find nothing, on the clock and of the processors."""
    clock, processors = [], []
    for _ in range(rounds):
        started, before = time.perf_counter(), os.times()
        done = subprocess.run(
            [sys.executable, "-m", "onnxq", "check"], cwd=folder, text=True, capture_output=True, check=False
        )
        after = os.times()
        clock.append(time.perf_counter() - started)
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        processors.append(spent)
        assert done.returncode == 0, done.stdout + done.stderr
    return min(clock), min(processors)


@pytest.mark.bench
def test_one_model_takes_less_than_a_second(tmp_path: Path) -> None:
    repository(tmp_path, 1, 25)
    assert seconds(tmp_path)[1] < 1


@pytest.mark.bench
def test_fifty_models_take_less_than_five_seconds(tmp_path: Path) -> None:
    repository(tmp_path, 50, 25)
    assert seconds(tmp_path)[1] < 5


def main() -> None:
    for count, megabytes in ((1, 1), (1, 25), (1, 250), (50, 1), (50, 5), (50, 25)):
        with tempfile.TemporaryDirectory() as folder:
            repository(Path(folder), count, megabytes)
            clock, processors = seconds(Path(folder))
            print(f"{count:3} models of {megabytes:3} MB in float: {clock:.2f} s, processors {processors:.2f} s")


if __name__ == "__main__":
    main()
