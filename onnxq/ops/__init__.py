"""Operator families: one file a family, with its kernels, its quantized forms and its refusals.

`ops.kernels` and `ops.quantized` compute, `ops.forms` plans and rewrites. `planning` decides which node gets which
form.
"""

from __future__ import annotations

from onnxq.ops.quantized import (
    conv_integer,
    dequantize_linear,
    dynamic_quantize_linear,
    dynamic_quantize_lstm,
    dynamic_quantize_mat_mul,
    gather_block_quantized,
    mat_mul_integer,
    mat_mul_integer_to_float,
    mat_mul_n_bits,
    microsoft_dequantize_linear,
    microsoft_quantize_linear,
    q_gemm,
    q_linear_add,
    q_linear_average_pool,
    q_linear_concat,
    q_linear_conv,
    q_linear_global_average_pool,
    q_linear_leaky_relu,
    q_linear_mat_mul,
    q_linear_mul,
    q_linear_sigmoid,
    q_linear_softmax,
    q_linear_where,
    quantize_linear,
)

__all__ = [
    "conv_integer",
    "dequantize_linear",
    "dynamic_quantize_linear",
    "dynamic_quantize_lstm",
    "dynamic_quantize_mat_mul",
    "gather_block_quantized",
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
