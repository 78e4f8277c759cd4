"""Peak memory and time of onnxq on models of gigabytes, against copying their files.

    python tests/bench/bench_large.py [--folder FOLDER] [--cases dynamic static verify bits embedded] [--blocks 24]

Makes the models in a temporary folder inside FOLDER (8 GB have to be free), prints a table in Markdown, deletes all.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnxq.ir import load, save

WIDTH, INNER = 4096, 3328  # two matrices of 54.5 MB a block; 24 blocks are 2.6 GB
BLOCKS, BLOCKS_IN_ONE_FILE = 24, 14
SAMPLES = 4
TOKENS = 128  # of a sample for weights in blocks, which are chosen on what layers read
ONNXQ = [sys.executable, "-m", "onnxq"]
ONNXRUNTIME = """
import sys, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
session.run(None, {"x": numpy.zeros((1, 4, 4096), numpy.float32)})
"""


def make_model(path: Path, blocks: int) -> None:
    """Write residual blocks of LayerNormalization, MatMul, Relu and MatMul, the weights in external data."""
    rng = np.random.default_rng(0)
    noise = (rng.standard_normal(WIDTH * INNER + 4 * blocks, dtype=np.float32) * 0.02).tobytes()
    nodes, initializers, x = [], [], "x"
    with path.with_name(f"{path.name}.data").open("wb") as file:
        for b in range(blocks):
            for name, shape in ((f"up{b}", (WIDTH, INNER)), (f"down{b}", (INNER, WIDTH))):
                raw = noise[8 * len(initializers) :][: 4 * WIDTH * INNER]  # the same numbers, shifted by some
                tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=1)
                for key, entry in (("location", f"{path.name}.data"), ("offset", file.tell()), ("length", len(raw))):
                    tensor.external_data.add(key=key, value=str(entry))
                initializers.append(tensor)
                file.write(raw)
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


def measure(*command: object) -> tuple[float, float]:
    """Run a command to its end: seconds, and the largest resident set in MB, mapped files included."""
    started = time.perf_counter()
    words = [str(word) for word in command]
    silent = os.open(os.devnull, os.O_WRONLY)
    child = os.posix_spawnp(words[0], words, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, silent, 1)])
    os.close(silent)
    _, status, usage = os.wait4(child, 0)
    if status:
        raise SystemExit(f"{' '.join(words)} failed: {os.waitstatus_to_exitcode(status)}")
    return time.perf_counter() - started, usage.ru_maxrss / 1e3


def copy_seconds(files: Sequence[Path], folder: Path) -> float:
    """Time to copy the files with cp, the best of three."""
    target = folder / "copy"
    times = []
    for _ in range(3):
        target.mkdir()
        times.append(measure("cp", *files, target)[0])
        shutil.rmtree(target)
    return min(times)


def runs(folder: Path, cases: Sequence[str], blocks: int) -> Iterator[tuple[str, Sequence[Path], list[object]]]:
    """Give what to measure: a name, the files of the model, a command."""
    rng = np.random.default_rng(1)
    np.savez(folder / "data.npz", x=rng.standard_normal((SAMPLES, 1, 4, WIDTH), dtype=np.float32))
    data = ["--data", folder / "data.npz"]
    path, out = folder / "big.onnx", folder / "big.int8.onnx"
    files = [path, folder / "big.onnx.data"]
    quantize = [*ONNXQ, "quantize", path, "-f", "-o", out, "--recipe"]
    if {"dynamic", "static", "verify", "bits"} & {*cases}:
        make_model(path, blocks)
    if "static" in cases:
        yield "onnxruntime runs it", files, [sys.executable, "-c", ONNXRUNTIME, path]
        yield f"static, {SAMPLES} samples", files, [*quantize, "static-int8", *data]
    if {"dynamic", "verify"} & {*cases}:
        yield "dynamic", files, [*quantize, "dynamic-int8"]
    if "verify" in cases:
        yield "verify --against", files, [*ONNXQ, "verify", out, "--against", path, *data]
    if "bits" in cases:
        texts = folder / "texts.npz"
        np.savez(texts, x=rng.standard_normal((SAMPLES, 1, TOKENS, WIDTH), dtype=np.float32))
        float_pass = ONNXRUNTIME.replace("(1, 4, 4096)", f"({SAMPLES}, {TOKENS}, 4096)")
        yield f"float pass, {SAMPLES * TOKENS} tokens", files, [sys.executable, "-c", float_pass, path]
        bits = [*quantize[:-1], "--bits", "4", "--data", texts]
        yield f"4 bits, {SAMPLES * TOKENS} tokens", files, bits
        yield f"4 bits, no search, {SAMPLES * TOKENS} tokens", files, [*bits, "--fast"]
    out.unlink(missing_ok=True)
    if "embedded" in cases:
        make_model(path, BLOCKS_IN_ONE_FILE)
        one = folder / "one.onnx"
        save(load(path), one, external_data=False)
        quantize[quantize.index(path)] = one
        yield "one file, dynamic", [one], [*quantize, "dynamic-int8"]
        yield f"one file, static, {SAMPLES} samples", [one], [*quantize, "static-int8", *data]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--blocks", type=int, default=BLOCKS, help="of 109 MB each (default 24)")
    every = ["dynamic", "static", "verify", "bits", "embedded"]
    parser.add_argument("--cases", nargs="+", choices=every, default=every)
    given = parser.parse_args()
    print("| model | run | peak memory | of the file | time | of `cp` |\n|---|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        copied: dict[Path, float] = {}
        for what, files, command in runs(Path(name), given.cases, given.blocks):
            if files[0] not in copied:
                copied[files[0]] = copy_seconds(files, Path(name))
            size = sum(file.stat().st_size for file in files)
            seconds, peak = measure(*command)
            print(
                f"| {size / 1e9:.1f} GB | {what} | {peak:,.0f} MB | {peak * 1e6 / size:.2f} "
                f"| {seconds:.1f} s | {seconds / copied[files[0]]:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
