"""Gather or Slice from a constant float table: the table in 8 bit, dequantized behind the lookup.

A Slice takes the first rows of a table of positions, as many as there are tokens.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from onnxq.ir import Value
from onnxq.ir.graph import MICROSOFT
from onnxq.ops.forms.family import (
    MINIMUM_STORED_ELEMENTS,
    NodeView,
    NotQuantizable,
    QuantizedForm,
    Rewriter,
    register_plan,
    register_rewrite,
)
from onnxq.ops.forms.scheme import Scheme
from onnxq.ops.forms.stored_weights import block_arrays
from onnxq.ops.kernels.attention import MASKED

NOTABLE = 0.05  # share of the bytes of all weights from which on a table of positions is stored in 8 bits


@register_plan("Gather", when="weight-int8")
def plan_table(site: NodeView) -> QuantizedForm:
    """Accept a lookup of whole rows in a constant matrix."""
    if site.constant(0) is None:
        raise NotQuantizable("it does not look up a constant table")
    table = site.weight(0)
    if len(table.shape) != 2 or site.node.attribute("axis", 0) not in (0, -2):
        raise NotQuantizable("it does not look up rows of a matrix")
    if table.size < MINIMUM_STORED_ELEMENTS:
        raise NotQuantizable(f"table has only {table.size} elements")
    return QuantizedForm("table stored in 8 bit, rows dequantized after the lookup", opset=7)


@register_plan("Slice", when="weight-int8")
def plan_sliced_table(site: NodeView) -> QuantizedForm:
    """Accept the first rows of a constant table, whose last axis stays whole."""
    if site.constant(0) is None:
        raise NotQuantizable("it moves values from place to place")
    table, axes = site.weight(0), site.constant(3)
    last = len(table.shape) - 1
    if last < 1 or axes is None or any(int(axis) in (last, -1) for axis in axes.numpy().reshape(-1)):
        raise NotQuantizable("it does not take whole rows of a table")
    again = any(use.node.op_type == "Slice" for use in site.output.uses)
    if again or table.shape[-1] == table.shape[-2]:  # of tokens by tokens, which may hide them by -1e9, too
        raise NotQuantizable("its table may be a mask")
    if any(use.node.op_type != "Slice" for use in site.value(0).uses):
        raise NotQuantizable("others read its table in float")
    if table.size < MINIMUM_STORED_ELEMENTS:
        raise NotQuantizable(f"table has only {table.size} elements")
    weights = [one.constant.nbytes for one in site.node.graph.initializers.values() if one.constant is not None]
    if table.nbytes < NOTABLE * sum(weights):
        raise NotQuantizable("its table takes a small share of all weights, and its error is in everything behind")
    if not np.abs(table.numpy()).max() < MASKED:  # nor is NaN
        raise NotQuantizable("its table is a mask")
    return QuantizedForm("table stored in 8 bit, rows dequantized after the Slice", opset=10)


@register_rewrite("Slice", when="weight-int8")
def rewrite_sliced_table(site: NodeView, patch: Rewriter) -> None:
    """Slice codes, Cast, and Mul by a scale of each column."""
    name, table = site.output.name, site.value(0)
    codes, scales = patch.codes(table, reduce=tuple(range(len(table.elements.shape) - 1)), scheme=site.scheme)
    stored = patch.constant(codes, f"{table.name}_quantized", beside=table)
    scale = patch.constant(scales.reshape(-1), f"{table.name}_scale", beside=table)
    rows = patch.op("Slice", stored, *site.node.inputs[1:], hint=f"{name}_quantized")
    cast = patch.op("Cast", rows, to=int(TensorProto.FLOAT), hint=f"{name}_cast")
    patch.replace(site.output, patch.op("Mul", cast, scale, hint=name))


@register_rewrite("Gather", when="weight-int8")
def rewrite_table(site: NodeView, patch: Rewriter) -> None:
    """Look up codes, Cast, and Mul by a scale of each row or of each column, whichever rounds the table less.

    A table that a MatMulNBits multiplies by is stored once, in the blocks of that.
    """
    if (tied := patch.tied_product(site.value(0))) is not None and site.value(1).shape is not None:
        _look_up_blocks(site, patch, *tied)
        return
    name, table, indices = site.output.name, site.value(0), site.value(1)
    errors = [patch.rounding_error(table, reduce=(axis,), scheme=site.scheme) for axis in (0, 1)]
    by_row = errors[1] < errors[0] and table.elements.shape[0] > 1
    codes, scales = patch.codes(table, reduce=(int(by_row),), scheme=site.scheme)
    stored = patch.constant(codes, f"{table.name}_quantized", beside=table)
    scale = patch.constant(scales if by_row else scales.reshape(-1), f"{table.name}_scale", beside=table)
    rows = patch.op("Gather", stored, indices, hint=f"{name}_quantized", axis=0)
    if by_row:
        scale = patch.op("Gather", scale, indices, hint=f"{name}_scale", axis=0)
    patch.replace(
        site.output,
        patch.op("Mul", patch.op("Cast", rows, to=int(TensorProto.FLOAT), hint=f"{name}_cast"), scale, hint=name),
    )


def _look_up_blocks(site: NodeView, patch: Rewriter, weight: Value, axis: int, scheme: Scheme) -> None:
    """Look rows up in the blocks of a product, and join the blocks of each row."""
    name, indices = site.output.name, site.value(1)
    packed, scales, zeros = (
        patch.constant(array, f"{weight.name}_{what}", beside=weight)
        for what, array in block_arrays(patch, weight, axis, scheme).items()
    )
    count = len(site.weight(0).shape) + 1  # axes of the table with one for blocks
    wide = [
        patch.op(
            "Reshape", value, patch.constant(np.array([0, 0, 1], np.int64), f"{name}_shape"), hint=f"{name}_{what}"
        )
        for what, value in (("scale", scales), ("zero_point", zeros))
    ]
    attributes = {"bits": 8, "block_size": scheme.block_size, "gather_axis": 0, "quantize_axis": count - 1}
    inputs = [packed, indices, *wide]
    hint = f"{name}_blocks"
    rows = patch.node("GatherBlockQuantized", inputs, outputs=[hint], domain=MICROSOFT, **attributes)[0]
    width = site.weight(0).shape[1]  # not -1, which could be any number if there are no rows
    shape = np.array([0] * len(indices.shape or ()) + [width], np.int64)
    patch.replace(site.output, patch.op("Reshape", rows, patch.constant(shape, f"{name}_joined"), hint=name))
