"""Scales and weights in the forms that onnxruntime's integer products know.

Tests: `tests/ops/test_per_row.py`.
"""

from __future__ import annotations

import numpy as np

from onnxq.ir import Value
from onnxq.ops.forms.family import Rewriter


def ranked(scales: np.ndarray, slot: int) -> np.ndarray:
    """Reshape scales of a weight to the rank that kernels know: a vector for a matrix, all axes for a stack."""
    if scales.size == 1:
        return scales.reshape(())
    return scales.reshape(-1) if slot == 1 and scales.ndim == 2 else scales


def widening_weight(patch: Rewriter, codes: np.ndarray, weight: Value) -> tuple[Value, Value]:
    """Store int8 codes of a weight as uint8, which no kernel multiplies in 16 bits; gives them and their zero point."""
    shifted = (codes.astype(np.int16) + 128).astype(np.uint8)
    stored = patch.constant(shifted, f"{weight.name}_quantized", beside=weight)
    return stored, patch.constant(np.array(128, np.uint8), f"{weight.name}_zero_point", beside=weight)


def unfolded(patch: Rewriter, scale: Value, hint: str) -> Value:
    """Return a constant scale out of a DequantizeLinear of 1.

    onnxruntime computes a product of two constant scales when it loads the model. Then it does not find the Mul of two
    scales that makes MatMulInteger a MatMulIntegerToFloat. It leaves a DequantizeLinear alone.
    """
    return patch.op("DequantizeLinear", patch.constant(np.array(1, np.int32), "one"), scale, hint=hint)
