"""The quantized operators of ai.onnx and com.microsoft as NumPy functions, to the bit."""

from __future__ import annotations

from .convolution import conv_integer
from .dynamic import dynamic_quantize_linear
from .integer import mat_mul_integer
from .linear import dequantize_linear, quantize_linear

__all__ = ["conv_integer", "dequantize_linear", "dynamic_quantize_linear", "mat_mul_integer", "quantize_linear"]
