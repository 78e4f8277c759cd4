"""Peak memory and time of `onnxq quantize` on models of gigabytes, against copying their files.

    python tests/bench/bench_large.py [--folder FOLDER] [--cases dynamic static embedded verify]

Makes the models in a temporary folder inside FOLDER (8 GB have to be free), prints a table in Markdown, deletes all.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper

WIDTH, INNER = 4096, 3328  # two matrices of 54.5 MB a block; 24 blocks are 2.6 GB
SAMPLES = 4


class Run(NamedTuple):
    """What one process took."""

    seconds: float
    peak_mb: float


def make_model(path: Path, blocks: int, *, external: bool) -> None:
    """Write residual blocks of LayerNormalization, MatMul, Relu, MatMul, their weights streamed."""
    rng = np.random.default_rng(0)
    noise = (rng.standard_normal(WIDTH * INNER + 2 * blocks, dtype=np.float32) * 0.02).tobytes()
    nodes, initializers, x = [], [], "x"
    with (path.with_name(path.name + ".data") if external else Path(os.devnull)).open("wb") as file:
        for b in range(blocks):
            for name, shape in ((f"up{b}", (WIDTH, INNER)), (f"down{b}", (INNER, WIDTH))):
                tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
                raw = noise[8 * b : 8 * b + 4 * WIDTH * INNER]  # the same numbers, shifted by some
                if external:
                    tensor.data_location = TensorProto.EXTERNAL
                    for key, entry in (
                        ("location", f"{path.name}.data"),
                        ("offset", file.tell()),
                        ("length", len(raw)),
                    ):
                        tensor.external_data.add(key=key, value=str(entry))
                    file.write(raw)
                else:
                    tensor.raw_data = raw
                initializers.append(tensor)
            nodes += [
                helper.make_node("LayerNormalization", [x, "gain", "bias"], [f"n{b}"], axis=-1),
                helper.make_node("MatMul", [f"n{b}", f"up{b}"], [f"u{b}"]),
                helper.make_node("Relu", [f"u{b}"], [f"r{b}"]),
                helper.make_node("MatMul", [f"r{b}", f"down{b}"], [f"d{b}"]),
                helper.make_node("Add", [x, f"d{b}"], [f"x{b}" if b < blocks - 1 else "y"]),
            ]
            x = f"x{b}"
    initializers.append(onnx.numpy_helper.from_array(np.ones(WIDTH, np.float32), "gain"))
    initializers.append(onnx.numpy_helper.from_array(np.zeros(WIDTH, np.float32), "bias"))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "tokens", WIDTH]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "blocks", ends[:1], ends[1:], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())


def measure(command: Sequence[str]) -> Run:
    """Run a command to its end; its peak is the largest resident set, mapped files included."""
    started = time.perf_counter()
    with open(os.devnull, "w") as silent:
        child = os.posix_spawnp(
            command[0], list(command), os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, silent.fileno(), 1)]
        )
        _, status, usage = os.wait4(child, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed: {os.waitstatus_to_exitcode(status)}")
    return Run(time.perf_counter() - started, usage.ru_maxrss / 1e3)


def copy_seconds(files: Sequence[Path], folder: Path) -> float:
    """Time to copy the files with cp, the best of three."""
    target = folder / "copy"
    target.mkdir()
    times = [measure(["cp", *map(str, files), str(target)]).seconds for _ in range(3)]
    shutil.rmtree(target)
    return min(times)


FLOAT_RUN = """
import sys, numpy as np, onnxruntime as ort
options = ort.SessionOptions()
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
session.run(None, {"x": np.zeros((1, 4, 4096), np.float32)})
"""


def row(name: str, run: Run, size: int, copied: float) -> str:
    """One line of the table."""
    return (
        f"| {name} | {run.peak_mb:,.0f} MB | {run.peak_mb * 1e6 / size:.2f} | "
        f"{run.seconds:.1f} s | {run.seconds / copied:.1f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    every = ["dynamic", "static", "verify", "embedded"]
    parser.add_argument("--cases", nargs="+", choices=every, default=every)
    parser.add_argument("--blocks", type=int, default=24, help="of the model with external data; 109 MB each")
    parser.add_argument("--embedded-blocks", type=int, default=14)
    given = parser.parse_args()
    onnxq = [sys.executable, "-m", "onnxq"]
    head = ("", "peak", "of the file", "time", "of cp")
    print("| " + " | ".join(head) + " |\n" + "| --- " * len(head) + "|")
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        rng = np.random.default_rng(1)
        np.savez(folder / "data.npz", x=rng.standard_normal((SAMPLES, 1, 4, WIDTH), dtype=np.float32))
        data = ["--data", str(folder / "data.npz")]
        if {"dynamic", "static", "verify"} & {*given.cases}:
            path, out = folder / "big.onnx", folder / "big.int8.onnx"
            make_model(path, given.blocks, external=True)
            files = [path, path.with_name("big.onnx.data")]
            size = sum(file.stat().st_size for file in files)
            copied = copy_seconds(files, folder)
            title = f"{size / 1e9:.1f} GB, external data"
            if "static" in given.cases:
                print(
                    row(
                        f"{title}: onnxruntime runs it",
                        measure([sys.executable, "-c", FLOAT_RUN, str(path)]),
                        size,
                        copied,
                    ),
                    flush=True,
                )
                run = measure([*onnxq, "quantize", str(path), "-o", str(out), "-f", "-r", "static-int8", *data])
                print(row(f"{title}: static, {SAMPLES} samples", run, size, copied), flush=True)
            if {"dynamic", "verify"} & {*given.cases}:
                run = measure([*onnxq, "quantize", str(path), "-o", str(out), "-f", "-r", "dynamic-int8"])
                print(row(f"{title}: dynamic", run, size, copied), flush=True)
            if "verify" in given.cases:
                run = measure([*onnxq, "verify", str(out), "--against", str(path), *data])
                print(row(f"{title}: verify --against", run, size, copied), flush=True)
            for file in (*files, out):
                file.unlink(missing_ok=True)
        if "embedded" in given.cases:
            path, out = folder / "one.onnx", folder / "one.int8.onnx"
            make_model(path, given.embedded_blocks, external=False)
            size = path.stat().st_size
            copied = copy_seconds([path], folder)
            for recipe, more in (("dynamic-int8", []), ("static-int8", data)):
                run = measure([*onnxq, "quantize", str(path), "-o", str(out), "-f", "-r", recipe, *more])
                print(row(f"{size / 1e9:.1f} GB in one file: {recipe.split('-')[0]}", run, size, copied), flush=True)


if __name__ == "__main__":
    main()
