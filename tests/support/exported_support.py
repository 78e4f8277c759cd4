"""Transformers as PyTorch exports them: every layer asks for the sizes of what it reads, and makes its own mask."""

from __future__ import annotations

import numpy as np
import onnx
from helpers import build, floats, node
from onnx import TensorProto

HEADS, WIDTH, POSITIONS, WORDS = 2, 8, 16, 11
I64 = np.int64


class Exported:
    """Nodes and weights of a model that is being written."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {
            "i0": I64(0), "i1": I64(1), "axis0": I64([0]), "rest": I64([-1]), "low": np.float32(-1e9),
            "heads": I64([HEADS]), "head": I64([WIDTH // HEADS]), "whole": I64([WIDTH]), "scale": np.float32(0.5),
            "words": floats(WORDS, WIDTH, seed=1), "positions": floats(POSITIONS, WIDTH, seed=2),
        }  # fmt: skip

    def op(self, op_type: str, inputs: str, output: str, **attributes: object) -> str:
        """Write a node and give the name of what it makes."""
        self.nodes.append(node(op_type, inputs, output, **attributes))
        return output

    def size(self, value: str, axis: int, name: str) -> str:
        """Write what `value.size(axis)` becomes, as a vector of one element."""
        self.op("Shape", value, f"{name}_shape")
        self.op("Gather", f"{name}_shape i{axis}", f"{name}_number", axis=0)
        return self.op("Unsqueeze", f"{name}_number axis0", name)

    def layer(self, x: str, mask: str, name: str, heads: str = "heads") -> str:
        """Write attention and the sum with what it reads; the mask is added, the number of heads is stated or left."""
        sizes = f"{self.size(x, 0, f'{name}_n')} {self.size(x, 1, f'{name}_t')}"
        turned = {"q": [0, 2, 1, 3], "k": [0, 2, 3, 1], "v": [0, 2, 1, 3]}
        for seed, (part, perm) in enumerate(turned.items()):
            self.weights[f"{name}_w{part}"] = floats(WIDTH, WIDTH, seed=seed, scale=0.3)
            self.op("MatMul", f"{x} {name}_w{part}", f"{name}_{part}")
            self.op("Concat", f"{sizes} {heads} head", f"{name}_{part}_target", axis=0)
            self.op("Reshape", f"{name}_{part} {name}_{part}_target", f"{name}_{part}_split")
            self.op("Transpose", f"{name}_{part}_split", f"{name}_{part}_turned", perm=perm)
        self.op("MatMul", f"{name}_q_turned {name}_k_turned", f"{name}_products")
        self.op("Mul", f"{name}_products scale", f"{name}_scaled")
        self.op("Add", f"{name}_scaled {mask}", f"{name}_masked")
        self.op("Softmax", f"{name}_masked", f"{name}_softmax", axis=-1)
        self.op("MatMul", f"{name}_softmax {name}_v_turned", f"{name}_context")
        self.op("Transpose", f"{name}_context", f"{name}_back", perm=[0, 2, 1, 3])
        self.op("Concat", f"{sizes} whole", f"{name}_joined_target", axis=0)
        self.op("Reshape", f"{name}_back {name}_joined_target", f"{name}_joined")
        return self.op("Add", f"{name}_joined {x}", f"{name}_sum")

    def embedded(self) -> str:
        """Write the sum of what stands for words and positions."""
        self.op("Slice", f"positions axis0 {self.size('ids', 1, 'length')} axis0", "place")
        self.op("Gather", "words ids", "word")
        return self.op("Add", "word place", "embedded")

    def causal(self, x: str, name: str) -> str:
        """Write a mask of what comes later, from the length of what a layer reads."""
        self.op(
            "Concat",
            f"{self.size(x, 1, f'{name}_rows')} {self.size(x, 1, f'{name}_columns')}",
            f"{name}_square",
            axis=0,
        )
        self.op(
            "ConstantOfShape", f"{name}_square", f"{name}_full", value=onnx.numpy_helper.from_array(np.float32([-1e9]))
        )
        return self.op("Trilu", f"{name}_full i1", f"{name}_mask", upper=1)

    def padding(self) -> str:
        """Write a mask from a second input of 0 and 1."""
        self.op("Unsqueeze", "attention axes12", "attention4")
        self.weights["axes12"] = I64([1, 2])
        self.op("Cast", "attention4", "attention_float", to=TensorProto.FLOAT)
        self.weights["one"] = np.float32(1)
        self.op("Sub", "one attention_float", "padded")
        return self.op("Mul", "padded low", "padding_mask")

    def model(self, inputs: dict[str, tuple[int, list[str]]], outputs: list[str]) -> onnx.ModelProto:
        """Give what has been written."""
        used = {name for made in self.nodes for name in made.input}
        weights = {name: array for name, array in self.weights.items() if name in used}
        return build(self.nodes, inputs, outputs, weights)


def gpt_like(layers: int = 2) -> onnx.ModelProto:
    """A decoder whose layers make a causal mask each."""
    made = Exported()
    x = made.embedded()
    for index in range(layers):
        x = made.layer(x, made.causal(x, f"l{index}"), f"l{index}")
    made.op("Relu", x, "y")
    return made.model({"ids": (TensorProto.INT64, ["n", "t"])}, ["y"])


def bert_like(layers: int = 2) -> onnx.ModelProto:
    """An encoder whose layers share a mask that is an input."""
    made = Exported()
    x, mask = made.embedded(), made.padding()
    for index in range(layers):
        x = made.layer(x, mask, f"l{index}", "rest")
    made.op("Relu", x, "y")
    shape = (TensorProto.INT64, ["n", "t"])
    return made.model({"ids": shape, "attention": shape}, ["y"])


def ids_of(count: int, length: int, seed: int = 0) -> np.ndarray:
    """Random words."""
    return np.random.default_rng(seed).integers(0, WORDS, (count, length))


def attention_of(count: int, length: int, seed: int = 0) -> np.ndarray:
    """Zeros and ones, the first word always there."""
    mask = np.random.default_rng(seed).integers(0, 2, (count, length))
    mask[:, :1] = 1
    return mask
