"""Compare int8 caches of keys and values with float ones, in a decoder that onnxq has quantized.

    python tests/bench/bench_caches.py QUANTIZED.onnx --ids judge.npz --calibrate calib.npz [--windows 64]

QUANTIZED reads token ids alone, and its attention is GroupQueryAttention. Caches are added as inputs and outputs, once
as floats and once as codes whose scales come from the other windows. Printed are perplexity of both, one thread, and
the latency of one token behind a cache and of a prompt, in turn, median.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from onnxq.ir import encode_proto, parse
from onnxq.lowering.coded_caches import code_caches

PASTS, PROMPT, TURNS, CALIBRATED = (64, 1024, 4096), 128, 12, 32


def with_caches(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Add float caches to each GroupQueryAttention, their lengths among the inputs."""
    graph = proto.graph
    for name in ("last", "total"):
        graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT32, [1]))
    places = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("cos_table", "sin_table")}
    graph.input.extend(places.values())
    nodes = [node for node in graph.node if node.op_type == "GroupQueryAttention"]
    for index, node in enumerate(nodes):
        settings = {each.name: each.i for each in node.attribute}
        heads = settings["kv_num_heads"]
        names = [f"past.{index}.{part}" for part in ("key", "value")]
        node.input[3:9] = [*names, "last", "total", *places]
        node.output.extend(f"present.{index}.{part}" for part in ("key", "value"))
        for listed, ends in ((graph.input, names), (graph.output, node.output[1:3])):
            listed.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, heads, None, None]) for n in ends)
    return proto


def session(encoded: bytes) -> ort.InferenceSession:
    """Open a model on one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return ort.InferenceSession(encoded, options, providers=["CPUExecutionProvider"])


class Decoder:
    """A model with caches, and what it reads beside token ids."""

    def __init__(self, encoded: bytes, head: int, base: float) -> None:
        self.run = session(encoded)
        self.kind = np.int8 if self.run.get_inputs()[-1].type == "tensor(int8)" else np.float32
        self.caches = [one for one in self.run.get_inputs() if one.name.startswith("past.")]
        angles = np.arange(max(PASTS) + PROMPT)[:, None] / base ** (np.arange(head // 2) / (head // 2))
        self.tables = {"cos_table": np.cos(angles).astype(np.float32), "sin_table": np.sin(angles).astype(np.float32)}
        self.head = head

    def feeds(self, ids: np.ndarray, past: int = 0) -> dict[str, np.ndarray]:
        """Return the inputs for token ids `[1, length]` behind a cache of random numbers."""
        rng, many = np.random.default_rng(0), past + ids.shape[1]
        made = {self.run.get_inputs()[0].name: ids, **self.tables}
        made |= {"last": np.array([many - 1], np.int32), "total": np.array([many], np.int32)}
        for one in self.caches:
            made[one.name] = rng.integers(-9, 9, (1, one.shape[1], past, self.head)).astype(self.kind)
        return made

    def loss(self, ids: np.ndarray) -> float:
        """Return the mean loss of the next tokens of a window."""
        logits = self.run.run(["logits"], self.feeds(ids[None, :-1]))[0][0].astype(np.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        return -float(np.take_along_axis(logits, ids[1:, None], -1).mean())


def scales(decoder: Decoder, windows: np.ndarray) -> dict[str, np.ndarray]:
    """Return the scale of each channel of each cache."""
    names = [one.name for one in decoder.run.get_outputs() if one.name.startswith("present.")]
    most: dict[str, np.ndarray] = {}
    for ids in windows[:CALIBRATED]:
        for name, cache in zip(names, decoder.run.run(names, decoder.feeds(ids[None])), strict=True):
            found = np.abs(cache).max(axis=(0, 2), keepdims=True)
            most[name] = np.maximum(most.get(name, found), found)
    return {name: (array / 127).astype(np.float32) for name, array in most.items()}


def times(decoders: tuple[Decoder, Decoder], ids: np.ndarray, past: int) -> list[float]:
    """Return the median latencies in ms, in turn."""
    feeds = [each.feeds(ids, past) for each in decoders]
    taken: list[list[float]] = [[], []]
    for _ in range(TURNS):
        for each, given, found in zip(decoders, feeds, taken, strict=True):
            begun = time.perf_counter()
            each.run.run(None, given)
            found.append(1e3 * (time.perf_counter() - begun))
    return [float(np.median(found[2:])) for found in taken]


def main() -> None:
    """Print perplexity and latencies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--ids", type=Path, required=True)
    parser.add_argument("--calibrate", type=Path, required=True)
    parser.add_argument("--windows", type=int, default=64)
    parser.add_argument("--head", type=int, default=64, help="size of a head")
    parser.add_argument("--base", type=float, default=1e5, help="of the rotations")
    arguments = parser.parse_args()
    judged, others = (np.load(path)["input_ids"] for path in (arguments.ids, arguments.calibrate))
    proto = with_caches(onnx.load(arguments.model))
    plain = Decoder(proto.SerializeToString(), arguments.head, arguments.base)
    model = code_caches(parse(encode_proto(proto)), scales(plain, others))
    coded = Decoder(bytes(model.serialize()), arguments.head, arguments.base)
    losses = np.array([[each.loss(ids) for each in (plain, coded)] for ids in judged[: arguments.windows]])
    one, two = np.exp(losses.mean(axis=0))
    spread = (losses[:, 1] - losses[:, 0]).std(ddof=1) / np.sqrt(len(losses)) * two
    print(f"perplexity {one:.4f} with float caches, {two - one:+.4f} ± {spread:.4f} with int8 caches")
    for past in PASTS:
        before, after = times((plain, coded), judged[:1, :1], past)
        print(f"one token behind {past}: {before:.2f} ms, int8 {after:.2f} ms, {after / before:.2f}")
    before, after = times((plain, coded), judged[:1, :PROMPT], 0)
    print(f"{PROMPT} tokens: {before:.1f} ms, int8 {after:.1f} ms, {after / before:.2f}")


if __name__ == "__main__":
    main()
