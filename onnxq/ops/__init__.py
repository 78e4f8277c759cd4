"""Operator families: one file a family, with its kernels, its quantized forms and its refusals."""

from __future__ import annotations

from .quantized import (
    conv_integer,
    dequantize_linear,
    dynamic_quantize_linear,
    mat_mul_integer,
    quantize_linear,
)

__all__ = ["conv_integer", "dequantize_linear", "dynamic_quantize_linear", "mat_mul_integer", "quantize_linear"]
