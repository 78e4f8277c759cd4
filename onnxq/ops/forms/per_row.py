"""Scales for every row, computed at run time: integer products whose rows do not know of one another.

A row is what one sum of the product goes over. For x `[..., rows, K]`, in operators of the standard:

    m = Max(ReduceMax(Abs(x), axis -1), least)           [..., rows, 1]
    q = QuantizeLinear(x · (127 / m), scale 1, zero point 128)
    y = Cast(MatMulInteger(q, w, 128)) · (w_scale / 127) · m

Values that are never negative need no zero point, and have 255 steps. Measured in onnxruntime 1.31.1, one thread. Both
factors stay in Muls of their own. Their product would be fused into MatMulIntegerToFloat, which has no scales for rows
and gives wrong results. The first alone may be fused, which saves 1 to 3 % of a transformer's time. A Mul by the
quotient takes less time than a Div. Max(ReduceMax, -ReduceMin) saves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from onnxq.ir import Patch, Value
from onnxq.ir.operator_traits import is_nonnegative
from onnxq.ops.forms.family import NodeView, NotQuantizable, QuantizedForm, Rewriter
from onnxq.ops.forms.per_row_scales import ranked, unfolded, widening_weight

SENTENCE = "a scale for every row, computed at run time, and MatMulInteger"
OPSET = 11  # as MatMulInteger and the nodes that quantize its input
LEAST = np.float32(2.0**-100)  # a row of zeros is divided by this; 127 / LEAST is finite


@dataclass(frozen=True)
class Rows:
    """An activation in 8 bit with a scale for every row.

    Attributes:
        codes: uint8, of the activation's shape.
        maxima: Largest magnitude of each row, 1 along the axis that a row goes over.
        zero: Zero point of the codes, None for 0.
        steps: So many steps of a code are as much as the largest magnitude.

    """

    codes: Value
    maxima: Value
    zero: Value | None
    steps: int


def row_form(data: Value) -> QuantizedForm:
    """Accept an activation of known rank; declines others.

    onnxruntime (1.31) takes an axis that is counted from behind for no axis at all where a tensor has no rows.
    """
    if data.shape is None:
        raise NotQuantizable("a scale for every row needs an input of known rank")
    return QuantizedForm(SENTENCE, opset=OPSET)


def reduce_max(patch: Rewriter | Patch, value: Value, axis: int, opset: int, hint: str) -> Value:
    """Return the largest element along an axis, which stays as 1."""
    if opset < 18:
        return patch.op("ReduceMax", value, hint=hint, axes=[axis], keepdims=1)
    axes = patch.constant(np.array([axis], np.int64), f"{hint}_axis")
    return patch.op("ReduceMax", value, axes, hint=hint, keepdims=1)


def magnitudes(patch: Rewriter, value: Value, axis: int, opset: int, *, unsigned: bool) -> Value:
    """Return the largest magnitude along an axis, which stays as 1."""
    name = value.name
    positive = value if unsigned else patch.op("Abs", value, hint=f"{name}_abs")
    return reduce_max(patch, positive, axis, opset, f"{name}_maximum")


def steps_of(*, unsigned: bool) -> int:
    """Steps of uint8 codes on the wider side of their zero point."""
    return 255 if unsigned else 127


def zero_point(patch: Rewriter, *, unsigned: bool) -> Value | None:
    """Return the zero point of the codes: 128, or none where it is 0."""
    return None if unsigned else patch.constant(np.array(128, np.uint8), "row_zero_point")


def factor_of(patch: Rewriter, maxima: Value, steps: int, name: str) -> Value:
    """Return what the elements of each row are multiplied by before they are rounded."""
    return patch.op("Div", patch.constant(np.array(steps, np.float32), "row_steps"), maxima, hint=f"{name}_factor")


def codes_of(patch: Rewriter, value: Value, factor: Value, zero: Value | None, name: str) -> Value:
    """Round rows to uint8 codes."""
    one = patch.constant(np.array(1, np.float32), "row_scale")
    offset = patch.constant(np.array(0, np.uint8), "row_zero") if zero is None else zero
    scaled = patch.op("Mul", value, factor, hint=f"{name}_divided")
    return patch.op("QuantizeLinear", scaled, one, offset, hint=f"{name}_quantized")


def at_least(patch: Rewriter, *maxima: Value, name: str) -> Value:
    """Return the largest of several maxima, and never zero."""
    return patch.op("Max", *maxima, patch.constant(np.array(LEAST), "row_least"), hint=f"{name}_range")


def quantized_rows(patch: Rewriter, value: Value, axis: int, opset: int) -> Rows:
    """Quantize an activation with a scale for every row, once for all that read it in this scope.

    Args:
        patch: What describes the nodes.
        value: float32, of two dimensions or more.
        axis: What a row goes over, -1 or -2.
        opset: Of the model.

    """
    unsigned = is_nonnegative(value)

    assert value.shape is not None
    counted = axis + len(value.shape)

    def make() -> tuple[Value, ...]:
        found = magnitudes(patch, value, counted, opset, unsigned=unsigned)
        maxima = at_least(patch, found, name=value.name)
        factor = factor_of(patch, maxima, steps_of(unsigned=unsigned), value.name)
        return codes_of(patch, value, factor, zero_point(patch, unsigned=unsigned), value.name), maxima

    codes, maxima = patch.once(value, f"rows of axis {axis}", make)
    return Rows(codes, maxima, zero_point(patch, unsigned=unsigned), steps_of(unsigned=unsigned))


def scaled(patch: Rewriter, total: Value, scale: Value, maxima: Value, name: str, *, fused: bool = False) -> Value:
    """Turn integer sums into floats: by the weight's scales over the steps, and by the maxima of the rows.

    Args:
        patch: What describes the nodes.
        total: int32 sums.
        scale: The weight's scales over the steps.
        maxima: Of the rows.
        name: What to name the result.
        fused: Multiply by the first as by two scales, of which that of the codes is 1: it is what onnxruntime makes
            MatMulIntegerToFloat of (see `unfolded`), which knows no weights of more than two dimensions.

    """
    if fused:
        unit = unfolded(patch, patch.constant(np.array(1, np.float32), "row_scale"), "row_unit")
        scale = patch.op("Mul", unit, scale, hint=f"{name}_scale")
    total = patch.op("Cast", total, to=int(TensorProto.FLOAT), hint=f"{name}_cast")
    return patch.op("Mul", patch.op("Mul", total, scale, hint=f"{name}_steps"), maxima, hint=name)


def step_scales(patch: Rewriter, scales: np.ndarray, steps: int, weight: Value) -> Value:
    """Store the weight's scales over the steps of a row."""
    values = (scales / np.float32(steps)).astype(np.float32)
    return patch.constant(values, f"{weight.name}_scale_by_{steps}", beside=weight)


def row_product(
    site: NodeView, patch: Rewriter, slot: int, codes: np.ndarray, scales: np.ndarray, *, transpose: bool
) -> Value:
    """Multiply an activation by a weight in integers, with a scale for every row of the activation.

    Args:
        site: A MatMul or Gemm.
        patch: What describes the nodes.
        slot: Which of the two factors is the weight.
        codes: int8, as the product reads them.
        scales: Of the weight, broadcasting against the codes.
        transpose: Whether the product reads the activation transposed.

    Returns:
        The product without bias; a row of zeros gives zeros.

    """
    name, data, weight = site.output.name, site.value(1 - slot), site.value(slot)
    along = -1 if (slot == 1) != transpose else -2
    rows = quantized_rows(patch, data, along, site.opset)
    x, maxima = rows.codes, rows.maxima
    if transpose:
        x = patch.op("Transpose", x, hint=f"{name}_transposed", perm=[1, 0])
        maxima = patch.op("Transpose", maxima, hint=f"{name}_maxima", perm=[1, 0])
    scale = step_scales(patch, ranked(scales, slot), rows.steps, weight)
    if slot == 1:
        w = patch.constant(codes, f"{weight.name}_quantized", beside=weight)
        inputs = [x, w] if rows.zero is None else [x, w, rows.zero]
    else:  # int8 × uint8 takes eight times as long
        w, w_zero = widening_weight(patch, codes, weight)
        inputs = [w, x, w_zero] if rows.zero is None else [w, x, w_zero, rows.zero]
    fused = slot == 1 and codes.ndim == 2
    return scaled(patch, patch.op("MatMulInteger", *inputs, hint=f"{name}_int32"), scale, maxima, name, fused=fused)
