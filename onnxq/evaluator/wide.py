"""float64 in place of float32: what differs from processor to processor is then too small to decide anything.

BLAS and NumPy add in another order, and round functions another way, on every processor. In float32 that is the last
bit, 6e-8 of a number, which shows in ranges, second moments and codes of weights. In float64 it is 1e-16.

Some operators jump: where a float32 number is just a whole one, or two are equal, float64 may be 1e-16 beside it.
They read what is rounded to float32, which makes equal again what float32 would have made equal. So do operators of
quantized models, which are defined on float32, and those whose arithmetic is exact on every processor: of an error in
what they read, rounding leaves as much on average as there was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxq.ir import Model, Node, Value
from onnxq.ops.registry import Kernel

JUMPING = frozenset((
    "ArgMax", "ArgMin", "CastLike", "Ceil", "Equal", "Floor", "Greater", "GreaterOrEqual", "Hardmax", "IsInf", "IsNaN",
    "Less", "LessOrEqual", "Mod", "NonZero", "Range", "Round", "Sign", "TopK",
))  # fmt: skip
EXACT = frozenset(("Erf",))  # sums and products of single elements, one after the other
QUANTIZED = "onnxq.ops.quantized."  # modules of kernels that are defined on float32
FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)
KEPT_BYTES = 128 << 20  # of weights in float32, beyond which none of them is kept in float64


def widened(value: Any) -> Any:
    """Return float64 in place of a float32 array, or of those in a sequence; anything else as it is."""
    if isinstance(value, list):
        return [widened(item) for item in value]
    is_single = isinstance(value, np.ndarray | np.generic) and value.dtype == np.float32
    return value.astype(np.float64) if is_single else value


def narrowed(value: Any) -> Any:
    """Return float32 in place of a float64 array, or of those in a sequence; anything else as it is."""
    if isinstance(value, list):
        return [narrowed(item) for item in value]
    is_double = isinstance(value, np.ndarray) and value.dtype == np.float64
    return value.astype(np.float32) if is_double else value


def widened_constants(constants: Mapping[Value, Any], model: Model) -> dict[Value, Any]:
    """Return constants in float64, but for tables of which rows are taken and those of a model that would take much.

    The kernels in a run in float64 take those as they are.
    """
    much = model.weight_bytes > KEPT_BYTES

    def kept(value: Value) -> bool:
        return not much and not (value.uses and all(use.node.op_type == "Gather" for use in value.uses))

    return {value: widened(array) if kept(value) else array for value, array in constants.items()}


def reads_float32(node: Node, kernel: Kernel) -> bool:
    """Tell whether a node computes with float32 where other nodes compute with float64."""
    if kernel.__module__.startswith(QUANTIZED):
        return True
    if node.op_type == "Cast":
        return _target(node) not in FLOATS
    if node.op_type == "Gelu":
        return str(node.attribute("approximate", "none")) == "none"
    return not node.domain and (node.op_type in JUMPING or node.op_type in EXACT)


def wide_call(node: Node, kernel: Kernel, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the kernel of a node, its attributes bound, for a run in float64."""
    if node.op_type == "Cast" and not node.domain and _target(node) in FLOATS:
        return lambda x: widened(call(x)) if x.dtype.kind != "f" else x.astype(np.float64, copy=False)
    if node.op_type == "Gather":
        return lambda *inputs: widened(call(*inputs))
    if not reads_float32(node, kernel):
        return lambda *inputs, **bodies: _each(widened, call(*map(widened, inputs), **bodies))
    doubles = [value is not None and value.dtype == TensorProto.DOUBLE for value in node.inputs]

    def narrow(*inputs: Any) -> Any:
        given = (x if double else narrowed(x) for x, double in zip(inputs, doubles, strict=True))
        return _each(widened, call(*given))

    return narrow


def _each(function: Callable[[Any], Any], results: Any) -> Any:
    return tuple(map(function, results)) if isinstance(results, tuple) else function(results)


def _target(node: Node) -> int:
    """Give the element type that a Cast makes; before opset 6 it is a name."""
    to = node.attribute("to", TensorProto.UNDEFINED)
    return int(TensorProto.DataType.Value(to.upper())) if isinstance(to, str) else int(to)
