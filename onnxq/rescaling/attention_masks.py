"""Limit the depth of masks in front of a Softmax to the depth that the samples need.

exp(-88) and less is a denormal number, for which a processor takes many times as long. onnxruntime's Softmax makes one
of every score that is masked with -1e9 or -inf. A score 60 below the greatest of its row weighs nothing in float32,
either. So the mask is limited from below, row by row, and no result changes.

A row that is masked as a whole stays as it is: its limit is twice as deep as its greatest element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from onnx import TensorProto

from onnxq.ir import Graph, Node, Value

ValueArrays = Mapping[Value, np.ndarray]
ValueLookup = Callable[[Value], "np.ndarray | None"]

DENORMAL = -87.0  # its exponential is just no denormal
# How far below a row's greatest score a masked one may lie: what comes of it is divided by the sum, of up to e^7
DEEPEST = 80.0
ROOM = 1.1  # other inputs may have scores spread so many times as wide
# A masked score that lies so many times as far above the greatest of its row still has to lie this far below, masked
TIMES, MARGIN = 2.0, 25.0
SINKING = 2.0  # how many times as deep the limit of a row is whose greatest element is negative
MOST_TERMS = 6  # of a sum in front of a Softmax


@dataclass
class ScoreRange:
    """Statistics of a mask and of the scores that it is added to, over rows that are not masked as a whole.

    Attributes:
        below: How far a score lies below the greatest of its row that is not masked, at most.
        above: How far a masked score lies above that, at most, before it is masked.
        elements, rows: How many elements the mask has, and in how many rows.
        undefined: Whether there was a row of nothing but -inf, for which a Softmax gives NaN.

    """

    below: float = 0.0
    above: float = 0.0
    elements: int = 0
    rows: int = 0
    undefined: bool = False

    def add(self, below: np.ndarray, above: np.ndarray, mask: np.ndarray) -> None:
        """Add a sample; NaN stays NaN."""
        self.below = float(np.maximum(self.below, below.max(initial=0.0)))
        self.above = float(np.maximum(self.above, above.max(initial=0.0)))
        self.elements += mask.size
        self.rows += mask[..., 0].size

    def limit(self, *, coded: bool = False) -> int | None:
        """Choose how deep the mask is to reach; None where there is too little room.

        Args:
            coded: Whether codes are to reach as far: then no deeper than has to be.

        """
        if self.undefined or not math.isfinite(self.below + self.above):
            return None
        limit = -math.ceil(TIMES * self.above + MARGIN) if coded else math.floor(ROOM * self.below - DEEPEST)
        return limit if self.allows(limit) else None

    def allows(self, limit: float) -> bool:
        """Tell whether what is masked weighs nothing with this limit, with room for other inputs."""
        return -limit >= TIMES * self.above + MARGIN


@dataclass(eq=False)
class MaskedSoftmax:
    """A Softmax of scores that may be masked: of a sum, or of a Where that gives a number for what is masked.

    Attributes:
        softmax: The node.
        scores: Its input, or the value that the input is a Reshape of, with the same rows. A mask may be added to
            scores with one axis more, as for the windows of a picture.
        terms: Values to look at: what is added up, or `scores` themselves behind a Where.
        slot: The input of a Where that is the number; None for a sum.
        number: That number.
        awaited: Whether NaN is expected: the result for a row of nothing but -inf.
        coded: Whether the scores are quantized: steps that reach down to -1e9 leave one code for all that counts.
        spreads: By what is taken for the mask.
        deep: Terms in which an element lies so deep below the greatest of its row that only a mask can mean it.
        denormals: How many scores have an exponential that is a denormal number.
        elements, rows: How many scores there are, and in how many rows.
        samples: How many samples were looked at.

    """

    softmax: Node
    scores: Value
    terms: tuple[Value, ...]
    slot: int | None = None
    number: float = 0.0
    awaited: bool = False
    coded: bool = False
    spreads: dict[Value, ScoreRange] = field(default_factory=dict)
    deep: set[Value] = field(default_factory=set)
    denormals: int = 0
    elements: int = 0
    rows: int = 0
    samples: int = 0

    def look(self, arrays: ValueArrays) -> None:
        """Add what one sample has for the terms."""
        with np.errstate(all="ignore"):
            total = np.atleast_1d(_sum(self.scores, arrays))
            if not total.size:
                return
            top = total.max(axis=-1, keepdims=True)
            self.denormals += int((total < top + DENORMAL).sum())
            self.elements += total.size
            self.rows += top.size
            self.samples += 1
            if self.slot is not None:
                self._look_at_choice(top)
                return
            deep = {term for term in self.terms if _is_deep(np.atleast_1d(arrays[term]))}
            self.deep |= deep
            for value in _inside(self.scores):
                if deep <= set(_terms(value)):
                    self._look_at_sum(value, arrays, top)

    def _look_at_sum(self, value: Value, arrays: ValueArrays, top: np.ndarray) -> None:
        """Take a value inside the sum for the mask, and all else for the scores."""
        mask, raw = (np.atleast_1d(_sum(v, arrays, without)) for v, without in ((value, None), (self.scores, value)))
        floor = is_masked(mask.max(axis=-1, keepdims=True))
        best = top - floor  # the greatest score of the row without its mask
        sound = np.isfinite(best)
        kept = sound & (floor >= SINKING * DENORMAL)
        below = np.broadcast_to(best - raw.min(axis=-1, keepdims=True), kept.shape)[kept]
        hidden = np.where(mask - floor < -MARGIN, raw, np.float32(-np.inf)).max(axis=-1, keepdims=True)
        self._spread(value).add(below, (hidden - best)[sound], mask)

    def _look_at_choice(self, top: np.ndarray) -> None:
        """Take what a Where leaves out for scores of 0 under a mask."""
        assert self.mask is not None
        spread = self._spread(self.mask)
        spread.undefined |= bool((top == -np.inf).any())
        best = top[~(top <= self.number)]
        spread.add(best, -best, np.zeros(1))

    def _spread(self, value: Value) -> ScoreRange:
        return self.spreads.setdefault(value, ScoreRange())

    @property
    def mask(self) -> Value | None:
        """The smallest part of a sum that holds all that is deep, None where all of it does; of a Where, its number."""
        path = self.path()
        return path[-1][0].inputs[path[-1][1]] if path else None

    def path(self) -> list[tuple[Node, int]]:
        """Return the Adds from the Softmax to the mask, and which input of each leads there; of a Where, itself."""
        found: list[tuple[Node, int]] = []
        if self.slot is not None and self.scores.producer is not None:
            return [(self.scores.producer, self.slot)]
        value: Value | None = self.scores
        while value is not None and (node := _adding(value)) is not None:
            sides = [slot for slot, side in enumerate(node.inputs) if side and self.deep.intersection(_terms(side))]
            if len(sides) != 1:
                break
            found.append((node, sides[0]))
            value = node.inputs[sides[0]]
        return found

    @property
    def spread(self) -> ScoreRange:
        """Return the statistics of the mask; empty ones if there is none."""
        return self.spreads.get(self.mask, ScoreRange()) if self.mask is not None else ScoreRange()

    def limit(self) -> int | None:
        """Choose how deep the mask is to reach, as `ScoreRange.limit`; None where there is no mask, or none so deep."""
        limit = self.spread.limit(coded=self.coded) if self.mask is not None and self.denormals else None
        if limit is not None and self.slot is not None and (self.awaited or self.number >= limit):
            return None
        return limit


def is_masked(greatest: np.ndarray) -> np.ndarray:
    """Return what limits are counted from: the greatest element of each row, more where it is negative."""
    return np.where(greatest < 0, np.float32(SINKING) * greatest, greatest)


def find_masked(graph: Graph, opset: int, known: ValueLookup, besides: Collection[Value] = ()) -> list[MaskedSoftmax]:
    """Find what may be a Softmax of masked scores; what samples say about it decides.

    Args:
        graph: The main graph, types inferred.
        opset: Its operator set.
        known: Gives the elements of a small value that is the same at every run, or None.
        besides: Values that must not change.

    """
    found = []
    for node in graph.nodes:
        read = node.inputs[0] if node.op_type == "Softmax" and not node.domain else None
        if read is None or read in besides or not _is_own(read) or read.dtype != TensorProto.FLOAT:
            continue
        rank = len(read.shape) if read.shape is not None else 0
        if node.attribute("axis", -1 if opset >= 13 else 1) not in (-1, rank - 1):
            continue
        scores = _before_reshape(read)
        terms = _terms(scores)
        if 1 < len(terms) <= MOST_TERMS and len(terms) == len(set(terms)):
            found.append(MaskedSoftmax(node, scores, tuple(terms)))
        elif (choice := _choice(scores, known)) is not None:
            # PyTorch's safe Softmax asks for NaN, to give 0 for a row that is masked as a whole
            awaited = any(reader.op_type == "IsNaN" for out in node.makes for reader in out.consumers())
            found.append(MaskedSoftmax(node, scores, (scores,), *choice, awaited and choice[1] == -np.inf))
    return found


def _before_reshape(value: Value) -> Value:
    """Return what a value is a Reshape of that leaves the last axis, and so every row, as it is."""
    node = value.producer
    source = node.inputs[0] if node is not None and node.op_type == "Reshape" and not node.domain else None
    if source is None or not _is_own(source) or not source.shape or not value.shape:
        return value
    last = source.shape[-1]
    return _before_reshape(source) if isinstance(last, int) and last == value.shape[-1] else value


def _choice(scores: Value, known: ValueLookup) -> tuple[int, float] | None:
    """Tell which input of a Where is a number, and which number."""
    node = scores.producer
    if node is None or node.op_type != "Where" or node.domain:
        return None
    for slot in (1, 2):
        value = node.inputs[slot]
        array = known(value) if value is not None else None
        if array is not None and array.size == 1:
            return slot, float(array.reshape(-1)[0])
    return None


def _is_own(value: Value) -> bool:
    """Whether a value is read in one place only, and known nowhere else."""
    return len(value.uses) == 1 and not value.is_output and not value.is_input


def _adding(value: Value) -> Node | None:
    """Return the Add whose result is read in one place only."""
    node = value.producer
    return node if node is not None and node.op_type == "Add" and not node.domain and _is_own(value) else None


def _inside(value: Value) -> Iterator[Value]:
    """Visit all parts of a sum but itself."""
    node = _adding(value)
    for side in node.inputs if node is not None else ():
        if side is not None:
            yield side
            yield from _inside(side)


def _terms(value: Value) -> list[Value]:
    """Return what is added up; more than `MOST_TERMS` where there are more."""
    found: list[Value] = []
    left = [value]
    while left and len(found) <= MOST_TERMS:
        node = _adding(left[-1])
        last = left.pop()
        if node is None:
            found.append(last)
        else:
            left += [side for side in reversed(node.inputs) if side is not None]
    return found


def _sum(value: Value, arrays: ValueArrays, without: Value | None = None) -> np.ndarray:
    """Add up a part of a sum, or all but a part of it."""
    node = _adding(value)
    if value in arrays or node is None:
        return arrays[value]
    sides = [_sum(side, arrays, without) for side in node.reads if side is not without]
    return sides[0] + sides[1] if len(sides) > 1 else sides[0]


def _is_deep(array: np.ndarray) -> bool:
    """Whether an element lies so deep below the greatest of its row that its exponential would be denormal."""
    return bool((array.min(axis=-1, initial=np.inf) < array.max(axis=-1, initial=-np.inf) + DENORMAL).any())
