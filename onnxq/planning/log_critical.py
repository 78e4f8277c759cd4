"""Find products in front of a logarithm, whose small results count as much as their large ones.

A spectrum in bands spans many orders of magnitude, and so do its logarithms' arguments. Codes of 8 bits have one step
for all of them, which is larger than most. The decibels of a quiet band are lost. So it is with the spectrum itself, a
product with sines and cosines, of whose squares the bands are sums.
"""

from __future__ import annotations

from collections.abc import Iterable

from onnxq.ir import Graph, Node
from onnxq.ir.operator_traits import Trait, operators_with

# Operators that may stand between: they move values, change all alike, or bound them from below
BETWEEN = operators_with(Trait.MOVES) | {"Abs", "Add", "Cast", "Clip", "Max", "Mul", "Pow", "Relu", "Sqrt"}
SIZES = frozenset(("Abs", "Pow", "ReduceL2", "ReduceSumSquare", "Sqrt"))  # what makes the size of a number of it
PRODUCTS = frozenset(("Conv", "Gemm", "MatMul"))


def before_logarithms(graphs: Iterable[Graph]) -> set[Node]:
    """Return what a logarithm reads, and what stands between both; behind squares, what these are made of as well."""
    found: set[Node] = set()
    for graph in graphs:
        direct, _ = _before(node for node in graph.nodes if node.op_type == "Log" and not node.domain)
        behind, spectra = _before(node for node in direct if node.op_type in PRODUCTS and not node.domain)
        found |= direct | (behind if spectra else set())
    return found


def _before(nodes: Iterable[Node]) -> tuple[set[Node], set[Node]]:
    """Return what nodes read, up to the first operator that computes anything else, and which products are squared."""
    found, squared = set[Node](), set[Node]()
    left = [(node, False) for node in nodes]
    seen = set(left)
    while left:
        reader, sizes = left.pop()
        sizes = sizes or reader.op_type in SIZES or (reader.op_type == "Mul" and len({*reader.inputs}) == 1)
        for value in reader.inputs:
            maker = value.producer if value is not None else None
            if maker is None or (maker, sizes) in seen:
                continue
            seen.add((maker, sizes))
            found.add(maker)
            if sizes and maker.op_type in PRODUCTS:
                squared.add(maker)
            if maker.op_type in BETWEEN | SIZES:
                left.append((maker, sizes))
    return found, squared
