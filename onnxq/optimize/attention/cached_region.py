"""The part of a graph around a Softmax, from projections and caches to the value that the output projection reads.

Tests: `tests/optimize/test_cached_attention.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from onnxq.ir.graph import Node, Value
from onnxq.optimize.attention.region import ADMITTED, PROJECTED
from onnxq.optimize.attention.sizes import MEASURES

PATH = ADMITTED | frozenset(("Cast", "IsNaN"))
HEADED = PROJECTED + 1  # axes of a value with one for heads
FURTHEST = 10  # nodes from probabilities to the result
HEADS_FIRST = [0, 2, 1, 3]  # order of axes
LENGTH = (2, -2)  # the axis along which a cache grows


@dataclass(frozen=True)
class Side:
    """Queries, keys or values.

    Attributes:
        entry: What a projection gives, `[batch, length, width]`, or `[batch, length, heads, size]` behind a norm.
        cache: Those of earlier tokens, `[batch, heads, past, size]`; None without.
        grown: The cache with the new ones behind it; likewise.

    """

    entry: Value
    cache: Value | None = None
    grown: Value | None = None


@dataclass(frozen=True)
class CachedRegion:
    """Attention whose mask, rotations and caches come from outside.

    Attributes:
        sides: Of queries, keys and values.
        result: `[batch, length, width]`.
        softmax: The node.
        nodes: In graph order.
        mask: What is added to logits, or where they count; None without.
        rotations: Values that queries are multiplied by and that depend on places.
        known: All values that do not depend on what was projected, and enter.
        measured: Nodes elsewhere that read the shape of a value inside.

    """

    sides: tuple[Side, Side, Side]
    result: Value
    softmax: Node
    nodes: tuple[Node, ...]
    mask: Value | None
    rotations: tuple[Value, ...]
    known: tuple[Value, ...]
    measured: tuple[Node, ...] = ()

    @property
    def caches(self) -> tuple[Side, ...]:
        """The sides that have a cache."""
        return tuple(side for side in self.sides if side.cache is not None)


class _Walk:
    """Nodes behind a value, back to projections and caches."""

    def __init__(self, told: set[Value], ends: Collection[Value] = ()) -> None:
        self.told, self.ends = told, ends
        self.nodes: dict[Node, None] = {}
        self.entries: dict[Value, None] = {}
        self.caches: dict[Value, Value] = {}
        self.factors: dict[Value, None] = {}
        self.odd = False

    def back(self, value: Value) -> _Walk:
        """Collect what makes a value."""
        waiting = [value]
        while waiting and not self.odd:
            found = waiting.pop()
            if found.constant is not None or found in self.told:
                continue
            node = found.producer
            rank = None if found.shape is None else len(found.shape)
            inside = node is not None and node.graph is value.graph and not node.domain and node.op_type in PATH
            inside = inside and found not in self.ends
            if rank == PROJECTED and found is not value:
                self.entries[found] = None
            elif inside and node is not None:
                waiting += [] if node in self.nodes else self._through(node)
            elif rank == HEADED:
                self.entries[found] = None
            else:
                self.odd = True
        return self

    def _through(self, node: Node) -> list[Value]:
        """Admit a node and return what it reads that depends on projections; a cache is no part of that."""
        self.nodes[node] = None
        reads = [value for value in node.reads if value.constant is None]
        if node.op_type == "Mul":
            self.factors.update((value, None) for value in reads if value in self.told)
        reads = [value for value in reads if value not in self.told]
        made = node.outputs[0]
        if node.op_type == "Concat" and node.attribute("axis") in LENGTH and len(reads) == 2 and made is not None:
            self.caches[reads[0]] = made
            reads = reads[1:]
        return reads

    def past_norms(self, value: Value) -> _Walk:
        """Return the walk that ends in front of a Transpose of heads if it comes to several entries.

        A norm of heads that is written as small nodes reads what it norms twice.
        """
        turned = [node.inputs[0] for node in self.nodes if node.attribute("perm") == HEADS_FIRST]
        ends = [one for one in turned if one is not None and one.shape is not None and len(one.shape) == HEADED]
        if self.odd or len(self.entries) < 2 or not ends:
            return self
        return _Walk(self.told, ends).back(value)

    def side(self) -> Side | None:
        """Return the one entry and its cache, if it is so simple."""
        if self.odd or len(self.entries) != 1 or len(self.caches) > 1:
            return None
        cache, grown = next(iter(self.caches.items()), (None, None))
        return Side(next(iter(self.entries)), cache, grown)


def find_cached_region(softmax: Node, told: set[Value]) -> CachedRegion | None:
    """Find the part around a Softmax; None where it does not have the form.

    Args:
        softmax: A node, types inferred.
        told: Values of its graph that do not depend on what is projected.

    """
    ahead = list(_ahead(softmax))
    mixed = next((node for node in ahead if node.op_type == "MatMul"), None)
    logits = softmax.inputs[0]
    if mixed is None or logits is None or None in mixed.inputs or softmax.attribute("axis", -1) not in (-1, 3):
        return None
    result, found = ahead[-1].outputs[0], _product(logits, told)
    if result is None or result.shape is None or len(result.shape) != PROJECTED or found is None:
        return None
    product, mask = found
    read = [value for value in (*product.inputs, mixed.inputs[1]) if value is not None]
    walks = [_Walk(told).back(value).past_norms(value) for value in read]
    sides = [walk.side() for walk in walks]
    whole = _Walk(told, {end for walk in walks for end in walk.ends}).back(result)
    if len(sides) != 3 or sides[0] is None or sides[1] is None or sides[2] is None or whole.odd:
        return None
    made = (sides[0], sides[1], sides[2])
    grown = [side.grown for side in made if side.grown is not None]
    measured = _measuring(whole.nodes, {result, *grown})
    if made[0].cache is not None or len(grown) == 1 or any(map(_is_sized, grown)) or measured is None:
        return None
    if sum(node.op_type == "Softmax" for node in whole.nodes) != 1 or len({side.entry for side in made}) != 3:
        return None
    ordered = tuple(node for node in softmax.graph.nodes if node in whole.nodes)
    known = dict.fromkeys(value for node in ordered for value in node.inputs if value in told)
    entering = tuple(value for value in known if value is not None)
    return CachedRegion(made, result, softmax, ordered, mask, tuple(walks[0].factors), entering, measured)


def _ahead(softmax: Node) -> Iterator[Node]:
    """Follow probabilities to what has three axes; a guard against NaN reads them twice."""
    value = softmax.outputs[0]
    for _ in range(FURTHEST):
        if value is None or value.is_output:
            return
        nodes = [node for node in value.consumers() if node.op_type not in ("IsNaN", *MEASURES) or node.domain]
        if len(nodes) != 1 or nodes[0].graph is not softmax.graph or nodes[0].op_type not in PATH:
            return
        yield nodes[0]
        value = nodes[0].outputs[0]
        if value is not None and value.shape is not None and len(value.shape) == PROJECTED:
            return


def _product(logits: Value, told: set[Value]) -> tuple[Node, Value | None] | None:
    """Find the product of queries and keys behind logits, and the mask on the way."""
    mask: Value | None = None
    value = logits
    for _ in range(FURTHEST):
        node = value.producer
        if node is None or node.domain or node.op_type not in PATH:
            return None
        if node.op_type == "MatMul":
            return (node, mask) if len(node.inputs) == 2 and None not in node.inputs else None
        ahead = [v for v in node.reads if v.constant is None and v not in told]
        if len(ahead) != 1:
            return None
        masks = [v for v in node.reads if v in told]
        if node.op_type in ("Add", "Where") and masks:
            if mask is not None:
                return None
            mask = masks[0]
        value = ahead[0]
    return None


def _measuring(nodes: dict[Node, None], kept: set[Value | None]) -> tuple[Node, ...] | None:
    """Return the nodes elsewhere that read shapes of values inside; None where anything else but what is kept is read.

    Sizes that only the nodes themselves need do not count.
    """
    idle: set[Node] = set()
    found: dict[Node, None] = {}
    for value in (value for node in nodes for value in node.makes if value not in kept):
        outside = [use.node for use in value.uses if use.node not in nodes and not _is_idle(use.node, nodes, idle)]
        if value.is_output or any(map(_is_more_than_shape, outside)):
            return None
        found.update(dict.fromkeys(outside))
    return tuple(found)


def _is_more_than_shape(node: Node) -> bool:
    """Tell whether a node is not a Shape that its own graph alone reads."""
    made = node.outputs[0]
    if node.op_type != "Shape" or node.domain or made is None or made.is_output:
        return True
    return any(use.node.graph is not node.graph for use in made.uses)


def _is_sized(grown: Value) -> bool:
    """Tell whether sizes of a grown cache are measured in a way that cannot be written without it."""
    nodes = grown.consumers()
    return any(node.op_type == "Size" or (node.op_type == "Shape" and node.graph is not grown.graph) for node in nodes)


def _is_idle(node: Node, nodes: dict[Node, None], idle: set[Node]) -> bool:
    """Tell whether a node measures sizes for none but the nodes."""
    waiting, seen = [node], dict[Node, None]()
    while waiting:
        one = waiting.pop()
        if one in seen or one in idle or one in nodes:
            continue
        if one is node and one.op_type not in MEASURES:
            return False
        seen[one] = None
        for value in one.outputs:
            if value is not None:
                if value.is_output:
                    return False
                waiting += value.consumers()
                if any(use.node.graph is not node.graph for use in value.uses):
                    return False
        if len(seen) > 64:
            return False
    idle |= set(seen)
    return True
