"""Write networks of the kinds that passes were made for and that no stored model shows: for `bench_pass_worth.py`.

    python tests/bench/made_for.py FOLDER

Each is a few layers with random weights, as its exporter writes them, in a size that people run. The file is named
after the pass.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

sys.path.insert(0, str(Path(__file__).parents[1]))
from helpers import build, floats, node

F, I64 = np.float32, np.int64


class Net:
    """A network that grows line by line: nodes, and constants as they are first used."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}

    def __call__(self, op_type: str, *reads: str | np.ndarray, makes: str = "", **attributes: Any) -> str:
        """Add a node that reads values and arrays; return the name of its first output."""
        names = []
        for given in reads:
            if isinstance(given, np.ndarray):
                self.weights[f"w{len(self.weights)}"] = given
                given = f"w{len(self.weights) - 1}"
            names.append(given)
        made = makes or f"v{len(self.nodes)}"
        self.nodes.append(node(op_type, " ".join(names), made, **attributes))
        return made.split()[0]

    def linear(self, x: str, rows: int, columns: int) -> str:
        """Add a layer with a bias."""
        scale = rows**-0.5
        product = self("MatMul", x, floats(rows, columns, seed=len(self.nodes), scale=scale))
        return self("Add", product, floats(columns, seed=len(self.nodes), scale=0.1))

    def conv(self, x: str, *weight: int, **attributes: Any) -> str:
        """Add a Conv with a bias."""
        scale = float(np.prod(weight[1:])) ** -0.5
        return self("Conv", x, floats(*weight, seed=len(self.nodes), scale=scale), floats(weight[0]), **attributes)

    def model(self, inputs: Mapping[str, Any], last: str, opset: int) -> onnx.ModelProto:
        """Give the model; what the last node makes is its output."""
        self("Identity", last, makes="y")
        return build(self.nodes, inputs, ("y",), self.weights, opset)


def heads(net: Net, x: str, count: int, size: int) -> str:
    """Give [1, heads, places, size] of [1, places, heads × size]."""
    return net("Transpose", net("Reshape", x, I64([0, 0, count, size])), perm=[0, 2, 1, 3])


def turned_keys(net: Net, key: str, size: int) -> str:
    """Swap the last two axes of the keys in joined heads, as PyTorch's exporter writes it for open sizes."""
    shape, most = net("Shape", key), I64([2**63 - 1])
    lead = net("Slice", shape, I64([-(2**63)]), I64([-2]))
    last = net("Slice", shape, I64([-2]), most)
    joined = net("Reshape", key, net("Concat", I64([-1]), last, axis=0))
    turned = net("Transpose", joined, perm=[0, 2, 1])
    return net("Reshape", turned, net("Concat", lead, I64([size]), net("Slice", last, I64([0]), I64([1])), axis=0))


def encoder(places: int, guards: bool, apart: bool, spelled: bool) -> onnx.ModelProto:
    """Four layers of attention as PyTorch's newer exporter writes them: NaN guards, and keys turned in joined heads."""
    net, x, count, size = Net(), "x", 6, 64
    for _ in range(4):
        query, key, value = (heads(net, net.linear(x, 384, 384), count, size) for _ in range(3))
        if apart:
            turned = turned_keys(net, key, size)
        else:
            turned = net("Transpose", key, perm=[0, 1, 3, 2])
        scores = net("Mul", net("MatMul", query, turned), np.array(0.125, F))
        if spelled:
            away = net("Sub", scores, net("ReduceMax", scores, I64([-1])))
            powers = net("Exp", away)
            shares = net("Div", powers, net("ReduceSum", powers, I64([-1])))
        else:
            shares = net("Softmax", scores, axis=-1)
        if guards:
            shares = net("Where", net("IsNaN", shares), np.array(0, F), shares)
        mixed = net("Transpose", net("MatMul", shares, value), perm=[0, 2, 1, 3])
        x = net("Add", net.linear(net("Reshape", mixed, I64([0, 0, 384])), 384, 384), x)
    return net.model({"x": ["b", "t", 384] if apart else [1, places, 384]}, x, 18)


def keras_attention() -> onnx.ModelProto:
    """Four layers of attention as Keras writes them, in Einsum."""
    net, x = Net(), "x"
    for layer in range(4):
        parts = [
            net("Einsum", x, floats(256, 4, 64, seed=layer, scale=0.06), equation="abc,cde->abde") for _ in range(3)
        ]
        scores = net("Einsum", parts[0], parts[1], equation="abcd,aecd->acbe")
        shares = net("Softmax", net("Mul", scores, np.array(0.125, F)), axis=-1)
        mixed = net("Einsum", shares, parts[2], equation="acbe,aecd->abcd")
        back = net("Einsum", mixed, floats(4, 64, 256, seed=layer, scale=0.06), equation="abcd,cde->abe")
        x = net("Add", back, x)
    return net.model({"x": [1, 128, 256]}, x, 17)


def keras_tables() -> onnx.ModelProto:
    """Four embeddings, each behind a choice of indices that count from the end, and two layers."""
    net, rows = Net(), []
    for number in range(4):
        index = net("Gather", "i", I64([number]), axis=1)
        low = net("Less", net("Cast", index, to=TensorProto.FLOAT), np.array(0, F))
        moved = net("Add", index, np.array(1000, np.int32))
        keep = net("Mul", index, net("Cast", net("Not", low), to=TensorProto.INT32))
        wrap = net("Mul", net("Cast", low, to=TensorProto.INT32), moved)
        rows.append(net("Gather", floats(1000, 16, seed=number), net("Add", wrap, keep)))
    joined = net("Reshape", net("Concat", *rows, axis=2), I64([-1, 64]))
    hidden = net("Relu", net.linear(joined, 64, 128))
    return net.model({"i": (TensorProto.INT32, ["n", 4])}, net.linear(hidden, 128, 8), 13)


def gpt2() -> onnx.ModelProto:
    """Four blocks of GPT-2: every linear layer between Reshape to two axes and back, queries, keys and values fused."""
    net, x = Net(), "x"

    def rows(x: str, inner: int, outer: int) -> str:
        ahead = net("Slice", net("Shape", x), I64([0]), I64([2]))
        to = net("Concat", ahead, I64([outer]), axis=0)
        weight = floats(inner, outer, seed=len(net.nodes), scale=inner**-0.5)
        return net("Reshape", net("Gemm", net("Reshape", x, I64([-1, inner])), weight, floats(outer)), to)

    for _ in range(4):
        net("Split", rows(x, 256, 768), I64([256] * 3), makes=" ".join(f"{x}_{part}" for part in "qkv"), axis=2)
        query, key, value = (heads(net, f"{x}_{part}", 4, 64) for part in "qkv")
        scores = net("Mul", net("MatMul", query, net("Transpose", key, perm=[0, 1, 3, 2])), np.array(0.125, F))
        mixed = net("Transpose", net("MatMul", net("Softmax", scores, axis=-1), value), perm=[0, 2, 1, 3])
        x = net("Add", rows(net("Reshape", mixed, I64([0, 0, 256])), 256, 256), x)
        x = net("Add", rows(net("Relu", rows(x, 256, 1024)), 1024, 256), x)
    return net.model({"x": ["b", "t", 256]}, x, 17)


def llama() -> onnx.ModelProto:
    """Gated layers behind RMS normalization with a Reciprocal, as PyTorch's newer exporter writes it."""
    net, x = Net(), "x"
    for layer in range(4):
        mean = net("ReduceMean", net("Pow", x, np.array(2, F)), I64([-1]))
        inverse = net("Reciprocal", net("Sqrt", net("Add", mean, np.array(1e-6, F))))
        normed = net("Mul", net("Mul", x, inverse), 1 + floats(256, seed=layer, scale=0.1))
        gate = net("MatMul", normed, floats(256, 512, seed=layer, scale=0.06))
        opened = net("Mul", net("Mul", gate, net("Sigmoid", gate)), net("MatMul", normed, floats(256, 512, scale=0.06)))
        x = net("Add", net("MatMul", opened, floats(512, 256, seed=layer, scale=0.04)), x)
    return net.model({"x": [1, 64, 256]}, x, 18)


def repvgg() -> onnx.ModelProto:
    """Six blocks of a 3 × 3, a 1 × 1 and a BatchNormalization, summed."""
    net = Net()
    x = net("Relu", net.conv("x", 32, 3, 3, 3, pads=[1] * 4, strides=[2, 2]))
    for block in range(6):
        g, s, m = (floats(32, seed=block + k, scale=0.3) for k in range(3))
        sums = net("Add", net.conv(x, 32, 32, 3, 3, pads=[1] * 4), net.conv(x, 32, 32, 1, 1))
        x = net("Relu", net("Add", sums, net("BatchNormalization", x, g, s, m, np.abs(g) + 1)))
    return net.model({"x": [1, 3, 96, 96]}, x, 17)


def levit() -> onnx.ModelProto:
    """Eight linear layers with BatchNormalization of their rows in a list."""
    net, x = Net(), "x"
    for layer in range(8):
        product = net("MatMul", x, floats(256, 256, seed=layer, scale=0.06))
        g, s, m = (floats(256, seed=layer + k, scale=0.3) for k in range(3))
        normed = net("BatchNormalization", net("Flatten", product, axis=2), g, s, m, np.abs(g) + 1)
        x = net("Relu", net("Reshape", normed, I64([1, 196, 256])))
    return net.model({"x": [1, 196, 256]}, x, 17)


def segments() -> onnx.ModelProto:
    """Three layers and a Softmax over 21 classes in front of 64 × 64 places."""
    net = Net()
    x = net("Relu", net.conv("x", 32, 3, 3, 3, pads=[1] * 4, strides=[2, 2]))
    x = net("Relu", net.conv(x, 32, 32, 3, 3, pads=[1] * 4))
    return net.model({"x": [1, 3, 128, 128]}, net("Softmax", net.conv(x, 21, 32, 1, 1), axis=1), 17)


def one_channel() -> onnx.ModelProto:
    """Super-resolution of a grey picture whose columns do not come in blocks: 5 × 5 and 3 × 3."""
    net = Net()
    x = net("Relu", net.conv("x", 64, 1, 5, 5, pads=[2] * 4))
    x = net("Relu", net.conv(x, 64, 64, 3, 3, pads=[1] * 4))
    x = net("Relu", net.conv(x, 32, 64, 3, 3, pads=[1] * 4))
    return net.model(
        {"x": [1, 1, 222, 221]}, net("DepthToSpace", net.conv(x, 9, 32, 3, 3, pads=[1] * 4), blocksize=3), 17
    )


def slopes() -> onnx.ModelProto:
    """Five layers with PRelu, a slope for every channel."""
    net, x = Net(), "x"
    for layer in range(5):
        x = net.conv(x, 32, 32 if layer else 3, 3, 3, pads=[1] * 4)
        x = net("PRelu", x, np.linspace(0.1, 0.5, 32, dtype=F).reshape(32, 1, 1))
    return net.model({"x": [1, 3, 64, 64]}, x, 17)


def boxes() -> onnx.ModelProto:
    """A layer, and boxes of 4,420 anchors whose centres and sizes are joined, and taken apart for the corners."""
    net = Net()
    x = net("Relu", net.conv("x", 32, 3, 3, 3, pads=[1] * 4, strides=[2, 2]))
    rows = net("Reshape", net("Transpose", net.conv(x, 4, 32, 1, 1), perm=[0, 2, 3, 1]), I64([1, -1, 4]))

    def part(of: str, start: int) -> str:
        return net("Slice", of, I64([start]), I64([start + 2]), I64([2]))

    sized = net("Concat", net("Mul", part(rows, 0), np.array(0.1, F)), net("Exp", part(rows, 2)), axis=2)
    ends = []
    for sign in (-0.5, 0.5):
        moved = net("Mul", part(sized, 2), np.array(sign, F))
        ends.append(net("Add", part(sized, 0), moved))
    return net.model({"x": [1, 3, 128, 128]}, net("Concat", *ends, axis=2), 13)


KINDS = {
    "einsum_to_matmul": keras_attention,
    "remove_index_wrapping": keras_tables,
    "gemm_to_matmul": gpt2,
    "rms_norm_reciprocal": llama,
    "merge_parallel_convs": repvgg,
    "fold_batchnorm_into_matmul": levit,
    "remove_nan_guards": lambda: encoder(128, True, False, False),
    "transpose_through_reshape": lambda: encoder(128, False, True, False),
    "fuse_softmax": lambda: encoder(128, False, False, True),
    "softmax_last_axis": segments,
    "fold_taps": one_channel,
    "prelu": slopes,
    "forward_concat_parts": boxes,
}


def samples(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Give sixteen samples for the input: normal numbers, or indices below 1,000."""
    (given,) = model.graph.input
    shape = [dim.dim_value or 24 for dim in given.type.tensor_type.shape.dim]
    shape = [16, *shape[1:]]
    if given.type.tensor_type.elem_type == TensorProto.INT32:
        return {given.name: np.random.default_rng(0).integers(0, 1000, shape, np.int32)}
    return {given.name: floats(*shape)}


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in KINDS.items():
        model = make()
        onnx.save(model, folder / f"{name}.onnx")
        np.savez(folder / f"{name}_calib.npz", **samples(model))
    return 0


if __name__ == "__main__":
    sys.exit(main())
