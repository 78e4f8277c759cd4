"""The constants that absorb factors, while they change: each is written once, after all changes.

Tests: `tests/rescaling/test_cross_layer.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from onnxq.ir import ArrayTensor, Node, Patch, Value
from onnxq.rescaling.groups import AbsorbingConstant


def constant_array(value: Value) -> np.ndarray:
    """Return the elements of a constant, float64."""
    return value.elements.numpy().astype(np.float64)


class FoldedWeights:
    """Constants while they change: one may absorb the factors of several groups, by its rows and by its columns."""

    def __init__(self) -> None:
        # By place: the constant there, and what was done to it. Places where the same was done share an array.
        self._done: dict[tuple[Node, int], tuple[tuple[int, AbsorbingConstant], ...]] = {}
        self._arrays: dict[tuple[Value, tuple[object, ...]], np.ndarray] = {}
        self._divisors: list[np.ndarray] = []

    def change(self, constants: Iterable[AbsorbingConstant], divisor: np.ndarray) -> None:
        """Let constants absorb the factors of a group."""
        self._divisors.append(divisor)
        for constant in constants:
            place = constant.node, constant.slot
            self._done[place] = (*self._done.get(place, ()), (len(self._divisors) - 1, constant))

    def patches(self) -> list[Patch]:
        """Put the new constants in place of the old."""
        patches: list[Patch] = []
        made: dict[tuple[Value, tuple[object, ...]], Value] = {}
        for (node, slot), steps in self._done.items():
            old = steps[0][1].value
            key = old, _history(steps)
            patch = Patch(node.graph, node, f"rescale the channels of {node.label}")
            if key not in made:
                array = self._array(old, steps).astype(np.float32)
                made[key] = patch.constant(ArrayTensor(array), f"{old.name}_rescaled")
            patch.rewire(node, slot, made[key])
            patches.append(patch)
        return patches

    def _array(self, value: Value, steps: Sequence[tuple[int, AbsorbingConstant]]) -> np.ndarray:
        if not steps:
            return constant_array(value)
        key = value, _history(steps)
        if key not in self._arrays:
            index, constant = steps[-1]
            self._arrays[key] = constant.apply(self._array(value, steps[:-1]), self._divisors[index])
        return self._arrays[key]


def _history(steps: Iterable[tuple[int, AbsorbingConstant]]) -> tuple[object, ...]:
    """The changes to a constant, for all of its readers."""
    return tuple((index, c.axis, c.absorb, c.groups, c.positions) for index, c in steps)
