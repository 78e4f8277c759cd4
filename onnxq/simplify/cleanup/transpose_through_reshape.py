"""A Transpose between a Reshape that joins axes and one that takes them apart again is a Transpose of all of them.

PyTorch's exporter since 2.9 writes the keys of `scaled_dot_product_attention` so: batch and heads are joined, the last
two axes swapped, batch and heads taken apart, with the sizes for that computed anew in each layer. What is left is one
with the Transpose before it, and onnxruntime takes it for part of the product behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from onnxq.ir.graph import Graph, Node
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import Patch, named_after
from onnxq.ir.shape_inference.dims import Shape, Size, product
from onnxq.ir.shape_inference.symbolic import Shapes

MOST_AXES = 8  # of a tensor whose axes are joined: there are so many ways to join them


@register_pass(order=230, note="wrote {} Transpose{s} of joined axes without joining them")
def joined_axes(model: Model) -> Iterator[Patch]:
    """Describe one change for each Transpose of the main graph that has such Reshape nodes around it."""
    graph = model.graph
    found = [around for node in graph.nodes if (around := _around(node)) is not None]
    shapes = Shapes(graph, model.opset) if found else None
    for join, node, split in found:
        assert shapes is not None
        perm = _perm(join, node, split, shapes)
        source, output = join.inputs[0], split.outputs[0]
        if perm is None or source is None or output is None:
            continue
        patch = Patch(graph, split, "axes are joined for a Transpose alone")
        result = patch.op("Transpose", source, hint=output.name, perm=perm)
        named_after(patch, split)
        patch.replace(output, result)
        yield patch


def _around(node: Node) -> tuple[Node, Node, Node] | None:
    """Give the Reshape before a Transpose, the Transpose, and the Reshape that alone reads it."""
    if node.op_type != "Transpose" or node.domain or node.attribute("perm") is None:
        return None
    source, output = node.inputs[0], node.outputs[0]
    join = source.producer if source is not None else None
    use = output.only_use if output is not None else None
    split = use.node if use is not None else None
    if join is None or split is None or not (_reshapes(join, node.graph) and _reshapes(split, node.graph)):
        return None
    return join, node, split


def _reshapes(node: Node, graph: Graph) -> bool:
    return node.op_type == "Reshape" and not node.domain and node.graph is graph


def _perm(join: Node, node: Node, split: Node, shapes: Shapes) -> list[int] | None:
    """Give the permutation of all axes that the three nodes are; None where that is not proved.

    Sizes that a Reshape is told count as sizes: where one of them is 0, there are no elements to transpose. One size
    may be left open, for the number of elements decides about it.
    """
    whole, joined = shapes.of(join.inputs[0]), shapes.of(join.outputs[0])
    apart, order = shapes.of(split.outputs[0]), node.attribute("perm")
    if whole is None or joined is None or apart is None or not len(joined) < len(whole) == len(apart) <= MOST_AXES:
        return None
    for groups in _groups(len(whole), len(joined)):
        perm = [axis for group in order for axis in groups[group]]
        sizes = [whole[axis] for axis in perm]
        products = [product([whole[axis] for axis in group]) for group in groups]
        told = (shapes.content(reshape.inputs[1]) for reshape in (join, split))
        if all(
            _open(expected, shape, stated) <= 1
            for expected, shape, stated in zip((products, sizes), (joined, apart), told, strict=True)
        ):
            return perm
    return None


def _groups(rank: int, count: int) -> Iterator[list[range]]:
    """Give all ways to join neighbouring axes so that so many are left."""
    for ends in combinations(range(1, rank), count - 1):
        yield [range(start, end) for start, end in zip((0, *ends), (*ends, rank), strict=True)]


def _open(expected: Sequence[Size], shape: Shape, stated: Shape | None) -> int:
    """Count the sizes of a shape that are not proved to be what is expected."""
    told = stated if stated is not None and len(stated) == len(shape) else shape
    return sum(size not in pair for size, *pair in zip(expected, shape, told, strict=True))
