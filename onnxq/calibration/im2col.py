"""Unfold the input of a MatMul, Gemm or Conv into rows (im2col), one for each output position.

A layer with a weight `W [m, n]` computes `x Wᵀ` for every row `x [n]`. For MatMul and Gemm a row is a slice along the
contracted axis. For Conv it is a window, unfolded in the order of the weight: input channel, then kernel position.

Tests: `tests/calibration/test_second_moments.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from onnxq.calibration.thinning import spread_places
from onnxq.ir import Node, Tensor
from onnxq.ir.shape_inference.padding import auto_pad_of, pads_of
from onnxq.ops.kernels.windows import lay_windows

PIECE = 1 << 22  # elements that are unfolded at a time: 16 MB


@dataclass(frozen=True)
class Unfolding:
    """How a layer reads its input. Layers that read the same value in the same way share what is measured of it.

    Attributes:
        columns: Elements of a row over all groups: K, or channels × kernel positions.
        groups: Groups of a Conv; each has `columns / groups` of them.
        axis: The contracted axis of a product, -1 or -2; 1 for a Conv.
        kernel, strides, dilations, pads, auto_pad: As the attributes of Conv; empty for products.

    """

    columns: int
    groups: int = 1
    axis: int = -1
    kernel: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    auto_pad: str = "NOTSET"

    @property
    def n(self) -> int:
        """Elements that one output channel reads."""
        return self.columns // self.groups

    @property
    def positions(self) -> int:
        """Kernel positions: consecutive columns that belong to one input channel."""
        return math.prod(self.kernel)

    def rows(self, values: np.ndarray, most: int) -> Iterator[np.ndarray]:
        """Yield rows of an input, some items of the batch at a time.

        An item is an index along the batch axis: axis 0, or for a matrix every row of it. An item with more than `most`
        rows gives `most` of them. They are spread evenly but in no regular step, so that no column of a picture is
        missed.

        Args:
            values: What the layer reads, float32.
            most: Rows to take of an item at most; for a matrix, of all its rows together.

        Yields:
            float32 arrays `[items, rows of an item, columns]`.

        """
        if self.kernel:
            yield from self._windows(values, most)
            return
        values = np.moveaxis(values, self.axis, -1) if values.ndim > 1 else values[None]
        if values.ndim == 2:
            values = values[_spread(len(values), most), None]
        items = values.reshape(len(values), -1, values.shape[-1]) if values.size else values[:0].reshape(0, 0, 1)
        step = max(PIECE // max(min(items.shape[1], most) * self.columns, 1), 1)
        for start in range(0, len(items), step):
            yield items[start : start + step, _spread(items.shape[1], most)]

    def _windows(self, values: np.ndarray, most: int) -> Iterator[np.ndarray]:
        indices, outside = _window_indices(self, values.shape[2:], most)
        taken = indices.shape[1]
        pictures = values.reshape(*values.shape[:2], -1)
        step = max(PIECE // max(taken * self.columns, 1), 1)
        for start in range(0, len(pictures) if taken else 0, step):
            picked = np.take(pictures[start : start + step], indices, axis=2)  # [items, channels, positions, rows]
            if outside is not None:
                picked[:, :, outside] = 0
            yield picked.reshape(len(picked), self.columns, taken).transpose(0, 2, 1)


def unfolding_of(node: Node) -> tuple[int, Unfolding] | None:
    """Tell how a layer reads its activation.

    Args:
        node: Any node.

    Returns:
        The input slot of the activation and the way it is read; None where the node is no MatMul, Gemm or Conv with
        one constant matrix or kernel.

    """
    if node.domain or node.op_type not in ("MatMul", "Gemm", "Conv") or len(node.inputs) < 2:
        return None
    left, right = node.constant(0), node.constant(1)
    if node.op_type == "Conv":
        return None if right is None or left is not None else _conv(node, right)
    weight = left if right is None else right
    if weight is None or (left is not None and right is not None) or len(weight.shape) != 2:
        return None
    slot = 1 if left is not None else 0
    return slot, Unfolding(weight.shape[_contracted(node, 1 - slot)], axis=_contracted(node, slot))


def weight_rows(node: Node, weight: np.ndarray) -> np.ndarray:
    """Return the weight of a layer that `unfolding_of` knows as rows `[channels, n]`, a view."""
    if node.op_type == "Conv":
        return weight.reshape(len(weight), -1)
    return weight if _weight_axis(node) == -1 else weight.T


def _weight_axis(node: Node) -> int:
    left = node.inputs[0]
    return _contracted(node, 0 if left is not None and left.constant is not None else 1)


def _contracted(node: Node, slot: int) -> int:
    """Axis of a factor that the product sums over: the last of the first, the last but one of the second."""
    transposed = node.op_type == "Gemm" and bool(node.attribute("transA" if slot == 0 else "transB", 0))
    return -1 if transposed == (slot == 1) else -2


def _conv(node: Node, weight: Tensor) -> tuple[int, Unfolding] | None:
    kernel = weight.shape[2:]
    groups = int(node.attribute("group", 1))
    if not 1 <= len(kernel) <= 3 or groups < 1 or weight.shape[0] % groups or not weight.size:
        return None
    rank = len(kernel)
    columns = weight.shape[1] * groups * math.prod(kernel)
    return 0, Unfolding(
        columns,
        groups,
        1,
        tuple(kernel),
        tuple(node.attribute("strides") or (1,) * rank),
        tuple(node.attribute("dilations") or (1,) * rank),
        tuple(pads_of(node, rank)),
        auto_pad_of(node),
    )


def _spread(count: int, most: int) -> slice | np.ndarray:
    """Choose `most` of `count` positions, as `spread_places`."""
    return slice(None) if count <= most else spread_places(count, most)


@lru_cache(maxsize=64)
def _window_indices(unfolding: Unfolding, shape: tuple[int, ...], most: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Return where the elements of the chosen windows lie in a flattened picture.

    Returns:
        int64 `[kernel positions, rows]`, and which of them lie in the padding (None where none does).

    """
    windows = lay_windows(
        shape,
        unfolding.kernel,
        strides=unfolding.strides,
        dilations=unfolding.dilations,
        pads=unfolding.pads,
        auto_pad=unfolding.auto_pad,
    )
    chosen = np.arange(math.prod(windows.output))[_spread(math.prod(windows.output), most)]
    places = np.unravel_index(chosen, windows.output)
    taps = np.unravel_index(np.arange(unfolding.positions), unfolding.kernel)
    indices = np.zeros((unfolding.positions, len(chosen)), np.int64)
    outside = np.zeros(indices.shape, bool)
    for axis, size in enumerate(shape):
        reach = taps[axis][:, None] * windows.dilations[axis] - windows.begin[axis]
        coordinate = places[axis] * windows.strides[axis] + reach
        outside |= (coordinate < 0) | (coordinate >= size)
        indices = indices * size + np.clip(coordinate, 0, max(size - 1, 0))
    return indices, outside if outside.any() else None
