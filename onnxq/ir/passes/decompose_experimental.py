"""Experimental operators of ONNX 1.0 to 1.4 become what newer operator sets have.

onnxruntime still runs them up to opset 9. CoreML's converter and WinMLTools wrote ImageScaler and Crop before detectors
and in style transfer. The version converter knows none of them, so that no opset above could be reached.

Formulas: onnx/defs/experiments of ONNX 1.4, and onnxruntime's kernels for Crop and ImageScaler.
Tests: `tests/ir/test_old_operators.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from onnxq.ir.graph import Node, Value
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import Patch
from onnxq.ir.schemas import BROADCASTING

SLICED_BY_INPUTS = 10  # from this opset on, Slice reads what it takes; before, attributes say it
TO_THE_END = np.iinfo(np.int32).max


class _Writer:
    """Adds the nodes of one patch, in the form that the model's opset has."""

    def __init__(self, patch: Patch, opset: int, name: str) -> None:
        self._patch, self._opset, self._name = patch, opset, name

    def op(self, op_type: str, *inputs: Value) -> Value:
        return self._patch.op(op_type, *inputs)

    def arithmetic(self, op_type: str, data: Value, operand: list[float]) -> Value:
        """Combine data with a number for all elements, or with one for each channel."""
        values = np.array(operand, np.float32)
        if self._opset < BROADCASTING:  # there, an attribute asks for it
            constant = self._constant(values, op_type)
            if len(operand) > 1:
                return self._patch.op(op_type, data, constant, broadcast=1, axis=1)
            return self._patch.op(op_type, data, constant, broadcast=1)
        shaped = values.reshape(-1, 1, 1) if len(operand) > 1 else values.reshape(())
        return self._patch.op(op_type, data, self._constant(shaped, op_type))

    def cut(self, data: Value, starts: list[int], ends: list[int], axes: list[int]) -> Value:
        """Slice data."""
        if self._opset < SLICED_BY_INPUTS:
            return self._patch.op("Slice", data, starts=starts, ends=ends, axes=axes)
        given = [self._constant(np.array(numbers, np.int64), "slice") for numbers in (starts, ends, axes)]
        return self._patch.op("Slice", data, *given)

    def _constant(self, values: np.ndarray, hint: str) -> Value:
        return self._patch.constant(values, f"{self._name}_{hint.lower()}")


def _affine(node: Node, data: Value, write: _Writer) -> Value:
    """Write y = alpha · x + beta."""
    scaled = write.arithmetic("Mul", data, [node.attribute("alpha", 1.0)])
    return write.arithmetic("Add", scaled, [node.attribute("beta", 0.0)])


def _crop(node: Node, data: Value, write: _Writer) -> Value:
    """Write the part of a map inside a border, or one of a given size behind its upper left corner."""
    left, top, right, bottom = (int(side) for side in node.attribute("border"))
    size = node.attribute("scale")
    if size is not None:
        return write.cut(data, [top, left], [top + int(size[0]), left + int(size[1])], [2, 3])
    ends = [-side if side else TO_THE_END for side in (bottom, right)]
    return write.cut(data, [top, left], ends, [2, 3])


def _image_scaler(node: Node, data: Value, write: _Writer) -> Value:
    """Write y = scale · x + bias, with a bias for each channel."""
    scaled = write.arithmetic("Mul", data, [node.attribute("scale", 1.0)])
    return write.arithmetic("Add", scaled, [float(bias) for bias in node.attribute("bias", [0.0])])


def _parametric_softplus(node: Node, data: Value, write: _Writer) -> Value:
    """Write y = alpha · ln(exp(beta · x) + 1)."""
    made = write.op("Softplus", write.arithmetic("Mul", data, [node.attribute("beta", 1.0)]))
    return write.arithmetic("Mul", made, [node.attribute("alpha", 1.0)])


def _scaled_tanh(node: Node, data: Value, write: _Writer) -> Value:
    """Write y = alpha · tanh(beta · x)."""
    made = write.op("Tanh", write.arithmetic("Mul", data, [node.attribute("beta", 1.0)]))
    return write.arithmetic("Mul", made, [node.attribute("alpha", 1.0)])


WRITTEN_AS: dict[str, Callable[[Node, Value, _Writer], Value]] = {
    "Affine": _affine,
    "Crop": _crop,
    "ImageScaler": _image_scaler,
    "ParametricSoftplus": _parametric_softplus,
    "ScaledTanh": _scaled_tanh,
}


@register_pass(order=90, note="rewrote {} experimental operator{s} as standard ones")
def decompose_experimental(model: Model) -> Iterator[Patch]:
    """Describe the nodes that compute the same."""
    for node in model.graph.walk():
        data, output = (node.inputs[0], node.outputs[0]) if node.inputs and node.outputs else (None, None)
        if node.op_type not in WRITTEN_AS or node.domain or data is None or output is None:
            continue
        if node.op_type == "Crop" and len(node.attribute("border", ())) != 4:
            continue  # onnxruntime refuses it, and says so when the model is run
        patch = Patch(node.graph, node, "it is no operator of newer opsets")
        patch.replace(output, WRITTEN_AS[node.op_type](node, data, _Writer(patch, model.opset, output.name)))
        yield patch
