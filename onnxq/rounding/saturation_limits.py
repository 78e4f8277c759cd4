"""Limits for weight codes within which no two neighbouring products leave 16 bits.

x86 processors without VNNI multiply unsigned activation codes by signed weight codes with VPMADDUBSW, which adds two
neighbouring products in 16 bits and saturates (`ops/forms/saturating_pairs.py`). With `a` and `b` the largest codes
that two
neighbouring activations have, products of weights of one sign stay exact as long as

    a * |w_a| + b * |w_b| <= 32767.

Weights of different signs cannot saturate: one product alone stays below 255 * 127. Each code gets a limit of its own,
such that two neighbours at their limits obey the inequality. So every search for codes works as it does without limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from onnxq.ir import Node, Value
from onnxq.ir.operator_traits import is_nonnegative
from onnxq.ir.shape_inference.padding import pads_of
from onnxq.ops.forms.per_row import steps_of
from onnxq.ops.forms.scheme import Scheme
from onnxq.optimize.fold_columns import Columns, columns_of, neighbours
from onnxq.targets import load_costs
from onnxq.targets.target import load_target

MOST_SUM = 32767  # of two products in 16 bits
ROUNDING = 1  # what is left of it for the rounding of scales to float32
FULL = 255  # the largest code of an activation of 8 bits
MIDDLE = 128  # the code of zero where a row has negative elements
MOST_CODE = 127
KERNELS = ("uint8", "int8")  # activations that integer kernels take; x86 makes uint8 of int8 when it loads a model
HEADROOM = 1.2  # other samples go further: by so much of the distance between the zero point and the largest code
IN_CACHE = 1 << 15  # elements whose bounds are found at a time


class FoldedColumns(NamedTuple):
    """How columns of a Conv become channels when the graph is optimized, which makes others neighbours.

    Attributes:
        columns: As `onnxq.optimize.fold_columns` chooses them.
        left: Padding on the left.

    """

    columns: Columns
    left: int


class SummationOrder(NamedTuple):
    """How a kernel sums over a weight.

    Attributes:
        kernel: A product sums along one axis; a Conv over the kernel's positions and the input channels within each.
        axis: The axis that is summed over: of a product the inner one, of a Conv the input channels.
        group: Groups of a Conv.
        calibrated: Whether activations are coded in a calibrated range, so that samples tell their largest codes.
        steps: Where each row of the activation has a scale of its own, codes from zero to the row's largest magnitude.
            A weight that is read in both ways has both.
        folded: Of a Conv whose columns are going to be channels.

    """

    kernel: Literal["product", "conv"]
    axis: int
    group: int = 1
    calibrated: bool = False
    steps: int = 0
    folded: FoldedColumns | None = None


Taken = np.ndarray | slice


class _Pairs(NamedTuple):
    first: Taken
    second: Taken
    a: np.ndarray  # largest activation codes, without the first
    b: np.ndarray
    one_sign: np.ndarray  # whether both weights have the same sign


@dataclass(frozen=True)
class PairLimits:
    """Which elements of a weight in rows are multiplied side by side, and how large the activations there get.

    Attributes:
        pairings: Int arrays `[pairs, 2]` of columns that may be neighbours; a column is at most once in each of them.
        largest: Largest activation code in each column, float64 `[groups, n]`; the groups share the rows evenly.
        group: Of the rows that this is asked about, the group of each; None where there is one group.

    """

    pairings: tuple[np.ndarray, ...]
    largest: np.ndarray
    group: np.ndarray | None = None

    def taken(self, channels: np.ndarray, of: int) -> PairLimits:
        """Return the limits of some of the rows.

        Args:
            channels: Indices of rows.
            of: How many rows there are.

        """
        return replace(self, group=self._groups(of)[channels])

    def covering(self, rows: np.ndarray) -> np.ndarray:
        """Return the least scale of each row with which no pair saturates, whichever way its codes are rounded.

        Args:
            rows: Float `[channels, n]`.

        Returns:
            float64 `[channels]`; 0 where any scale will do.

        """
        magnitude = np.abs(rows, dtype=np.float64)
        least = np.zeros(len(rows))
        for p in self._pairs(rows):
            scales = _least_scales(p.a, magnitude[:, p.first], p.b, magnitude[:, p.second])
            np.maximum(least, np.where(p.one_sign, scales, 0).max(axis=1, initial=0), out=least)
        return least

    def reach(self, rows: np.ndarray) -> np.ndarray:
        """Return the scale below which each element is clipped, be it by 8 bits or by its neighbour.

        Args:
            rows: Float `[channels, n]`.

        Returns:
            float64 of the same shape.

        """
        magnitude = np.abs(rows, dtype=np.float64)
        reached: np.ndarray = magnitude / MOST_CODE
        for p in self._pairs(rows):
            sums = (p.a * magnitude[:, p.first] + p.b * magnitude[:, p.second]) / MOST_SUM
            sums = np.where(p.one_sign, sums, 0)
            for column in (p.first, p.second):
                reached[:, column] = np.maximum(reached[:, column], sums)
        return reached

    def bounds(self, rows: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the least and the greatest code of each element.

        Both neighbours start from their nearest codes. The rest of the 16 bits is shared between them; an excess is
        taken from both alike. The first end is rounded to nearest, and the second takes what that leaves.

        Args:
            rows: Float `[channels, n]`.
            steps: The scale of each element, the same shape.

        Returns:
            Two float64 arrays of integers of the same shape, the first at most 0, the second at least 0.

        """
        low, high = np.empty(rows.shape), np.empty(rows.shape)
        height = max(IN_CACHE // max(rows.shape[1], 1), 1)
        largest = self._largest(len(rows))
        for start in range(0, len(rows), height):
            some = slice(start, start + height)
            wanted, most = rows[some] / steps[some], largest if len(largest) == 1 else largest[some]
            for side, ends in ((-wanted, low), (wanted, high)):
                end = ends[some]
                end[...] = MOST_CODE
                positive = np.clip(side, 0, MOST_CODE, out=side)
                for first, second in map(_columns, self.pairings):
                    a, b = most[:, first], most[:, second]
                    for column, shared in zip(
                        (first, second), _shared(a, b, positive[:, first], positive[:, second]), strict=True
                    ):
                        end[:, column] = np.minimum(end[:, column], shared)
        np.negative(low, out=low)
        return low, high

    def limited(self, rows: np.ndarray) -> int:
        """Count the pairs that could saturate with codes of all 8 bits, rounded to nearest.

        Args:
            rows: Float `[channels, n]`.

        """
        magnitude = np.abs(rows)
        peak = magnitude.max(axis=1, keepdims=True, initial=0)
        least = MOST_CODE / np.finfo(peak.dtype).max  # below, a scale has no reciprocal: such a row is zero
        codes = np.rint(magnitude * np.divide(MOST_CODE, peak, out=np.zeros_like(peak), where=peak > least))
        return sum(
            int(((p.a * codes[:, p.first] + p.b * codes[:, p.second] > MOST_SUM) & p.one_sign).sum())
            for p in self._pairs(rows)
        )

    def _pairs(self, rows: np.ndarray) -> Iterator[_Pairs]:
        largest = self._largest(len(rows))
        for first, second in map(_columns, self.pairings):
            one_sign = _of_one_sign(rows[:, first], rows[:, second])
            yield _Pairs(first, second, largest[:, first], largest[:, second], one_sign)

    def _largest(self, rows: int) -> np.ndarray:
        """Return the largest activation codes for each row, or one row for all."""
        return self.largest if len(self.largest) == 1 else self.largest[self._groups(rows)]

    def _groups(self, rows: int) -> np.ndarray:
        if self.group is not None:
            return self.group
        return np.arange(rows) * len(self.largest) // max(rows, 1)


def _columns(pairing: np.ndarray) -> tuple[Taken, Taken]:
    """Return the first and the second columns of pairs, as slices where they are every second one."""
    first, second = pairing[:, 0], pairing[:, 1]
    start, end = (int(pairing[0, 0]), int(pairing[-1, 1])) if len(pairing) else (0, -1)
    if len(pairing) and np.array_equal(pairing.reshape(-1), np.arange(start, end + 1)):
        return slice(start, end, 2), slice(start + 1, end + 1, 2)
    return first, second


def _shared(a: np.ndarray, b: np.ndarray, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the greatest codes of the first and of the second neighbours, which want these magnitudes.

    Args:
        a: Largest activation codes that the first ones meet.
        b: Those that the second ones meet.
        first: Magnitudes that the first ones want.
        second: Those that the second ones want.

    """
    total = a * first + b * second
    a, b = np.maximum(a, 1), np.maximum(b, 1)
    left = MOST_SUM - total
    room = first * np.where(left < 0, MOST_SUM / np.maximum(total, 1), 1.0) + np.maximum(left, 0) / 2 / a
    one = np.minimum(np.rint(room), MOST_CODE)  # which 255 times still fits
    return one, np.floor((MOST_SUM - a * one) / b)


@lru_cache(maxsize=16)
def full_pair_limits(shape: tuple[int, ...], axes: tuple[int, ...], summed: SummationOrder) -> PairLimits:
    """Return `pair_limits` for activations of any code, found once for many weights of one shape."""
    return pair_limits(shape, axes, summed)


def pair_limits(
    shape: tuple[int, ...], axes: tuple[int, ...], summed: SummationOrder, largest: np.ndarray | None = None
) -> PairLimits:
    """Find the neighbours in a weight, as `WeightRows` lays it out.

    A Conv with an odd number of input channels may be computed with padded channels, or with kernel positions as
    further channels. Elements that follow one another in any such order count as neighbours.

    Args:
        shape: Of the weight.
        axes: Axes that share a scale.
        summed: How the kernel sums.
        largest: Largest activation code in each column, `[columns]` over all groups; 255 everywhere by default.

    """
    one = tuple(size if axis in axes else 1 for axis, size in enumerate(shape))  # what shares one scale
    numbers = np.arange(int(np.prod(one, dtype=np.int64))).reshape(one)
    order = [axis for axis in range(len(shape)) if axis not in axes] + list(axes)
    column = np.empty(numbers.size, np.int64)
    column[numbers.transpose(order).reshape(-1)] = np.arange(numbers.size)
    pairings = [column[np.stack(pair, axis=-1)].reshape(-1, 2) for pair in _neighbours(numbers, summed)]
    groups = summed.group if len(axes) < len(shape) else 1
    full = np.full((1, numbers.size), float(FULL))
    measured = full if largest is None or numbers.size * groups != largest.size else largest.reshape(groups, -1)
    return PairLimits(tuple(pairings), measured.astype(np.float64))


def least_pair_scales(weight: np.ndarray, axes: tuple[int, ...], summed: SummationOrder) -> np.ndarray:
    """Return the least scales with which no pair of neighbours saturates, as `PairLimits.covering` of a whole weight.

    Args:
        weight: float32; along an axis that is summed over, an even number of elements unless it is all of them.
        axes: Axes that share a scale.
        summed: How the kernel sums.

    Returns:
        float64 of the weight's rank with 1 along `axes`; 0 where any scale will do.

    """
    least = np.zeros([size if axis not in axes else 1 for axis, size in enumerate(weight.shape)])
    for first, second in _neighbours(weight, summed):
        scales = _least_scales(FULL, np.abs(first, dtype=np.float64), FULL, np.abs(second, dtype=np.float64))
        most = np.where(_of_one_sign(first, second), scales, 0).max(axis=-1, initial=0)
        conv = summed.kernel == "conv"
        most = most.reshape(-1, *[1] * (weight.ndim - 1)) if conv else np.expand_dims(most, summed.axis)
        np.maximum(least, most.max(axis=axes, keepdims=True), out=least)
    return least


def _neighbours(elements: np.ndarray, summed: SummationOrder) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Return the weights that may be multiplied as neighbours: first ones and second ones, `[..., pairs]`."""
    sequences = np.moveaxis(elements, summed.axis, -1)
    odd = summed.kernel == "conv" and elements.shape[summed.axis] % 2 == 1
    if summed.kernel == "conv":
        sequences = sequences.reshape(len(sequences), -1)
    for start in (0, 1) if odd else (0,):
        end = start + (sequences.shape[-1] - start) // 2 * 2
        yield sequences[..., start:end:2], sequences[..., start + 1 : end : 2]
    if summed.folded is not None:
        filters = elements.reshape(len(elements), -1)
        for first, other in neighbours(elements.shape, *summed.folded):
            yield filters[:, first], filters[:, other]


def _of_one_sign(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.asarray(np.sign(first) * np.sign(second) > 0)  # a product of the weights themselves could underflow


def _least_scales(a: np.ndarray | float, first: np.ndarray, b: np.ndarray | float, second: np.ndarray) -> np.ndarray:
    """Return the scales at which two magnitudes saturate next to the codes `a` and `b`, however both are rounded."""
    return np.asarray((a * first + b * second) / (MOST_SUM - ROUNDING - (a + b) / 2))


def largest_codes(high: np.ndarray, scale: float, zero_point: int) -> np.ndarray:
    """Return the largest codes that activations get, with headroom for samples that were not seen.

    Args:
        high: Greatest value of each column.
        scale: Of the activation.
        zero_point: Of the activation, which also stands for padding.

    """
    with np.errstate(over="ignore", invalid="ignore"):
        above = np.nan_to_num(np.ceil(np.maximum(high, 0).astype(np.float64) / scale), nan=0.0, posinf=float(FULL))
    return np.asarray(np.minimum(zero_point + np.ceil(above * HEADROOM - 1e-9), float(FULL)))


def largest_row_codes(share: np.ndarray, steps: int) -> np.ndarray:
    """Return the largest codes of activations with a scale for each row, as `largest_codes`.

    Args:
        share: Greatest share of each column in the largest magnitude of a row.
        steps: Codes from zero to that magnitude: 255, or 127 on each side of 128.

    """
    return largest_codes(share, 1 / steps, 0 if steps == FULL else MIDDLE)


def summed_pairs(node: Node, weight: Value, scheme: Scheme) -> SummationOrder | None:
    """Tell how an integer kernel that may saturate sums over a weight of a node.

    Args:
        node: The node that reads the weight.
        weight: A constant.
        scheme: Its settings.

    Returns:
        None where nothing can saturate: on targets whose processors add in 32 bits, for weights of other widths or in
        front of the activation (onnxruntime gets those as uint8, whose kernels widen), for a depthwise Conv.

    """
    constant = weight.constant
    if constant is None or scheme.reduce_range or not load_target(scheme.target).saturates:
        return None
    if (
        scheme.name not in ("static-int8", "dynamic-int8")
        or scheme.weight_bits != 8
        or scheme.activations not in KERNELS
    ):
        return None
    static, by_row = scheme.name == "static-int8", scheme.activation_granularity == "row"
    data = node.inputs[0]
    steps = steps_of(unsigned=is_nonnegative(data)) if by_row and not static and data is not None else 0
    if node.op_type == "Conv" and weight in node.inputs[1:2]:
        group = node.attribute("group", 1)
        depthwise = constant.shape[1] == 1 and constant.shape[0] == group
        exact = not static and not steps  # ConvInteger, whose weights are uint8
        if depthwise or exact:
            return None
        return SummationOrder(
            "conv", 1, group, static, steps, _folded(node, constant.shape, scheme) if static else None
        )
    if node.op_type == "MatMul" and weight in node.inputs[1:2] and len(constant.shape) > 1:
        return SummationOrder("product", len(constant.shape) - 2, 1, static, steps)
    if node.op_type == "Gemm" and weight in node.inputs[1:2]:
        return SummationOrder("product", 1 if node.attribute("transB", 0) else 0, 1, static, steps)
    if node.op_type == "LSTM" and weight in node.inputs[1:3] and not static:
        return SummationOrder("product", 2)
    return None


def _folded(conv: Node, weight: tuple[int, ...], scheme: Scheme) -> FoldedColumns | None:
    """Say how columns of a static Conv become channels, if they do; of a single channel, neighbours stay neighbours."""
    target = load_target(scheme.target)
    columns = columns_of(conv, weight, load_costs(target.name)) if target.timed and weight[1] > 1 else None
    if columns is None:
        return None
    axes = len(weight) - 2
    return FoldedColumns(columns, pads_of(conv, axes)[axes - 1])
