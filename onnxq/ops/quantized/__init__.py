"""The quantized operators of ai.onnx and com.microsoft as NumPy functions, to the bit.

Float operators are in `ops.kernels`.
"""

from __future__ import annotations

from onnxq.ops.quantized.contrib_elementwise import (
    q_linear_add,
    q_linear_concat,
    q_linear_leaky_relu,
    q_linear_mul,
    q_linear_sigmoid,
    q_linear_softmax,
    q_linear_where,
)
from onnxq.ops.quantized.contrib_gather import gather_block_quantized
from onnxq.ops.quantized.contrib_linear import microsoft_dequantize_linear, microsoft_quantize_linear
from onnxq.ops.quantized.contrib_lstm import dynamic_quantize_lstm
from onnxq.ops.quantized.contrib_matmul import dynamic_quantize_mat_mul, mat_mul_integer_to_float, q_gemm
from onnxq.ops.quantized.contrib_nbits import mat_mul_n_bits
from onnxq.ops.quantized.contrib_pool import q_linear_average_pool, q_linear_global_average_pool
from onnxq.ops.quantized.convolution import conv_integer
from onnxq.ops.quantized.dynamic import dynamic_quantize_linear
from onnxq.ops.quantized.integer import mat_mul_integer
from onnxq.ops.quantized.linear import dequantize_linear, quantize_linear
from onnxq.ops.quantized.qlinear import q_linear_conv, q_linear_mat_mul
from onnxq.ops.quantized.saturating import Arithmetic, host_arithmetic, integer_arithmetic, losses_noted

__all__ = [
    "Arithmetic",
    "conv_integer",
    "dequantize_linear",
    "dynamic_quantize_linear",
    "dynamic_quantize_lstm",
    "dynamic_quantize_mat_mul",
    "gather_block_quantized",
    "host_arithmetic",
    "integer_arithmetic",
    "losses_noted",
    "mat_mul_integer",
    "mat_mul_integer_to_float",
    "mat_mul_n_bits",
    "microsoft_dequantize_linear",
    "microsoft_quantize_linear",
    "q_gemm",
    "q_linear_add",
    "q_linear_average_pool",
    "q_linear_concat",
    "q_linear_conv",
    "q_linear_global_average_pool",
    "q_linear_leaky_relu",
    "q_linear_mat_mul",
    "q_linear_mul",
    "q_linear_sigmoid",
    "q_linear_softmax",
    "q_linear_where",
    "quantize_linear",
]
