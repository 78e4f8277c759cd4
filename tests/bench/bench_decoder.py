"""Compare low-bit models of a decoder with those of onnxruntime's MatMulNBitsQuantizer, in one run.

    python tests/bench/bench_decoder.py [FLOAT.onnx] --ids judge.npz --rivals [--python PYTHON] [NAME=QUANTIZED.onnx …]

FLOAT is the model of train_decoder.py without it. For each model: perplexity of the windows of `--ids` and what it is
above float's, the Kullback-Leibler divergence from float in the same unit, agreement of greedy continuations over 64
tokens, latency of one token and of a prefill relative to float (one thread, in turn, median), and the size of the file.
A model of a fixed length has one latency, of that length. `--rivals` makes onnxruntime's round-to-nearest (asymmetric
and symmetric), k-quant and HQQ at the same block size; HQQ needs torch, so `--python` names an interpreter that has it.
The rivals store the head, the last product, in the same bits, or leave it in float with `--head float`.
`--own calib.npz` quantizes FLOAT with those data and without, `--large` as if it were a large model.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort

from onnxq import in_blocks, quantize
from onnxq.ir.storage import residency

CACHE = Path.home() / ".cache" / "onnxq-bench" / "decoder"
PROMPT, CONTINUED, PREFILL, TURNS = 32, 64, 128, 40

RIVALS = """
import sys, onnx
from onnxruntime.quantization import matmul_nbits_quantizer as q
source, target, kind, block, bits, head, level = sys.argv[1:]
block, bits, level = int(block), int(bits), int(level)
def config(bits):
    if kind == "k_quant":
        return q.KQuantWeightOnlyQuantConfig()
    if kind == "hqq":
        return q.HQQWeightOnlyQuantConfig(block_size=block, bits=bits)
    return q.DefaultWeightOnlyQuantConfig(block_size=block, is_symmetric=kind == "rtn_symmetric", bits=bits,
                                          accuracy_level=level)
def run(model, bits, exclude, include=None):
    made = q.MatMulNBitsQuantizer(model, bits, block, kind == "rtn_symmetric", level, nodes_to_exclude=exclude,
                                  nodes_to_include=include, algo_config=config(bits))
    made.process()
    return made.model.model
model = onnx.load(source)
for index, node in enumerate(model.graph.node):
    node.name = node.name or f"node_{index}"
last = [n.name for n in model.graph.node if n.op_type == "MatMul"][-1]
made = run(model, bits, [] if head == "same" else [last])
for node in made.graph.node:
    if node.op_type == "MatMulNBits" and not any(a.name == "accuracy_level" for a in node.attribute):
        node.attribute.append(onnx.helper.make_attribute("accuracy_level", level))
onnx.save(made, target)
"""


def session(path: Path) -> ort.InferenceSession:
    """Open a model on one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def log_probabilities(run: ort.InferenceSession, ids: np.ndarray) -> np.ndarray:
    """Return float32 `[batch, length, tokens]`."""
    logits = run.run(None, {run.get_inputs()[0].name: ids})[0].astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    found: np.ndarray = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return found


def figures(float_run: ort.InferenceSession, run: ort.InferenceSession, ids: np.ndarray) -> tuple[float, float, float]:
    """Return the perplexity of float, the other's, and their divergence times float's perplexity."""
    losses: list[list[np.ndarray]] = [[], [], []]
    for start in range(0, len(ids), 8):
        part = ids[start : start + 8]
        read, told = part[:, :-1], part[:, 1:, None]
        one, two = log_probabilities(float_run, read), log_probabilities(run, read)
        losses[0].append(-np.take_along_axis(one, told, -1).ravel())
        losses[1].append(-np.take_along_axis(two, told, -1).ravel())
        losses[2].append((np.exp(one) * (one - two)).sum(axis=-1).ravel())
    first, second, divergence = (np.concatenate(part).mean() for part in losses)
    return float(np.exp(first)), float(np.exp(second)), float(np.exp(first) * divergence)


def agreement(float_run: ort.InferenceSession, run: ort.InferenceSession, ids: np.ndarray) -> float:
    """Return the share of tokens that greedy decoding chooses alike, following the float model's own text."""
    size = fixed_length(run)
    text = np.zeros((8, size or PROMPT + CONTINUED), ids.dtype)
    text[:, :PROMPT] = ids[:8, :PROMPT]
    alike = []
    for end in range(PROMPT, PROMPT + CONTINUED):
        feeds = {run.get_inputs()[0].name: text if size else text[:, :end]}  # what follows a place does not change it
        chosen = [r.run(None, feeds)[0][:, end - 1].argmax(axis=-1) for r in (float_run, run)]
        alike.append(chosen[0] == chosen[1])
        text[:, end] = chosen[0]
    return float(np.mean(alike))


def fixed_length(run: ort.InferenceSession) -> int:
    """Return the length of sequences that a model is made for; 0 where it is open."""
    size = run.get_inputs()[0].shape[1]
    return size if isinstance(size, int) else 0


def latency(float_run: ort.InferenceSession, run: ort.InferenceSession, ids: np.ndarray, length: int) -> float:
    """Return the median ratio of the latencies of one sequence, in turn."""
    feeds = {run.get_inputs()[0].name: ids[:1, : fixed_length(run) or length]}
    ratios = []
    for turn in range(TURNS + 5):
        times = []
        for each in (float_run, run):
            begun = time.perf_counter()
            each.run(None, feeds)
            times.append(time.perf_counter() - begun)
        if turn >= 5:
            ratios.append(times[1] / times[0])
    return float(np.median(ratios))


def make_rivals(arguments: argparse.Namespace, folder: Path) -> dict[str, Path]:
    """Let onnxruntime's quantizers make models, in an interpreter that has what they need."""
    made = {}
    for kind in ("rtn", "rtn_symmetric", "k_quant", "hqq"):
        target = folder / f"{kind}.onnx"
        given = [
            str(arguments.model),
            str(target),
            kind,
            str(arguments.block),
            str(arguments.bits),
            arguments.head,
            "4",
        ]
        done = subprocess.run([arguments.python, "-c", RIVALS, *given], capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{kind}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
        else:
            made[kind] = target
    return made


def make_own(arguments: argparse.Namespace, folder: Path) -> dict[str, Path]:
    """Quantize with data and without, in memory or as a large model."""
    residency.LARGE = 0 if arguments.large else residency.LARGE
    made = {}
    for name, data in (("onnxq", [arguments.own]), ("onnxq, no data", [])):
        made[name] = folder / f"onnxq{len(made)}.onnx"
        quantize(arguments.model, in_blocks(arguments.bits, arguments.block), data=data, output=made[name])
    return made


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=CACHE / "float.onnx")
    parser.add_argument("quantized", nargs="*", metavar="NAME=FILE")
    parser.add_argument(
        "--ids", type=Path, default=CACHE / "judge.npz", help="an .npz file of token ids, windows in rows"
    )
    parser.add_argument("--windows", type=int, default=64)
    parser.add_argument("--rivals", action="store_true")
    parser.add_argument("--own", type=Path, help="data to let onnxq quantize with")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--head", choices=("same", "float"), default="same")
    arguments = parser.parse_intermixed_args()
    with np.load(arguments.ids) as arrays:
        ids = next(arrays[name] for name in arrays.files if not name.startswith("_"))
        told = arrays["_w"] if "_w" in arrays.files else None
    if told is not None:  # labels are the next tokens: windows end with the last of them
        ids = np.concatenate([ids, told[:, -1:]], axis=1)
    ids = ids[np.linspace(0, len(ids) - 1, min(arguments.windows, len(ids))).astype(int)]
    float_run = session(arguments.model)
    with tempfile.TemporaryDirectory() as folder:
        models = make_rivals(arguments, Path(folder)) if arguments.rivals else {}
        models |= make_own(arguments, Path(folder)) if arguments.own else {}
        models |= {name: Path(path) for name, _, path in (entry.partition("=") for entry in arguments.quantized)}
        size = arguments.model.stat().st_size
        print(f"{'':22}{'ppl':>9}{'above':>9}{'KL':>9}{'greedy':>8}{'token':>7}{'prefill':>8}{'size':>7}")
        for name, path in models.items():
            run = session(path)
            before, after, divergence = figures(float_run, run, ids)
            alike = agreement(float_run, run, ids)
            one, many = (latency(float_run, run, ids, length) for length in (1, PREFILL))
            share = path.stat().st_size / size
            losses = f"{after:9.4f}{after - before:9.4f}{divergence:9.4f}{alike:8.1%}"
            print(f"{name:22}{losses}{one:7.2f}{many:8.2f}{share:7.3f}", flush=True)
        print(f"{'float':22}{before:9.4f}")


if __name__ == "__main__":
    main()
