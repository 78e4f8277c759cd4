"""Sizes of axes as products of a number and symbols.

Tests: `tests/ir/test_symbolic.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from onnxq.ir.graph import Value

ENDLESS = (1 << 31) - 1  # an end of Slice that no axis reaches: exporters write the largest int32 or int64
TOO_MANY = 1 << 42  # elements that no tensor has
LONGEST = 400  # characters of a symbol that is made of others: beyond, a new one is cheaper


@dataclass(frozen=True)
class Size:
    """A number times symbols, which are in order; `Size(3)` is three."""

    number: int
    symbols: tuple[str, ...] = ()

    @property
    def known(self) -> int | None:
        """The size as a number, or None."""
        return None if self.symbols else self.number

    def __mul__(self, other: Size) -> Size:
        return Size(self.number * other.number, tuple(sorted(self.symbols + other.symbols)))

    def divided(self, other: Size) -> Size | None:
        """Return the quotient where it is a product again."""
        left = Counter(self.symbols)
        left.subtract(other.symbols)
        if not other.number or self.number % other.number or any(count < 0 for count in left.values()):
            return None
        return Size(self.number // other.number, tuple(sorted(left.elements())))


Shape = tuple[Size, ...]
ONE = Size(1)


def product(sizes: Sequence[Size]) -> Size:
    """Multiply sizes."""
    return math.prod(sizes, start=ONE)


def fresh(output: Value, axis: int) -> Size:
    """Return a symbol for an axis about which nothing is known."""
    return Size(1, (f"{output.name}:{axis}",))


class Widest(str):
    """A symbol for what sizes broadcast to: the same parts in any order, however often, are the same size."""

    parts: frozenset[Size]


class Cut(str):
    """A symbol for a size, or the number of elements that an axis has if there are fewer."""

    size: Size


def limit_axis(size: Size, most: int, otherwise: Size) -> Size:
    """Return what is left of an axis of `most` elements, at least one, in front of element number `size`."""
    symbol = Cut(f"cut({size!r}, {most})")
    symbol.size = size
    return Size(1, (symbol,)) if len(symbol) <= LONGEST else otherwise


def broadcast(shapes: Sequence[Shape], output: Value) -> Shape:
    """Return the shape that shapes broadcast to.

    An axis that could be either of several has a symbol that says of which. That is sound because broadcasting asks
    only which sizes are not 1, and those have to be equal: neither order nor repetition matters.
    """
    rank = max(map(len, shapes))
    sizes = []
    for axis in range(-rank, 0):
        here = dict.fromkeys(shape[axis] for shape in shapes if -axis <= len(shape))
        here.pop(ONE, None)
        numbers = [size for size in here if size.known is not None]
        candidates = numbers or list(here) or [ONE]  # next to a number, a symbol can only be that number or 1
        new = fresh(output, axis % rank)
        sizes.append(candidates[0] if len(candidates) == 1 else new if numbers else _widest(candidates, new))
    return tuple(sizes)


def _widest(sizes: Sequence[Size], otherwise: Size) -> Size:
    parts = frozenset[Size]().union(*map(_parts, sizes))
    # Next to a size, one cut from it can only be that size, or nothing was cut.
    parts = frozenset(part for part in parts if not (isinstance(at := _symbol(part), Cut) and _parts(at.size) <= parts))
    if len(parts) == 1:
        return next(iter(parts))
    symbol = Widest(f"widest({', '.join(sorted(map(repr, parts)))})")
    symbol.parts = parts
    return Size(1, (symbol,)) if len(symbol) <= LONGEST else otherwise


def _symbol(size: Size) -> str:
    return size.symbols[0] if size.number == 1 and len(size.symbols) == 1 else ""


def _parts(size: Size) -> frozenset[Size]:
    symbol = _symbol(size)
    return symbol.parts if isinstance(symbol, Widest) else frozenset((size,))


def takes_all(start: int, end: int, size: Size, others: Shape) -> bool:
    """Whether a Slice of step 1 takes a whole axis, next to axes of sizes `others`."""
    if start != 0 and not (start < 0 and (start <= -ENDLESS or (size.known is not None and start <= -size.number))):
        return False
    if size.known is not None:
        return end >= size.number
    rest = product(others).known
    return end >= ENDLESS or (rest is not None and rest > 0 and end * rest >= TOO_MANY)


def padded_shape(shape: Shape, pads: Sequence[int] | None, output: Value) -> Shape:
    """Return sizes with so many more in front of all axes, then behind; new ones where either is not known."""
    if pads is None or len(pads) != 2 * len(shape):
        return tuple(fresh(output, axis) for axis in range(len(shape)))
    more = [sum(pads[axis :: len(shape)]) for axis in range(len(shape))]
    grown = [size if not number else Size(size.number + number) for size, number in zip(shape, more, strict=True)]
    unknown = [number != 0 and size.known is None for size, number in zip(shape, more, strict=True)]
    return tuple(fresh(output, axis) if unknown[axis] else size for axis, size in enumerate(grown))
