"""Values that are rescaled together channel by channel, and the constants that absorb it, so that no output changes.

Dividing a channel of a value by a positive number is free if its producer can divide and all readers can multiply. A
normalisation divides in gamma and beta, a layer in the output channels of its weight and in its bias. A layer that
reads multiplies the input channels of its weight. Operators between them commute with a positive factor.
Sources: cross-layer equalization, https://arxiv.org/abs/1906.04721, section 4.1; https://arxiv.org/abs/2211.10438,
section 4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from onnx import TensorProto

from onnxq.ir import Node, Value

FoldTarget = Literal["divide", "multiply"]
EVERY_ROW = slice(None)


@dataclass(frozen=True)
class AbsorbingConstant:
    """A constant input that absorbs the factors of a group.

    Attributes:
        node, slot: The input that reads it.
        axis: Its channel axis, counted from zero.
        absorb: Whether it is divided or multiplied by the factors.
        groups: Of a grouped Conv: axis 1 holds `channels / groups`, axis 0 the groups one after another.
        positions: Elements of a channel that follow each other on the axis, where the reader sees a flattened map.

    """

    node: Node
    slot: int
    axis: int
    absorb: FoldTarget
    groups: int = 1
    positions: int = 1

    @property
    def value(self) -> Value:
        """The constant."""
        value = self.node.inputs[self.slot]
        assert value is not None
        return value

    def apply(self, array: np.ndarray, divisor: np.ndarray, rows: slice = EVERY_ROW) -> np.ndarray:
        """Return the constant after its group is divided by `divisor`, in float64; or some rows of it, ungrouped."""
        factor = np.repeat(divisor if self.absorb == "multiply" else 1.0 / divisor, self.positions)
        if self.groups > 1:
            spread = np.repeat(factor.reshape(self.groups, -1), len(array) // self.groups, axis=0)
            return np.asarray(array * spread.reshape(*spread.shape, *[1] * (array.ndim - 2)))
        factor = factor.reshape(-1, *[1] * (max(array.ndim, 1) - self.axis - 1))
        return np.asarray(array * (factor[rows] if self.axis == 0 else factor))


@dataclass(eq=False)
class ScaleGroup:
    """Values that are divided together.

    Attributes:
        channels: How many factors there are.
        axes: Channel axis of every value, counted from zero.
        flattened: Values whose last axis holds so many positions of each channel one after another.
        sources: Constants that are divided (a divisor among them is multiplied).
        readers: Weights that are multiplied, of MatMul, Gemm and Conv.
        pending: Values whose neighbours were not looked at yet.
        products: Products of activations; exactly one factor of each may be divided.
        heads: Values whose channels are on several axes, in this order: see `attention_heads.py`.
        limits: Values that a Clip keeps at or below a number: a channel may only be divided as far as it stays there.

    """

    channels: int
    axes: dict[Value, int] = field(default_factory=dict)
    flattened: dict[Value, int] = field(default_factory=dict)
    sources: list[AbsorbingConstant] = field(default_factory=list)
    readers: list[AbsorbingConstant] = field(default_factory=list)
    pending: list[Value] = field(default_factory=list)
    products: list[Node] = field(default_factory=list)
    heads: dict[Value, tuple[int, ...]] = field(default_factory=dict)
    limits: dict[Value, float] = field(default_factory=dict)

    @property
    def values(self) -> dict[Value, int]:
        """All values, and how many positions of a channel follow each other on their channel axis."""
        return {**dict.fromkeys((*self.axes, *self.heads), 1), **self.flattened}

    @property
    def constants(self) -> list[AbsorbingConstant]:
        """Everything that changes."""
        return [*self.sources, *self.readers]

    def copy(self) -> ScaleGroup:
        """Return a group that can be changed by itself."""
        made = ScaleGroup(self.channels, dict(self.axes), dict(self.flattened), list(self.sources), list(self.readers))
        made.heads, made.pending, made.products = dict(self.heads), list(self.pending), list(self.products)
        made.limits = dict(self.limits)
        return made

    def include(self, value: Value | None, axis: int) -> None:
        """Add a value, and look at its neighbours later."""
        if value is None or value.shape is None:
            raise UnabsorbedScaleError
        if value in self.axes:
            if self.axes[value] != axis:
                raise UnabsorbedScaleError
            return
        self._check(value, (axis,))
        self.axes[value] = axis
        self.pending.append(value)

    def include_apart(self, value: Value, axes: tuple[int, ...]) -> None:
        """Add a value whose channels are on several axes, and whose neighbours are looked at by who adds it."""
        self._check(value, axes)
        self.heads[value] = axes

    def _check(self, value: Value, axes: tuple[int, ...]) -> None:
        shape = value.shape or ()
        sizes = [size for axis in axes if 0 <= axis < len(shape) and isinstance(size := shape[axis], int)]
        if len(sizes) < len(axes) or math.prod(sizes) != self.channels or value.dtype != TensorProto.FLOAT:
            raise UnabsorbedScaleError
        if value.is_output or value.producer is None or value.graph.parent is not None:
            raise UnabsorbedScaleError

    def divide(self, node: Node, slot: int, axis: int, absorb: FoldTarget = "divide") -> None:
        """Let a constant input absorb the factors: it has an element for each channel along `axis`."""
        tensor = node.constant(slot)
        if tensor is None or tensor.dtype != TensorProto.FLOAT or not 0 <= axis < len(tensor.shape):
            raise UnabsorbedScaleError
        constant = AbsorbingConstant(node, slot, axis, absorb)
        if tensor.shape[axis] != self.channels:
            raise UnabsorbedScaleError
        if constant not in self.sources:
            self.sources.append(constant)


class UnabsorbedScaleError(Exception):
    """The group has an edge that nothing absorbs."""


def linear_reader(node: Node, slot: int) -> AbsorbingConstant | None:
    """Return the weight that multiplies input `slot` of a MatMul, Gemm or Conv, if that is a float32 constant."""
    weight = node.input(1) if slot == 0 else None
    tensor = weight.constant if weight is not None else None
    if tensor is None or tensor.dtype != TensorProto.FLOAT or node.domain or node.graph.parent is not None:
        return None
    rank = len(tensor.shape)
    if node.op_type == "MatMul" and rank >= 2:
        return AbsorbingConstant(node, 1, rank - 2, "multiply")
    if node.op_type == "Gemm" and rank == 2 and not node.attribute("transA", 0):
        return AbsorbingConstant(node, 1, 1 if node.attribute("transB", 0) else 0, "multiply")
    if node.op_type == "Conv" and rank >= 3:
        return AbsorbingConstant(node, 1, 1, "multiply", groups=node.attribute("group", 1))
    return None


def reader_axis(node: Node) -> int:
    """Channel axis of what a MatMul, Gemm or Conv reads."""
    return 1 if node.op_type == "Conv" else -1
