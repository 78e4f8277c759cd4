"""A Transpose between a Reshape that joins axes and one that takes them apart again is a Transpose of all of them.

PyTorch's exporter since 2.9 writes the keys of `scaled_dot_product_attention` so: it joins batch and heads, swaps the
last two axes, and splits batch and heads. Each layer computes the sizes for that again. The Transpose that is left
merges with the one before it, and onnxruntime fuses it into the product behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from onnxq.ir.graph import Value
from onnxq.ir.match import Match, NoMatch, op, var
from onnxq.ir.patch import Patch
from onnxq.ir.pattern_pass import pattern_pass
from onnxq.ir.shape_inference.dims import Shape, Size, product
from onnxq.ir.shape_inference.symbolic import Shapes

MOST_AXES = 8  # of a tensor whose axes are joined: there are so many ways to join them
JOINED = op("Reshape", var("whole"), var("told"), name="joined")
TURNED = op("Transpose", JOINED, once=True, name="turned", perm=lambda perm: perm is not None)


@pattern_pass(
    op("Reshape", TURNED, var("told_again")),
    order=230,
    because="axes are joined for a Transpose alone",
    note="moved {} Transpose{s} through Reshape",
    main_graph=True,
    shapes=True,
)
def transpose_through_reshape(patch: Patch, found: Match, shapes: Shapes) -> Value:
    """Transpose all axes, where the three nodes are proved to be that permutation.

    Sizes that a Reshape is told count as sizes: where one of them is 0, there are no elements to transpose. One size
    may be left open, for the number of elements decides about it.
    """
    whole, joined, apart = (shapes.of(value) for value in (found["whole"], found["joined"], found.result))
    if whole is None or joined is None or apart is None or not len(joined) < len(whole) == len(apart) <= MOST_AXES:
        raise NoMatch("it does not take as many axes apart as were joined")
    told = [shapes.content(found[name]) for name in ("told", "told_again")]
    for groups in _groups(len(whole), len(joined)):
        perm = [axis for group in found.node("turned").attribute("perm") for axis in groups[group]]
        sizes = [whole[axis] for axis in perm]
        products = [product([whole[axis] for axis in group]) for group in groups]
        pairs = zip((products, sizes), (joined, apart), told, strict=True)
        if all(_open(expected, shape, stated) <= 1 for expected, shape, stated in pairs):
            return patch.op("Transpose", found["whole"], hint=found.result.name, perm=perm)
    raise NoMatch("its sizes are not proved to be those from before the axes were joined")


def _groups(rank: int, count: int) -> Iterator[list[range]]:
    """Return all ways to join neighbouring axes so that so many are left."""
    for ends in combinations(range(1, rank), count - 1):
        yield [range(start, end) for start, end in zip((0, *ends), (*ends, rank), strict=True)]


def _open(expected: Sequence[Size], shape: Shape, stated: Shape | None) -> int:
    """Count the sizes of a shape that are not proved to be what is expected."""
    told = stated if stated is not None and len(stated) == len(shape) else shape
    return sum(size not in pair for size, *pair in zip(expected, shape, told, strict=True))
