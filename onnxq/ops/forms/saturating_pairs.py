"""Pairs of weight codes whose products can leave 16 bits: what the 8-bit kernels of older x86 processors add up first.

Without VNNI, onnxruntime multiplies unsigned by signed bytes with VPMADDUBSW, which adds two neighbouring products into
a signed 16-bit number and saturates. The largest code of an activation is 255. So two weights of the same sign can do
that when their magnitudes add up to more than 128. 255 · 128 = 32640 fits, 255 · 129 does not. Sources: Intel's
instruction set reference; "When and why do I need to try U8U8" in onnxruntime's documentation of quantization; in its
mlas library, ConvSymKernelAvx2.S and the packing of QLinearConv (`ReorderFilter`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxq.ir import Node
from onnxq.ops.forms.scheme import Scheme

MOST = 128
SAFE_BITS = 7  # codes to ±63: no two of them exceed 126
SLAB = 1 << 15  # pairs at a time, which stay in the cache


def inner_rows(op_type: str, codes: np.ndarray, *, transposed: bool = False, group: int = 1) -> np.ndarray | None:
    """Return the codes of a weight in the order in which kernels sum over them.

    Args:
        op_type: Conv, or any operator that multiplies matrices.
        codes: int8 as the operator takes them: `[…, K, N]`, or for a Conv `[M, C / group, kernel]`.
        transposed: Whether a matrix is `[N, K]`.
        group: Groups of a Conv.

    Returns:
        int8 `[matrices, K, N]`; None for a depthwise Conv (one input and one output channel to a group), whose kernel
        adds in 32 bits, and for a vector.

    """
    if op_type.endswith("Conv") or op_type == "ConvInteger":
        if codes.ndim < 3 or (codes.shape[1] == 1 and len(codes) == group):
            return None
        # mlas reorders filters: kernel positions outside, input channels inside
        moved = np.moveaxis(codes, 1, -1)
        return moved.reshape(1, len(codes), -1).transpose(0, 2, 1)
    if codes.ndim < 2:
        return None
    matrices = codes.reshape(-1, *codes.shape[-2:])
    return matrices.transpose(0, 2, 1) if transposed else matrices


def saturating_pairs(rows: np.ndarray) -> int:
    """Count the neighbours along K, first and second, third and fourth, …, whose products can saturate.

    Args:
        rows: int8 `[matrices, K, N]`.

    """
    return sum(int((np.abs(sums) > MOST).sum()) for sums in _sums(rows))


def has_saturating_pair(rows: np.ndarray) -> bool:
    """Tell whether there are any such neighbours; it ends at the first that are found.

    Args:
        rows: int8 `[matrices, K, N]`.

    """
    return any(sums.max() > MOST or sums.min() < -MOST for sums in _sums(rows))


def _sums(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the sums of neighbours, a slab of them at a time.

    Only one of two weights of different sign counts at a time, and 255 · 128 fits.
    """
    pairs = rows.shape[1] // 2 if rows.shape[2] else 0
    step = max(SLAB // max(rows.shape[2], 1), 1)
    for matrix in rows:
        for start in range(0, pairs, step):
            block = matrix[2 * start : 2 * min(start + step, pairs)]
            yield np.add(block[0::2], block[1::2], dtype=np.int16)


def could_saturate(node: Node, codes: np.ndarray, scheme: Scheme) -> bool:
    """Whether products of a node with its weight could saturate if the weight is int8 and activations have 8 bits."""
    if node.op_type not in ("MatMul", "Gemm", "Conv", "LSTM"):
        return False
    # ConvInteger, which a scale for every row does without
    as_uint8 = (scheme.name, node.op_type) == ("dynamic-int8", "Conv") and scheme.activation_granularity != "row"
    if scheme.name not in ("static-int8", "dynamic-int8") or as_uint8 or scheme.bits > 8:
        return False
    transposed, group = bool(node.attribute("transB", 0)) or node.op_type == "LSTM", node.attribute("group", 1)
    rows = inner_rows(node.op_type, codes, transposed=transposed, group=group)
    return rows is not None and has_saturating_pair(rows)
