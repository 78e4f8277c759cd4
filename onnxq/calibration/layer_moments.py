"""Choose the layers whose second moments are measured, and find these moments afterwards.

Tests: `tests/calibration/test_second_moments.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from onnx import TensorProto

from onnxq.calibration.im2col import Unfolding, unfolding_of
from onnxq.calibration.second_moments import InputMoments, LayerMoments, rows_per_item
from onnxq.calibration.statistic import Statistic
from onnxq.calibration.stats import StatisticFactory, Stats, basic_kinds
from onnxq.calibration.thinning import EVERYTHING, Thinning
from onnxq.ir import Node, Value
from onnxq.targets.assumed_shapes import count

# The most columns of a group for which H is full, and the columns of a block beyond; the first that fits the memory.
# 2304 columns are 256 channels of 3 × 3, and 42 MB for each half of H.
WIDEST = 2304
SIZES = ((WIDEST, 256), (1152, 256), (576, 256), (288, 256), (128, 128), (64, 64), (32, 32), (9, 9), (1, 1))
MEMORY = 768 << 20  # bytes for all H of a model
# Columns for each row of a weight, beyond which H is of blocks. To decompose one of 2304 columns takes a second, for 6
# rows as for 256
COLUMNS_PER_ROW = 64


class LayerWork(NamedTuple):
    """Work of taking second moments of one sample.

    Attributes:
        elements: Of the rows that layers read.
        products: Of two such elements.

    """

    elements: int = 0
    products: int = 0


NO_LAYERS = LayerWork()


class MeasuredLayers:
    """The layers whose second moments a calibration is to take along, in the same pass as the ranges.

    `calibrate(model, [*plan.calibrated(), *layers.values], samples, kinds=layers.kinds)` measures, and
    `layers.moments(stats, node)` finds what was measured.

    Args:
        nodes: Candidates; those are taken that are a MatMul, Gemm or Conv with a constant weight and
            a float32 activation.
        memory: Bytes that all H together may take; the larger ones become block-diagonal until they fit.
        widest: The most columns of a full H.

    """

    def __init__(self, nodes: Iterable[Node], *, memory: int = MEMORY, widest: int = WIDEST) -> None:
        self._inputs: dict[Node, tuple[Value, Unfolding]] = {}
        rows: dict[tuple[str, Unfolding], int] = {}
        for node in nodes:
            found = unfolding_of(node)
            value = node.inputs[found[0]] if found else None
            if found is None or value is None or value.tensor is not None:
                continue
            if value.dtype == TensorProto.FLOAT:
                self._inputs[node] = value, found[1]
                key = value.name, found[1]
                rows[key] = max(rows.get(key, 0), _rows(node, found))
        self._by_name: dict[str, dict[Unfolding, int]] = {}
        for full, block in SIZES:
            for value, unfolding in self._inputs.values():
                few = max(COLUMNS_PER_ROW * rows[value.name, unfolding], block)
                size = block_columns(unfolding, min(full, few, widest), block)
                self._by_name.setdefault(value.name, {})[unfolding] = size
            if self.bytes <= memory:
                break

    @property
    def bytes(self) -> int:
        """Bytes of all H, both halves."""
        return sum(
            2 * 8 * unfolding.columns * block for ways in self._by_name.values() for unfolding, block in ways.items()
        )

    def work(self, shapes: Mapping[str, tuple[int, ...]], thinning: Thinning = EVERYTHING) -> LayerWork:
        """Count what one sample takes.

        Args:
            shapes: Of values whose sizes the model leaves open.
            thinning: How many of the rows are measured.

        """
        read: dict[tuple[str, Unfolding], int] = {}
        for node, (value, unfolding) in self._inputs.items():
            rows = rows_read(node, value, unfolding, shapes)
            read[value.name, unfolding] = min(rows, thinning.rows(unfolding.n, rows_per_item(unfolding)))
        elements = products = 0
        for (name, unfolding), rows in read.items():
            elements += rows * unfolding.columns
            products += rows * unfolding.columns * self._by_name[name][unfolding]
        return LayerWork(elements, products)

    @property
    def inputs(self) -> Mapping[Node, tuple[Value, Unfolding]]:
        """The value that each layer reads, and how."""
        return self._inputs

    @property
    def values(self) -> list[Value]:
        """The values to measure, each once."""
        return list(dict.fromkeys(value for value, _ in self._inputs.values()))

    def kinds(
        self, name: str, basics: StatisticFactory = basic_kinds, thinning: Thinning = EVERYTHING
    ) -> Sequence[Statistic]:
        """Make what is measured of a tensor: the basic statistics, and the moments that layers want of it."""
        ways = self._by_name.get(name)
        if ways is None:
            return basics(name)
        return *basics(name), InputMoments(
            LayerMoments(unfolding, block, thinning=thinning) for unfolding, block in ways.items()
        )

    def moments(self, stats: Stats, *nodes: Node) -> LayerMoments | None:
        """Return the moments of what nodes read that share a weight; None where one of them was not measured.

        Nor are there any where one weight is read in different groups.
        """
        result: LayerMoments | None = None
        for node in nodes:
            value, unfolding = self._inputs.get(node, (None, None))
            if value is None or unfolding is None or value.name not in stats:
                return None
            if InputMoments not in stats[value.name]:
                return None
            layer = stats[value.name][InputMoments].layers.get(unfolding)
            if layer is None or not layer.items or (result is not None and result.form != layer.form):
                return None
            result = layer if result is None else result.merge(layer)
        return result


def rows_read(
    node: Node,
    value: Value,
    unfolding: Unfolding,
    shapes: Mapping[str, tuple[int, ...]],
    elements: Callable[[Value, Mapping[str, tuple[int, ...]]], int] = count,
) -> int:
    """Count the rows that a layer reads of a sample: of a matrix, or the windows of a Conv.

    Args:
        node: The layer.
        value: What it reads.
        unfolding: How it reads it.
        shapes: Of values whose sizes the model leaves open.
        elements: Counts those of a value; `count` and `known_count` differ in sizes that stay open.

    """
    made, weight = node.outputs[0], node.inputs[1]
    if node.op_type != "Conv" or made is None or weight is None or weight.constant is None:
        return elements(value, shapes) // unfolding.columns
    return elements(made, shapes) // weight.constant.shape[0]


def _rows(node: Node, found: tuple[int, Unfolding]) -> int:
    """Return how many rows the weight of a layer has in each group."""
    weight = node.inputs[1 - found[0]]
    assert weight is not None
    return int(weight.elements.size) // found[1].columns


def block_columns(unfolding: Unfolding, full: int, block: int) -> int:
    """Choose the columns of a block of H: a whole group, whole input channels of it, or one column.

    Args:
        unfolding: How the layer reads.
        full: The most columns for which H is full.
        block: About how many columns a block has otherwise.

    """
    if unfolding.n <= full:
        return unfolding.n
    channels = block // unfolding.positions
    return channels * unfolding.positions if channels else 1
