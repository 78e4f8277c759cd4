"""Integer products by brute force, as x86 processors without VNNI compute them; independent of the code under test."""

from __future__ import annotations

import itertools

import numpy as np

from onnxq.targets.host import host_saturates

SMALLEST, LARGEST = -(1 << 15), (1 << 15) - 1


def saturating_product(codes: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Unsigned [..., M, K] times signed [..., K, N]: pairs of neighbours along K are added in 16 bits, pairs in 64."""
    a, b = np.asarray(codes, np.int64), np.asarray(weights, np.int64)
    total = a[..., :0] @ b[..., :0, :]
    for k in range(0, b.shape[-2], 2):
        total += np.clip(a[..., k : k + 2] @ b[..., k : k + 2, :], SMALLEST, LARGEST)
    return total


def product_here(codes: np.ndarray, zero: int, weights: np.ndarray) -> np.ndarray:
    """(codes - zero) @ weights as onnxruntime computes it on this processor, of uint8 and int8."""
    a, b = np.asarray(codes, np.int64), np.asarray(weights, np.int64)
    if not host_saturates():
        return (a - zero) @ b
    return saturating_product(a, b) - zero * b.sum(axis=-2, keepdims=True)


def with_zero_points(codes: np.ndarray, weights: np.ndarray, raw: np.ndarray, zero: int, weight_zero=0) -> np.ndarray:
    """The product of what is left after zero points are subtracted, from the product of the codes themselves."""
    a, b = np.asarray(codes, np.int64), np.asarray(weights, np.int64)
    weight_zero = np.asarray(weight_zero, np.int64)
    return raw - a.sum(1)[:, None] * weight_zero - zero * b.sum(0) + a.shape[1] * zero * weight_zero


def columns(x: np.ndarray, zero: int, kernel: tuple[int, ...], attributes: dict) -> np.ndarray:
    """What each output of a convolution of one sample reads: [group, outputs, C / group, kernel positions]."""
    rank, group = len(kernel), attributes["group"]
    pads, strides, dilations = (attributes[name] for name in ("pads", "strides", "dilations"))
    padded = np.pad(x, [(0, 0), *zip(pads[:rank], pads[rank:], strict=True)], constant_values=zero)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    counts = [(n - r) // s + 1 for n, r, s in zip(padded.shape[1:], reach, strides, strict=True)]
    read = []
    for place in itertools.product(*map(range, counts)):
        starts = [p * s for p, s in zip(place, strides, strict=True)]
        window = [slice(a, a + r, d) for a, r, d in zip(starts, reach, dilations, strict=True)]
        read.append(padded[(slice(None), *window)].reshape(group, len(x) // group, -1))
    return np.stack(read, axis=1)


def saturating_convolution(x, w, zero: int, weight_zero: int, attributes: dict, *, filters_left: bool) -> np.ndarray:
    """Convolution [N, C, …] with [M, C / group, …] as a product, flat outputs: [N, M, outputs].

    Args:
        x, w: Codes.
        zero, weight_zero: Their zero points; padding counts as `zero`.
        attributes: group, pads, strides and dilations.
        filters_left: Whether the filters are the unsigned left matrix, with channels outside and kernel positions
            inside along K, or the signed right one, with channels inside.

    """
    group = attributes["group"]
    filters = w.reshape(group, len(w) // group, w.shape[1], -1)
    results = []
    for sample in x:
        read, each = columns(sample, zero, w.shape[2:], attributes), filters
        if not filters_left:
            read, each = read.swapaxes(2, 3), filters.swapaxes(2, 3)
        found = []
        for left, right in zip(read.reshape(*read.shape[:2], -1), each.reshape(*each.shape[:2], -1), strict=True):
            if filters_left:
                raw = saturating_product(right, left.T)
                found.append(with_zero_points(right, left.T, raw, weight_zero, zero))
            else:
                raw = saturating_product(left, right.T)
                found.append(with_zero_points(left, right.T, raw, zero, weight_zero).T)
        results.append(np.concatenate(found))
    return np.stack(results)
