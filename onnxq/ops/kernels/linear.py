"""MatMul, Gemm, Einsum: BLAS does the work. https://onnx.ai/onnx/operators/onnx__Gemm.html."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onnxq.ir.graph import MICROSOFT
from onnxq.ops.kernels.arrays import Array, in_float32, normalize_axis
from onnxq.ops.kernels.registry import kernel


@kernel("MatMul")
@in_float32
def matmul(a: Array, b: Array) -> Array:
    """Matrix product with NumPy's rules for vectors and stacks."""
    if a.dtype.kind == "f" and a.ndim > 2 and b.ndim == 2 and a.flags.c_contiguous:
        # One large product instead of a stack of small ones.
        product: Array = a.reshape(math.prod(a.shape[:-1]), a.shape[-1]) @ b
        return product.reshape(*a.shape[:-1], b.shape[-1])
    return np.asarray(np.matmul(a, b))


@kernel("Gemm", since=7)
@in_float32
def gemm(
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    """Alpha A' B' + beta C, where C broadcasts to [M, N] and A', B' are matrices or their transposes."""
    product = matmul(a.T if transA else a, b.T if transB else b)
    if alpha != 1.0:
        product = product * product.dtype.type(alpha)
    if c is None or beta == 0.0:
        return product
    product += c if beta == 1.0 else c * c.dtype.type(beta)
    return product


@kernel("Gemm", since=1)
def gemm_with_broadcast(
    a: Array,
    b: Array,
    c: Array,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    broadcast: int = 0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    """Gemm of operator sets 1 to 6, where C broadcasts only when `broadcast` is set."""
    return gemm(a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)


@kernel("FusedMatMul", domain=MICROSOFT)
@in_float32
def fused_matmul(
    a: Array,
    b: Array,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Array:
    """Alpha A' B', where rows may stand in front of the axes of a stack, and matrices may be transposed."""
    moved = (np.moveaxis(x, 0, -2) if before else x for x, before in ((a, transBatchA), (b, transBatchB)))
    factors = zip(moved, (transA, transB), strict=True)
    product = matmul(*(np.swapaxes(x, -1, -2) if turned and x.ndim > 1 else x for x, turned in factors))
    return product if alpha == 1.0 else product * product.dtype.type(alpha)


@kernel("Einsum", since=12)
@in_float32
def einsum(*inputs: Array, equation: str) -> Array:
    """Sum of products over named axes; NumPy's notation is the same."""
    return np.asarray(np.einsum(equation.replace(" ", ""), *inputs, optimize=len(inputs) > 1))


@kernel("Det", since=11)
@in_float32
def det(x: Array) -> Array:
    """Determinant of the matrices in the last two axes."""
    return np.asarray(np.linalg.det(x)).astype(x.dtype)


@kernel("CumSum", since=11)
@in_float32
def cum_sum(x: Array, axis: Array, *, exclusive: int = 0, reverse: int = 0) -> Array:
    """Running sum along an axis, forwards or backwards, with or without the element itself."""
    return _running(np.add, x, axis, exclusive, reverse)


@kernel("CumProd", since=26)
@in_float32
def cum_prod(x: Array, axis: Array, *, exclusive: int = 0, reverse: int = 0) -> Array:
    """Running product along an axis."""
    return _running(np.multiply, x, axis, exclusive, reverse)


def _running(function: Any, x: Array, axis: Array, exclusive: int, reverse: int) -> Array:
    along = normalize_axis(int(np.asarray(axis).reshape(())), x.ndim)
    turned = np.flip(x, along) if reverse else x
    result: Array = function.accumulate(turned, axis=along, dtype=x.dtype)
    if exclusive:
        shifted = np.full_like(result, function.identity)
        ahead = (slice(None),) * along
        shifted[(*ahead, slice(1, None))] = result[(*ahead, slice(0, -1))]
        result = shifted
    return np.flip(result, along) if reverse else result
