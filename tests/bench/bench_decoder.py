"""Compare low-bit models of a decoder with those of onnxruntime's MatMulNBitsQuantizer, in one run.

    python tests/bench/bench_decoder.py [FLOAT.onnx] --ids judge.npz --rivals [--python PYTHON] [NAME=QUANTIZED.onnx …]

FLOAT is the model of train_decoder.py without it. For each model: perplexity of the windows of `--ids` and what it is
above float's with the standard
error over windows, the Kullback-Leibler divergence from float in the same unit, agreement of greedy continuations over
64 tokens, latency of one token and of a prefill relative to float (one thread, in turn, median), and the file's size.
A model of a fixed length has one latency, of that length. `--rivals` makes onnxruntime's round-to-nearest (asymmetric
and symmetric), k-quant and HQQ at the same block size; HQQ needs torch, so `--python` names an interpreter that has it.
The rivals store the head, the last product, in 8 bits as onnxq does, or in the same bits as the rest, or in float.
`--own calib.npz` quantizes FLOAT with those data and without, `--path large` as if it were a large model. `--keep
FOLDER` keeps what is made, and does not make again what is there. Each model is made in a process of its own, whose
time and peak memory (pages of mapped files included) are printed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime as ort

from onnxq.ir.storage import residency

CACHE = Path.home() / ".cache" / "onnxq-bench" / "decoder"
PROMPT, CONTINUED, PREFILL, TURNS, WARM_UP = 32, 64, 128, 40, 2

USED = """
import resource
used = resource.getrusage(resource.RUSAGE_SELF)
print(f"{used.ru_utime + used.ru_stime:.0f} s of processors, {used.ru_maxrss / 1024:.0f} MB", file=sys.stderr)
"""
RIVALS = """
import sys, onnx
from onnx import numpy_helper
from onnxruntime.quantization import matmul_nbits_quantizer as q
source, target, kind, block, bits, head, level = sys.argv[1:]
block, bits, level = int(block), int(bits), int(level)
def config(kind, bits):
    if kind == "k_quant":
        return q.KQuantWeightOnlyQuantConfig()
    if kind == "hqq":
        return q.HQQWeightOnlyQuantConfig(block_size=block, bits=bits)
    return q.DefaultWeightOnlyQuantConfig(block_size=block, is_symmetric=kind == "rtn_symmetric", bits=bits,
                                          accuracy_level=level)
def run(model, kind, bits, exclude, include=None):
    made = q.MatMulNBitsQuantizer(model, bits, block, kind == "rtn_symmetric", level, nodes_to_exclude=exclude,
                                  nodes_to_include=include, algo_config=config(kind, bits))
    made.process()
    return made.model.model
model = onnx.load(source)
known = {tensor.name: tensor for tensor in model.graph.initializer}
for index, node in enumerate(model.graph.node):
    node.name = node.name or f"node_{index}"
    if node.op_type == "Transpose" and node.input[0] in known:  # a tied head: the quantizer takes constants alone
        turned = numpy_helper.to_array(known[node.input[0]]).T.copy()
        model.graph.initializer.append(numpy_helper.from_array(turned, node.output[0]))
        node.output[0] += "_unused"
products = [n.name for n in model.graph.node if n.op_type == "MatMul"]
made = run(model, kind, bits, [] if head == "same" else products[-1:])
if head == "8":
    made = run(made, "rtn", 8, products[:-1])
for node in made.graph.node:
    if node.op_type == "MatMulNBits" and not any(a.name == "accuracy_level" for a in node.attribute):
        node.attribute.append(onnx.helper.make_attribute("accuracy_level", level))
read = {name for node in made.graph.node for name in node.input}
for node in [n for n in made.graph.node if n.op_type == "Transpose" and n.output[0].endswith("_unused")]:
    made.graph.node.remove(node)
for tensor in [t for t in made.graph.initializer if t.name not in read]:
    made.graph.initializer.remove(tensor)
onnx.save(made, target)
"""
OWN = """
import sys
from onnxq import in_blocks, quantize
from onnxq.ir.storage import residency
most, source, target, data, samples, bits, block = sys.argv[1:]
residency.LARGE = int(most)
quantize(source, in_blocks(int(bits), int(block)), data=[data] if data else [], output=target,
         sample_limit=int(samples) if data else None)
"""


def session(path: Path) -> ort.InferenceSession:
    """Open a model on one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def log_probabilities(run: ort.InferenceSession, ids: np.ndarray) -> np.ndarray:
    """Return float32 `[length, tokens]` of one window, of sums in float64."""
    logits = run.run(None, {run.get_inputs()[0].name: ids[None]})[0][0].astype(np.float32)
    logits -= logits.max(axis=-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True, dtype=np.float64)).astype(np.float32)
    return np.asarray(logits)


class Figures(NamedTuple):
    """Figures of one model: perplexity above float's and divergence from it, each with its standard error."""

    above: float
    above_error: float
    divergence: float


def figures(
    float_run: ort.InferenceSession, runs: Sequence[ort.InferenceSession], ids: np.ndarray
) -> tuple[float, list[Figures]]:
    """Return the perplexity of float, and the figures of each model; windows are the units of chance."""
    losses, others = [], []
    for window in ids:
        read, told = window[:-1], window[1:, None]
        one = log_probabilities(float_run, read)
        shares = np.exp(one)
        losses.append(-np.take_along_axis(one, told, -1).mean(dtype=np.float64))
        found = []
        for run in runs:
            two = log_probabilities(run, read)
            apart = np.einsum("lt,lt->l", shares, one - two)
            found.append((-np.take_along_axis(two, told, -1).mean(dtype=np.float64), apart.mean(dtype=np.float64)))
        others.append(found)
    base, made = np.array(losses), np.array(others)
    perplexity = float(np.exp(base.mean()))
    listed = []
    for second, divergence in made.transpose(1, 2, 0):
        after = float(np.exp(second.mean()))
        spread = float((second - base).std(ddof=1) / np.sqrt(len(base)))
        listed.append(Figures(after - perplexity, after * spread, perplexity * float(divergence.mean())))
    return perplexity, listed


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


def latency(
    float_run: ort.InferenceSession, run: ort.InferenceSession, ids: np.ndarray, length: int, turns: int
) -> float:
    """Return the median ratio of the latencies of one sequence, in turn; NaN without turns."""
    feeds = {run.get_inputs()[0].name: ids[:1, : fixed_length(run) or length]}
    ratios = []
    for turn in range(turns + WARM_UP if turns else 0):
        times = []
        for each in (float_run, run):
            begun = time.perf_counter()
            each.run(None, feeds)
            times.append(time.perf_counter() - begun)
        if turn >= WARM_UP:
            ratios.append(times[1] / times[0])
    return float(np.median(ratios)) if ratios else float("nan")


def make_rivals(arguments: argparse.Namespace, folder: Path) -> dict[str, Path]:
    """Let onnxruntime's quantizers make models, in an interpreter that has what they need."""
    made = {}
    for kind in ("rtn", "rtn_symmetric", "k_quant", "hqq"):
        path = folder / f"{kind}_{arguments.bits}_{arguments.block}_{arguments.head}.onnx"
        given = [str(arguments.model), str(path), kind, str(arguments.block), str(arguments.bits), arguments.head, "4"]
        if make([arguments.python, "-c", RIVALS + USED, *given], kind, path):
            made[kind] = path
    return made


def make_own(arguments: argparse.Namespace, folder: Path) -> dict[str, Path]:
    """Quantize with data and without, in memory, as a large model, or as the size says."""
    made = {}
    most = {"small": str(1 << 60), "large": "0", "auto": str(residency.LARGE)}[arguments.path]
    for name, data in (("onnxq", str(arguments.own)), ("onnxq, no data", "")):
        path = folder / f"own_{arguments.bits}_{arguments.block}_{arguments.path}{'' if data else '_no_data'}.onnx"
        given = [most, str(arguments.model), str(path), data, str(arguments.samples), str(arguments.bits)]
        if make([sys.executable, "-c", OWN + USED, *given, str(arguments.block)], name, path):
            made[name] = path
    return made


def make(command: list[str], name: str, path: Path) -> bool:
    """Run a command that makes a model, if the model is not there yet, and print what that took."""
    if path.exists():
        return True
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said = process.communicate()[1] if process.stderr else ""
    if process.returncode:
        print(f"{name}: {(said.strip().splitlines() or ['failed'])[-1]}", flush=True)
        return False
    print(f"{name}: {time.perf_counter() - begun:.0f} s, {said.strip().splitlines()[-1]}", flush=True)
    return True


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=CACHE / "float.onnx")
    parser.add_argument("quantized", nargs="*", metavar="NAME=FILE")
    parser.add_argument(
        "--ids", type=Path, default=CACHE / "judge.npz", help="an .npz file of token ids, windows in rows"
    )
    parser.add_argument("--windows", type=int, default=64)
    parser.add_argument("--turns", type=int, default=TURNS, help="of each latency, 0 for none")
    parser.add_argument("--greedy", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--keep", type=Path, help="a folder for the models that are made, and for those made before")
    parser.add_argument("--rivals", action="store_true")
    parser.add_argument("--own", type=Path, help="data to let onnxq quantize with")
    parser.add_argument("--samples", type=int, default=128, help="of those data at most")
    parser.add_argument("--path", choices=("auto", "small", "large"), default="auto", help="as a model of which size")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--head", choices=("8", "same", "float"), default="8", help="bits of the head of rivals")
    arguments = parser.parse_intermixed_args()
    with np.load(arguments.ids) as arrays:
        ids = next(arrays[name] for name in arrays.files if not name.startswith("_"))
        told = arrays["_w"] if "_w" in arrays.files else None
    if told is not None:  # labels are the next tokens: windows end with the last of them
        ids = np.concatenate([ids, told[:, -1:]], axis=1)
    ids = ids[np.linspace(0, len(ids) - 1, min(arguments.windows, len(ids))).astype(int)]
    float_run = session(arguments.model)
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch)
        models = make_rivals(arguments, folder) if arguments.rivals else {}
        models |= make_own(arguments, folder) if arguments.own else {}
        models |= {name: Path(path) for name, _, path in (entry.partition("=") for entry in arguments.quantized)}
        size = arguments.model.stat().st_size
        runs = {name: session(path) for name, path in models.items()}
        perplexity, found = figures(float_run, list(runs.values()), ids)
        print(f"float has a perplexity of {perplexity:.4f} on {len(ids) * (ids.shape[1] - 1)} tokens")
        print(f"{'':22}{'above':>9}{'±':>8}{'KL':>9}{'greedy':>8}{'token':>7}{'prefill':>8}{'size':>7}")
        for (name, run), figure in zip(runs.items(), found, strict=True):
            alike = agreement(float_run, run, ids) if arguments.greedy else float("nan")
            one, many = (latency(float_run, run, ids, length, arguments.turns) for length in (1, PREFILL))
            share = models[name].stat().st_size / size
            losses = f"{figure.above:9.4f}{figure.above_error:8.4f}{figure.divergence:9.4f}{alike:8.1%}"
            print(f"{name:22}{losses}{one:7.2f}{many:8.2f}{share:7.3f}", flush=True)


if __name__ == "__main__":
    main()
