"""Sums and functions in float64, rounded once to 18 bits, so that every processor gives the same numbers.

BLAS and NumPy add in another order on each processor, and compute exp or tanh in another way. The last bits of float32
differ, by 6e-8 of a number. In float64 the difference is 1e-16. Rounded to float32 it would show in one of some 10^8
numbers, as many as a calibration computes, and spread from there to everything behind. Rounded to 18 bits it shows in
one of 10^10. They hold 4e-6 of a number, which codes of 8 bits do not show.

Operators with a single rounding, as a sum of two numbers or a quotient, are the same everywhere in float32. So are
operators that move, compare or count, and those of quantized models, which are defined on float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from onnxq.ir import Model, Node, Value
from onnxq.ir.operator_traits import Trait, operators_with
from onnxq.ops.kernels.conv import convolve, is_depthwise, store_sums
from onnxq.ops.kernels.registry import Kernel

MOVING = operators_with(Trait.MOVES) | {
    "Cast", "CastLike", "Compress", "Concat", "Constant", "ConstantOfShape", "Dropout", "EyeLike", "NonZero", "OneHot",
    "Pad", "Scatter", "Shape", "Size", "Trilu", "Where",
}  # fmt: skip
COMPARING = frozenset((
    "ArgMax", "ArgMin", "Equal", "GlobalMaxPool", "Greater", "GreaterOrEqual", "Hardmax", "IsInf", "IsNaN", "Less",
    "LessOrEqual", "Max", "MaxPool", "Min", "ReduceMax", "ReduceMin", "Relu", "Sign", "TopK",
))  # fmt: skip
# Each step rounds one operation of single elements, in an order that is written down in the kernel
ROUNDED_ONCE = frozenset((
    "Abs", "Add", "AveragePool", "BatchNormalization", "Ceil", "Clip", "Div", "Erf", "Floor", "HardSigmoid",
    "HardSwish", "LeakyRelu", "Mean", "Mod", "Mul", "Neg", "PRelu", "Range", "Reciprocal", "Resize", "Round",
    "ScatterElements", "ScatterND", "Shrink", "Softsign", "Sqrt", "Sub", "Sum", "ThresholdedRelu", "Upsample",
))  # fmt: skip
THE_SAME = MOVING | COMPARING | ROUNDED_ONCE
QUANTIZED = "onnxq.ops.quantized."  # modules of kernels that are defined on float32
LEFT_OUT = 1 << 6  # units of float32's last place that a result is rounded to
KEPT_BYTES = 128 << 20  # of weights, beyond which none of them is kept in float64 as well


def widened(value: Any) -> Any:
    """Return float64 in place of a float32 array, or of those in a sequence; anything else as it is."""
    return _as(np.float32, np.float64, value)


def narrowed(value: Any) -> Any:
    """Return float32 in place of a float64 array, or of those in a sequence; anything else as it is.

    The mantissa is rounded to 18 bits; infinity and NaN stay.
    """
    if isinstance(value, list):
        return [narrowed(item) for item in value]
    made = _as(np.float64, np.float32, value)
    if made is value or not isinstance(made, np.ndarray):
        return made
    _round_bits(made)
    return made


def _round_bits(made: np.ndarray) -> None:
    """Round the mantissas of float32 numbers to 18 bits, in place."""
    bits = made.view(np.int32)
    bits += LEFT_OUT // 2
    bits &= -LEFT_OUT


def _as(old: type, new: type, value: Any) -> Any:
    if isinstance(value, list):
        return [_as(old, new, item) for item in value]
    return value.astype(new) if isinstance(value, np.ndarray | np.generic) and value.dtype == old else value


def is_the_same(node: Node, kernel: Kernel) -> bool:
    """Tell whether a node gives the same float32 on every processor as it is."""
    if node.bodies or kernel.__module__.startswith(QUANTIZED):
        return True
    if node.op_type == "Gelu":
        return str(node.attribute("approximate", "none")) == "none"
    return not node.domain and node.op_type in THE_SAME


def keeps_widened(model: Model) -> bool:
    """Return whether the weights of a model are few enough to be kept in float64 as well."""
    return model.weight_bytes <= KEPT_BYTES


def wide_call(node: Node, call: Callable[..., Any], constants: Mapping[Value, Any]) -> Callable[..., Any]:
    """Return the kernel of a node, its attributes bound, for a run in float64; `constants` are converted once."""
    kept = {
        slot: widened(constants[value])
        for slot, value in enumerate(node.inputs)
        if value is not None and value in constants
    }
    conv: Callable[..., Any] | None = None
    if node.operator == "Conv":
        conv = partial(convolve, store=_store, **node.attributes())
    group = int(node.attribute("group", 1)) if conv is not None else 1

    def wide(slot: int, x: Any) -> Any:
        return kept[slot] if slot in kept else widened(x)

    def run(*inputs: Any) -> Any:
        single = any(_is_single(x) for x in inputs)
        if conv is not None and single and all(x is None or _is_single(x) for x in inputs):
            if group > 1 and is_depthwise(inputs[1].shape):  # a sum of shifted products, each rounded once
                return call(*inputs)
            # X is made wide, and sums are rounded, in parts that stay in the cache
            return conv(inputs[0], *(wide(slot, x) for slot, x in enumerate(inputs[1:], 1)))
        results = call(*(wide(slot, x) for slot, x in enumerate(inputs)))
        if not single:  # a model of float64
            return results
        return tuple(map(narrowed, results)) if isinstance(results, tuple) else narrowed(results)

    return run


def _store(sums: np.ndarray, bias: np.ndarray | None, target: np.ndarray) -> None:
    """Write sums of a Conv in float64 into a part of its result, float32, as `narrowed` does."""
    store_sums(sums, bias, target)
    _round_bits(target)


def _is_single(value: Any) -> bool:
    if isinstance(value, list):
        return any(_is_single(item) for item in value)
    return isinstance(value, np.ndarray | np.generic) and value.dtype == np.float32
