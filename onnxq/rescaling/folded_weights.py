"""The constants that absorb factors, while they change: each is written once, after all changes.

Tests: `tests/rescaling/test_cross_layer.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from onnx import TensorProto

from onnxq.ir import ArrayTensor, DeferredTensor, Node, Patch, Tensor, Value
from onnxq.rescaling.factor_search import widened_slices
from onnxq.rescaling.groups import EVERY_ROW, AbsorbingConstant

Step = tuple[AbsorbingConstant, np.ndarray]  # where a constant absorbs factors, and the divisor of the group


def absorbed(tensor: Tensor, steps: Sequence[Step], *, deferred: bool) -> Tensor:
    """Return a constant after it has absorbed factors, computed in float64 and stored in float32.

    Args:
        tensor: The constant before.
        steps: What it absorbs, in order.
        deferred: Whether it is computed at each reading, for a model whose weights are not in memory.

    """

    def compute() -> np.ndarray:
        array = tensor.numpy()
        made, grouped = np.empty(array.shape, np.float32), any(constant.groups > 1 for constant, _ in steps)
        for rows in [EVERY_ROW] if grouped else widened_slices(len(array), array.size):
            part = array[rows].astype(np.float64)
            for constant, divisor in steps:
                part = constant.apply(part, divisor, rows)
            made[rows] = part
        return made

    return DeferredTensor(TensorProto.FLOAT, tensor.shape, compute, [tensor]) if deferred else ArrayTensor(compute())


class FoldedWeights:
    """Constants while they change: one may absorb the factors of several groups, by its rows and by its columns.

    Args:
        deferred: See `absorbed`.

    """

    def __init__(self, *, deferred: bool = False) -> None:
        # By place: the constant there, and what was done to it. Places where the same was done share an array.
        self._done: dict[tuple[Node, int], tuple[tuple[int, AbsorbingConstant], ...]] = {}
        self._divisors: list[np.ndarray] = []
        self._deferred = deferred

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
                absorbs = [(constant, self._divisors[index]) for index, constant in steps]
                tensor = absorbed(old.elements, absorbs, deferred=self._deferred)
                made[key] = patch.constant(tensor, f"{old.name}_rescaled")
            patch.rewire(node, slot, made[key])
            patches.append(patch)
        return patches


def _history(steps: Iterable[tuple[int, AbsorbingConstant]]) -> tuple[object, ...]:
    """The changes to a constant, for all of its readers."""
    return tuple((index, c.axis, c.absorb, c.groups, c.positions) for index, c in steps)
