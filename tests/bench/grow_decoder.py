"""Make a decoder of gigabytes from the trained layers of SmolLM2-135M, for memory and time of low-bit quantization.

    python tests/bench/grow_decoder.py OUT.onnx [--layers 10] [--copies 4] [--cache ~/.cache/onnxq-bench/smollm]

Copies of the decoder of fetch_decoder.py stand side by side, each reading other tokens, and an orthogonal matrix
rotates their common residual stream. So all matrices are dense, and wider by the number of copies: 2304 × 6144 with
four. Their inputs are as correlated as those of a trained decoder. Attention is GroupQueryAttention, the head is
tied. 10 layers are 2.7 GB, 25 are 6.1 GB; weights are in OUT.onnx.data. One layer is in memory at a time.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
from fetch_decoder import HEADS, KV_HEADS, LAYERS, VOCABULARY, WIDTH
from onnx import TensorProto, helper, numpy_helper

LONGEST = 512  # tokens
HEAD = WIDTH // HEADS
PRODUCTS = ("q", "k", "v", "o", "gate", "up", "down")
MICROSOFT = "com.microsoft"


class Trained:
    """The arrays of the trained decoder, read where they are asked for."""

    def __init__(self, path: Path) -> None:
        graph = onnx.load(path).graph
        self._known = {tensor.name: tensor for tensor in graph.initializer}
        inputs = [node.input[1] for node in graph.node if node.op_type == "MatMul"]
        self._products = [name for name in inputs if name in self._known]

    def product(self, layer: int, name: str) -> np.ndarray:
        """Return a matrix of a layer `[in, out]`, the gain of the norm before it in its rows."""
        index = PRODUCTS.index(name)
        matrix = numpy_helper.to_array(self._known[self._products[layer * len(PRODUCTS) + index]])
        if name in ("o", "down"):
            return matrix
        norm = "input_layernorm" if name in "qkv" else "post_attention_layernorm"
        gain = self.array(f"model.model.layers.{layer}.{norm}.weight")
        return np.asarray(gain[:, None] * matrix)

    def array(self, name: str) -> np.ndarray:
        """Return an array by its name."""
        return numpy_helper.to_array(self._known[name])


class Writer:
    """Weights that go to the file of external data as they are made."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.tensors = file, list[TensorProto]()

    def add(self, name: str, array: np.ndarray) -> None:
        """Write a float32 array."""
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=array.shape)
        tensor.data_location = TensorProto.EXTERNAL
        place = {"location": Path(self._file.name).name, "offset": self._file.tell(), "length": array.nbytes}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        self._file.write(np.ascontiguousarray(array, np.float32).data)
        self.tensors.append(tensor)


def matrices(trained: Trained, layer: int, layers: int, rotation: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Visit the matrices of one layer of the wide decoder."""
    wide = len(rotation)
    copies = wide // WIDTH
    for name in PRODUCTS:
        parts = []
        for copy in range(copies):
            matrix = trained.product(min(layer * LAYERS // layers + copy, LAYERS - 1), name)
            own = rotation[copy * WIDTH : (copy + 1) * WIDTH]
            if name == "down" or name == "o":
                parts.append(matrix @ own)
            else:
                parts.append(own.T @ matrix)
        yield name, np.concatenate(parts, axis=0 if name in ("o", "down") else 1)


def layer_nodes(layer: int, copies: int) -> Iterator[onnx.NodeProto]:
    """Visit the nodes of one layer, which reads the residual stream `h{layer}` and gives the next one."""
    names = {name: f"{name}.{layer}" for name in (*PRODUCTS, "x", "attention", "added", "mid", "y", "gated", "h")}

    def product(read: str, name: str) -> onnx.NodeProto:
        return helper.make_node("MatMul", [read, names[name]], [f"{names[name]}.out"], f"/layers.{layer}/{name}/MatMul")

    yield normed(f"h{layer}", names["x"])
    yield from (product(names["x"], name) for name in "qkv")
    read = [f"{names[name]}.out" for name in "qkv"] + ["", "", "seqlens_k", "total", "cos", "sin"]
    yield helper.make_node(
        "GroupQueryAttention", read, [names["attention"]], f"a.{layer}", domain=MICROSOFT,
        num_heads=copies * HEADS, kv_num_heads=copies * KV_HEADS, do_rotary=1, scale=HEAD**-0.5,
    )  # fmt: skip
    yield product(names["attention"], "o")
    yield helper.make_node("Add", [f"h{layer}", f"{names['o']}.out"], [names["mid"]])
    yield normed(names["mid"], names["y"])
    yield from (product(names["y"], name) for name in ("gate", "up"))
    yield helper.make_node("Sigmoid", [f"{names['gate']}.out"], [f"s.{layer}"])
    yield helper.make_node("Mul", [f"{names['gate']}.out", f"s.{layer}"], [f"silu.{layer}"])
    yield helper.make_node("Mul", [f"silu.{layer}", f"{names['up']}.out"], [names["gated"]])
    yield product(names["gated"], "down")
    yield helper.make_node("Add", [names["mid"], f"{names['down']}.out"], [f"h{layer + 1}"])


def normed(read: str, out: str) -> onnx.NodeProto:
    """Normalise by the root mean square; gains are in the matrices."""
    kind = "SimplifiedLayerNormalization"
    return helper.make_node(kind, [read, "ones"], [out], f"n_{out}", axis=-1, epsilon=1e-5, stash_type=1)


def rotary() -> Mapping[str, np.ndarray]:
    """Return cosines and sines of rotary embeddings, `[LONGEST, HEAD / 2]`."""
    angles = np.arange(LONGEST)[:, None] * 100000.0 ** -(np.arange(0, HEAD, 2) / HEAD)
    return {"cos": np.cos(angles), "sin": np.sin(angles)}


def main() -> None:
    """Write the decoder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "onnxq-bench" / "smollm")
    given = parser.parse_args()
    trained, wide = Trained(given.cache / "float.onnx"), given.copies * WIDTH
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((wide, wide)))[0].astype(np.float32)
    with given.out.with_name(f"{given.out.name}.data").open("wb") as file:
        writer = Writer(file)
        table = trained.array("model.lm_head.weight")
        whole = sum(
            np.roll(table, 1000 * copy, axis=0) @ rotation[copy * WIDTH : (copy + 1) * WIDTH]
            for copy in range(given.copies)
        )
        writer.add("embedding", np.asarray(whole))
        del whole, table
        for layer in range(given.layers):
            for name, matrix in matrices(trained, layer, given.layers, rotation):
                writer.add(f"{name}.{layer}", matrix)
    nodes = [
        helper.make_node("Shape", ["input_ids"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "first"], ["batch"]),
        helper.make_node("Gather", ["sizes", "second"], ["length"]),
        helper.make_node("Cast", ["length"], ["total"], to=TensorProto.INT32),
        helper.make_node("Sub", ["total", "one"], ["last"]),
        helper.make_node("Expand", ["last", "batch"], ["seqlens_k"]),
        helper.make_node("Gather", ["embedding", "input_ids"], ["h0"]),
    ]
    for layer in range(given.layers):
        nodes += layer_nodes(layer, given.copies)
    nodes += [
        normed(f"h{given.layers}", "normed"),
        helper.make_node("Transpose", ["embedding"], ["head"], perm=[1, 0]),
        helper.make_node("MatMul", ["normed", "head"], ["logits"], "/lm_head/MatMul"),
    ]
    numbers = {"first": np.array([0]), "second": np.array(1), "one": np.array(1, np.int32)}
    numbers |= {name: array.astype(np.float32) for name, array in rotary().items()} | {
        "ones": np.ones(wide, np.float32)
    }
    tensors = [numpy_helper.from_array(array, name) for name, array in numbers.items()] + writer.tensors
    read = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])]
    told = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length", VOCABULARY])]
    graph = helper.make_graph(nodes, "decoder", read, told, tensors)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    given.out.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


if __name__ == "__main__":
    main()
