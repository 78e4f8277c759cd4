"""Limits for masks and scores in front of a Softmax: who shares one, whether it pays, and the nodes that it takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from onnxq.ir import Patch
from onnxq.ops.forms.per_row import reduce_max
from onnxq.rescaling.attention_masks import DEEPEST, SINKING, MaskedSoftmax, ValueLookup, is_masked

# By kernels of onnxruntime 1.31 on one core: a denormal, the nodes of a limit, and a row and an element that they treat
DENORMAL_NS, NODES_NS, ROW_NS, ELEMENT_NS = 4.0, 3500.0, 50.0, 0.7


@dataclass(frozen=True)
class MaskLimit:
    """Softmax nodes that get one limited mask, or a single one whose scores are limited.

    Attributes:
        readers: The layers that it is for.
        limit: How deep the mask reaches below the greatest element of a row; None where scores are limited.
        elements: The mask that is there now, if it is the same at every run.

    """

    readers: tuple[MaskedSoftmax, ...]
    limit: int | None = None
    elements: np.ndarray | None = None

    @property
    def pays(self) -> bool:
        """Whether the denormals that are saved take longer than what saves them, or no code would be left."""
        if self.elements is not None or any(reader.coded and reader.denormals for reader in self.readers):
            return True
        limited = [reader if self.limit is None else reader.spread for reader in self.readers]
        spent = max(each.rows * ROW_NS + each.elements * ELEMENT_NS for each in limited)
        saved = sum(reader.denormals for reader in self.readers) * DENORMAL_NS
        return saved > spent + self.readers[0].samples * NODES_NS


def choose_limits(found: Iterable[MaskedSoftmax], known: ValueLookup) -> list[MaskLimit]:
    """Choose limits that pay: for a mask one for all that read it, the highest that one of them needs.

    Layers that need a lower limit share one with others of that kind. If no mask serves all
    rows of widely spread scores, the scores themselves are limited, row by row, which takes longer.
    """
    groups: dict[object, list[MaskedSoftmax]] = {}
    elements: dict[object, np.ndarray | None] = {}
    limited = []
    for masked in found:
        if masked.mask is None or masked.limit() is None:
            limited.append(MaskLimit((masked,)))
            continue
        array = known(masked.mask)
        key: object = masked.mask if array is None else (masked.slot is None, array.shape, array.tobytes())
        groups.setdefault(key, []).append(masked)
        elements[key] = array
    for key, waiting in groups.items():
        while waiting:
            limit = max(limit for masked in waiting if (limit := masked.limit()) is not None)
            served = tuple(masked for masked in waiting if masked.spread.allows(limit))
            waiting = [masked for masked in waiting if masked not in served]
            limited.append(MaskLimit(served, limit, elements[key]))
    return [each for each in limited if each.pays]


def limit_patch(limited: MaskLimit, opset: int) -> Patch:
    """Describe a limit; sums that change by it get new names."""
    if limited.limit is None:
        return _score_patch(limited.readers[0], opset)
    paths = [reader.path() for reader in limited.readers]
    node, slot = paths[0][-1]
    mask = node.inputs[slot]
    assert mask is not None
    patch = Patch(mask.graph, node, f"limit the mask '{mask.name}'")
    limit, hint = np.float32(limited.limit), f"{mask.name}_limited"
    if limited.elements is None:
        greatest = reduce_max(patch, mask, -1, opset, f"{mask.name}_greatest")
        floor = patch.op("LeakyRelu", greatest, hint=f"{mask.name}_floor", alpha=SINKING)
        deepest = patch.op("Add", floor, patch.constant(np.array(limit), "deepest"), hint=f"{mask.name}_deepest")
        made = patch.op("Max", mask, deepest, hint=hint)
    elif limited.readers[0].slot is not None:
        made = patch.constant(np.full_like(limited.elements, limit), hint)
    else:
        with np.errstate(all="ignore"):
            lowest = is_masked(limited.elements.max(axis=-1, keepdims=True)) + limit
        made = patch.constant(np.maximum(limited.elements, lowest), hint)
    for path in paths:
        patch.rewire(*path[-1], made)
        for changed, _ in path:
            assert changed.outputs[0] is not None
            patch.rename(changed.outputs[0], f"{changed.outputs[0].name}_limited")
    return patch


def _score_patch(masked: MaskedSoftmax, opset: int) -> Patch:
    scores = masked.softmax.inputs[0]
    assert scores is not None
    patch = Patch(scores.graph, masked.softmax, f"limit the scores '{scores.name}'")
    greatest = reduce_max(patch, scores, -1, opset, f"{scores.name}_greatest")
    lowest = patch.constant(np.array(-DEEPEST, np.float32), "deepest")
    deepest = patch.op("Add", greatest, lowest, hint=f"{scores.name}_deepest")
    patch.rewire(masked.softmax, 0, patch.op("Max", scores, deepest, hint=f"{scores.name}_limited"))
    return patch
