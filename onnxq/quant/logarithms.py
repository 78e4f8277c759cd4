"""Which products a logarithm follows: their small results count as much as their large ones.

A spectrum in bands spans many orders of magnitude, and so do its logarithms' arguments. Codes of 8 bits have one step
for all of them, which is larger than most: of the decibels of a quiet band nothing is left.
"""

from __future__ import annotations

from collections.abc import Iterable

from onnxq.ir import Graph, Node

# What may stand between: it moves values, or changes all of them alike, or bounds them from below
MOVING = frozenset(("Cast", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"))
BETWEEN = MOVING | {"Abs", "Add", "Clip", "Max", "Mul", "Pow", "Relu", "Sqrt"}


def before_logarithms(graphs: Iterable[Graph]) -> set[Node]:
    """Give what a logarithm reads, and what stands between both."""
    found: set[Node] = set()
    for graph in graphs:
        left = [node for node in graph.nodes if node.op_type == "Log" and not node.domain]
        while left:
            for value in left.pop().inputs:
                maker = value.producer if value is not None else None
                if maker is None or maker in found:
                    continue
                found.add(maker)
                if maker.op_type in BETWEEN:
                    left.append(maker)
    return found
