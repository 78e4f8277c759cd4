"""A NumPy model of dynamic integer products, independent of the code under test, and the cases it is held against."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from helpers import F, build, every_node, floats, node, quantize_in_memory
from saturating_product import product_here

FULL = {"target": "cpu-vnni"}  # weights of all 8 bits, whose products may saturate on other processors
Product = Callable[[np.ndarray, int, np.ndarray], np.ndarray]


def quantize_activation(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """DynamicQuantizeLinear: codes, scale, zero point."""
    low, high = min(x.min(), F(0)), max(x.max(), F(0))
    scale = F((high - low) / F(255)) if high > low else F(1)
    zero = int(np.rint(np.clip(-low / scale, 0, 255)))
    return np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.int64), scale, zero


def quantize_matrix(w: np.ndarray, axis: int | tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric int8 codes with one scale for each index that is left after `axis`."""
    most = np.abs(w).max(axis=axis, keepdims=True)
    scale = np.where(most == 0, F(1), (most / F(127)).astype(F)).astype(F)
    return np.rint(w / scale).astype(np.int64), scale


def dynamic_product(
    a: np.ndarray, b: np.ndarray, weight: int, alpha: float = 1.0, product: Product = product_here
) -> np.ndarray:
    """What the integer form of `alpha * a @ b` gives, with input `weight` the constant one.

    Of int8 times uint8, as with the constant on the left, all kernels are exact.
    """
    w, w_scale = quantize_matrix((a, b)[weight], -1 if weight == 0 else -2)
    x, x_scale, zero = quantize_activation((a, b)[1 - weight])
    w_scale = w_scale * F(alpha)
    if weight == 0:
        total = (w @ (x - zero)).astype(F)
        return total * w_scale * x_scale if w_scale.size > 1 else total * (x_scale * w_scale)
    return product(x, zero, w).astype(F) * (x_scale * w_scale)


def exact_product(codes: np.ndarray, zero: int, weights: np.ndarray) -> np.ndarray:
    """(codes - zero) @ weights."""
    return (codes - zero) @ weights


def dynamic(proto: onnx.ModelProto):
    made = quantize_in_memory(proto, **FULL)
    assert {n.domain for n in every_node(made.proto.graph)} <= {"", "ai.onnx"}, "standard operators only"
    assert {w.dtype for w in made.weights.values() if w.size > 64} <= {np.dtype(np.int8), np.dtype(np.uint8)}
    return made


SHAPES = {
    "matrix": ([5, 6], [6, 7]),
    "row": ([1, 6], [6, 7]),
    "one_column": ([5, 6], [6, 1]),
    "3d": ([2, 5, 6], [6, 7]),
    "4d": ([2, 3, 5, 6], [6, 7]),
    "batched": ([3, 5, 6], [3, 6, 7]),
    "broadcast": ([5, 6], [3, 6, 7]),
    "broadcast_batches": ([2, 1, 5, 6], [3, 6, 7]),
    "batch_of_one": ([5, 6], [1, 6, 7]),
}

M, K, N = 5, 6, 7
BIASES = {
    "absent": None,
    "[N]": [N],
    "[1,N]": [1, N],
    "[M,N]": [M, N],
    "[M,1]": [M, 1],
    "[1]": [1],
    "scalar": [],
}
# Name and shape of a bias, whether it is computed, and its factor. Without a bias the others say nothing
BIASED = [
    (kind, shape, computed, beta)
    for kind, shape in BIASES.items()
    for computed in (False, True)
    for beta in (0.0, 0.5, 1.0)
    if shape is not None or (not computed and beta)
]


def gemm(weight: int, trans_a: int, trans_b: int, bias: np.ndarray | None, computed: bool, **scalars: float):
    """A Gemm, its feeds and its factors as the product reads them."""
    a, b = floats(M, K, seed=1), floats(K, N, seed=2)
    stored = [a.T.copy() if trans_a else a, b.T.copy() if trans_b else b]
    inputs, weights = {"x": list(stored[1 - weight].shape)}, {"w": stored[weight]}
    names = "x w" if weight == 1 else "w x"
    feeds = {"x": stored[1 - weight]}
    if bias is not None:
        names += " c"
        if computed:
            inputs["c"], feeds["c"] = list(bias.shape), bias
        else:
            weights["c"] = bias
    proto = build([node("Gemm", names, "y", transA=trans_a, transB=trans_b, **scalars)], inputs, ["y"], weights)
    return proto, feeds, a, b
