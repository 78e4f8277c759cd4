"""Quantized convolutions written out by hand, for what is done to them once a model is quantized."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from helpers import F, build, node
from onnx import TensorProto


class Convs:
    """A model of Q/DQ pairs around convolutions, grown node by node.

    Args:
        shape: Of its input `x`, `[batch, channels, …]`.
        zero: What stands for zero in all codes.

    """

    def __init__(self, *shape: int, zero: int = 7) -> None:
        self.shape = list(shape)
        self.random = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {"zero": np.uint8(zero), "one": F(0.02)}

    def quantize(self, name: str) -> str:
        """Put a pair behind a tensor."""
        self.nodes += [
            node("QuantizeLinear", f"{name} one zero", f"{name}_q"),
            node("DequantizeLinear", f"{name}_q one zero", f"{name}_d"),
        ]
        return f"{name}_d"

    def conv(self, read: str, name: str, *weight: int, bias: bool = True, **attributes: Any) -> str:
        """Add a Conv with a weight of this shape, and a pair behind it."""
        scale = self.random.uniform(0.005, 0.02, weight[0]).astype(F)
        self.weights |= {
            f"{name}_w": self.random.integers(-127, 128, weight).astype(np.int8),
            f"{name}_s": scale,
            f"{name}_z": np.zeros(weight[0], np.int8),
        }
        self.nodes.append(node("DequantizeLinear", f"{name}_w {name}_s {name}_z", f"{name}_f", axis=0))
        reads = f"{read} {name}_f"
        if bias:
            self.weights |= {
                f"{name}_b": self.random.integers(-500, 500, weight[0]).astype(np.int32),
                f"{name}_t": scale * F(0.02),
            }
            self.nodes.append(node("DequantizeLinear", f"{name}_b {name}_t", f"{name}_g", axis=0))
            reads += f" {name}_g"
        self.nodes.append(node("Conv", reads, name, **attributes))
        return self.quantize(name)

    def model(self, *outputs: str) -> onnx.ModelProto:
        """Finish; everything that is read is in the model already."""
        return build(self.nodes, {"x": self.shape}, dict.fromkeys(outputs, TensorProto.FLOAT), self.weights, 13)


def shapes_of(proto: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Shapes of the int8 weights by the name of what their Conv makes, `_wide` and the like taken off."""
    sizes = {tensor.name: tuple(tensor.dims) for tensor in proto.graph.initializer}
    made = {step.output[0]: step for step in proto.graph.node}
    convs = [step for step in proto.graph.node if step.op_type == "Conv" and step.input[1] in made]
    return {step.output[0].partition("_")[0]: sizes[made[step.input[1]].input[0]] for step in convs}
