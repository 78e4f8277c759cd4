"""BatchNormalization behind a Conv, ConvTranspose or Gemm becomes part of its weight and bias.

Tests: `tests/ir/test_passes.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx

from onnxq.ir.graph import Node, Value
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import Patch
from onnxq.ir.tensor import ArrayTensor

FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16)
FIRST_INFERENCE_OPSET = 7  # before, training is the default; source: onnx operator specification, BatchNormalization-6
# (weight, scale for each output channel, node) → weight whose outputs are scaled, or None where it does not fit
Scale = Callable[[np.ndarray, np.ndarray, Node], np.ndarray | None]


@register_pass(order=140, note="folded {} BatchNormalization into the layer before")
def fold_batchnorm(model: Model) -> Iterator[Patch]:
    """Describe the folds.

    y = γ(Wx + b − μ)/√(σ² + ε) + β is a convolution with weight W·s and bias (b − μ)s + β, where s = γ/√(σ² + ε). The
    arithmetic is float64; what is stored has the weight's own type.
    """
    if model.opset < FIRST_INFERENCE_OPSET:
        return
    for graph in model.graph.graphs():
        for node in graph.nodes:
            if node.op_type == "BatchNormalization" and not node.domain:
                with np.errstate(all="ignore"):  # what is not finite in the end is not folded
                    patch = _fold(node)
                if patch is not None:
                    yield patch


def _fold(norm: Node) -> Patch | None:
    source = norm.inputs[0] if len(norm.inputs) == 5 else None
    result = norm.outputs[0]
    if source is None or result is None or source.producer is None:
        return None
    before = source.producer
    scale_of = SCALES.get(before.op_type) if not before.domain and before.graph is norm.graph else None
    factors = scale_and_shift(norm)
    if scale_of is None or factors is None or source.is_output or len(source.uses) != 1 or any(norm.outputs[1:]):
        return None
    weight = before.inputs[1]
    stored = weight.constant if weight is not None else None
    if weight is None or stored is None or stored.dtype not in FLOATS:
        return None
    scale, shift = factors
    bias = _bias(before, len(scale))
    if bias is None:
        return None
    folded = scale_of(stored.numpy().astype(np.float64), scale, before)
    if folded is None:
        return None
    new_weight, new_bias = folded.astype(stored.numpy().dtype), (bias * scale + shift).astype(stored.numpy().dtype)
    if not (np.isfinite(new_weight).all() and np.isfinite(new_bias).all()):
        return None
    patch = Patch(norm.graph, norm, "BatchNormalization is part of the weights before it")
    patch.rewire(before, 1, patch.constant(ArrayTensor(new_weight), f"{weight.name}_folded"))
    patch.rewire(before, 2, patch.constant(ArrayTensor(new_bias), f"{weight.name}_folded_bias"))
    patch.replace(result, source)
    return patch


def scale_and_shift(norm: Node) -> tuple[np.ndarray, np.ndarray] | None:
    """Return s = γ/√(σ² + ε) and β − μs in float64, or None for training forms and parameters that are no constants."""
    if norm.attribute("training_mode", 0) or not norm.attribute("spatial", 1):
        return None
    constants = [_constant(value) for value in norm.inputs[1:]]
    if any(c is None or c.ndim != 1 for c in constants):
        return None
    gamma, beta, mean, variance = (c.astype(np.float64) for c in constants if c is not None)
    scale = gamma / np.sqrt(variance + norm.attribute("epsilon", 1e-5))
    return scale, beta - mean * scale


def _bias(node: Node, channels: int) -> np.ndarray | None:
    """The bias before the fold, one element for each channel, in float64; None where it is no such constant."""
    if node.op_type == "Gemm" and node.attribute("beta", 1.0) != 1.0:
        return None
    if node.input(2) is None:
        return np.zeros(channels)
    bias = _constant(node.input(2))
    if bias is None or bias.size not in (1, channels) or (bias.ndim > 1 and bias.shape[-1] != bias.size):
        return None
    return np.broadcast_to(bias.reshape(-1).astype(np.float64), (channels,))


def _constant(value: Value | None) -> np.ndarray | None:
    return None if value is None or value.constant is None else value.constant.numpy()


def _conv(weight: np.ndarray, scale: np.ndarray, node: Node) -> Any:
    """Weight [channels, inputs / group, *kernel]."""
    if weight.ndim < 3 or len(weight) != len(scale):
        return None
    return weight * scale.reshape(-1, *[1] * (weight.ndim - 1))


def _conv_transpose(weight: np.ndarray, scale: np.ndarray, node: Node) -> Any:
    """Weight [inputs, channels / group, *kernel]: input i belongs to group i // (inputs / group)."""
    group = node.attribute("group", 1)
    if weight.ndim < 3 or weight.shape[1] * group != len(scale) or len(weight) % group:
        return None
    spread = np.repeat(scale.reshape(group, -1), len(weight) // group, axis=0)
    return weight * spread.reshape(*weight.shape[:2], *[1] * (weight.ndim - 2))


def _gemm(weight: np.ndarray, scale: np.ndarray, node: Node) -> Any:
    """Weight [inputs, channels], or turned over with transB."""
    turned = node.attribute("transB", 0)
    if weight.ndim != 2 or weight.shape[0 if turned else 1] != len(scale):
        return None
    return weight * (scale[:, None] if turned else scale)


SCALES: dict[str, Scale] = {"Conv": _conv, "ConvTranspose": _conv_transpose, "Gemm": _gemm}
