"""The part of a graph around a Softmax that makes one value of queries, keys and values.

Tests: `tests/optimize/test_group_query_attention.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from onnxq.ir.graph import Node, Value
from onnxq.ir.match import const, match, op, var

MOVES = frozenset(
    ("Concat", "Expand", "Identity", "Neg", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze")
)
ADMITTED = MOVES | frozenset(("Add", "Div", "MatMul", "Mul", "Softmax", "Sub", "Where"))
PROJECTED = 3  # axes of a value that a projection makes: batch, length, width
DEEPEST = -60.0  # exp of what a limit of logits cuts off is below 1e-26
SCORES = var("scores")
LIMIT = op(
    "Max",
    SCORES,
    op(
        "Add",
        op("ReduceMax", SCORES, ..., name="greatest", once=True),
        const(size=1, fits=lambda tensor: bool((tensor.numpy() <= DEEPEST).all())),
        name="deepest",
        once=True,
    ),
)


@dataclass(frozen=True)
class AttentionRegion:
    """Attention from projections to the value that the output projection reads.

    Attributes:
        entries: Queries, keys and values, each `[batch, length, width]`; or one value in which they follow each other.
        result: Of three axes, too.
        softmax: The node.
        nodes: In graph order.
        rotated: What depends on sizes alone and multiplies queries.
        known: All values that depend on sizes alone and enter.

    """

    entries: tuple[Value, ...]
    result: Value
    softmax: Node
    nodes: tuple[Node, ...]
    rotated: tuple[Value, ...]
    known: tuple[Value, ...]


class _Walk:
    """Nodes behind a value, back to values of three axes."""

    def __init__(self, sized: set[Value]) -> None:
        self.sized = sized
        self.nodes: dict[Node, None] = {}
        self.entries: dict[Value, None] = {}
        self.factors: dict[Value, None] = {}
        self.odd = False

    def back(self, value: Value) -> _Walk:
        """Collect what makes a value."""
        waiting = [value]
        while waiting and not self.odd:
            value = waiting.pop()
            if value.constant is not None or value in self.sized:
                continue
            if value.shape is None or len(value.shape) == PROJECTED:
                self.entries[value] = None
                continue
            node = value.producer
            if node is None or node.graph is not value.graph:
                self.odd = True
            elif node not in self.nodes:
                waiting += self._through(node)
        return self

    def _through(self, node: Node) -> list[Value]:
        """Admit a node and return what it reads."""
        found = match(LIMIT, node) if node.op_type == "Max" else None
        if found is not None:
            self.nodes.update(dict.fromkeys((node, found.node("deepest"), found.node("greatest"))))
            return [found["scores"]]
        if node.domain or node.op_type not in ADMITTED:
            self.odd = True
            return []
        self.nodes[node] = None
        reads = node.reads
        if node.op_type == "Mul":
            self.factors.update((v, None) for v in reads if v in self.sized or v.constant is not None)
        return reads


def find_region(softmax: Node, sized: set[Value]) -> AttentionRegion | None:
    """Find the part around a Softmax; None where it does not have the form.

    Args:
        softmax: A node of the main graph, types inferred.
        sized: `sized_values` of that graph.

    """
    path = list(_ahead(softmax))
    if len(path) < 2 or path[0].op_type != "MatMul" or softmax.inputs[0] is None:
        return None
    product, result = _product(softmax.inputs[0], sized), path[-1].outputs[0]
    if product is None or result is None or None in (*product.inputs, path[0].inputs[1]):
        return None
    first, second, third = (_Walk(sized) for _ in range(3))
    sides = [
        walk.back(value)
        for walk, value in zip((first, second, third), (*product.inputs, path[0].inputs[1]), strict=True)
        if value is not None
    ]
    whole = _Walk(sized).back(softmax.inputs[0])
    entries = tuple(next(iter(side.entries)) for side in sides if len(side.entries) == 1)
    if whole.odd or any(side.odd for side in sides) or len(entries) != 3 or set(entries[:2]) != set(whole.entries):
        return None
    if len(set(entries)) != 3:  # queries, keys and values come from one product
        entries = entries[:1] if len(set(entries)) == 1 else ()
    nodes = {**whole.nodes, **third.nodes, softmax: None, **dict.fromkeys(path)}
    if not entries or not _closed(nodes, result):
        return None
    ordered = tuple(node for node in softmax.graph.nodes if node in nodes)
    known = dict.fromkeys(value for node in ordered for value in node.inputs if value in sized)
    known_values = tuple(value for value in known if value is not None)
    return AttentionRegion(entries, result, softmax, ordered, tuple(first.factors), known_values)


def _ahead(softmax: Node) -> Iterator[Node]:
    """Follow single readers up to what gives three axes."""
    value = softmax.outputs[0]
    for _ in range(6):
        use = None if value is None else value.only_use
        if use is None or use.node.domain or use.node.graph is not softmax.graph:
            return
        node = use.node
        if node.op_type not in ("MatMul", *MOVES) or (node.op_type == "MatMul" and use.slot != 0):
            return
        yield node
        value = node.outputs[0]
        if value is not None and value.shape is not None and len(value.shape) == PROJECTED:
            return


def _product(value: Value, sized: set[Value]) -> Node | None:
    """Find the product of queries and keys behind logits."""
    for _ in range(8):
        node = value.producer
        if node is None or node.domain:
            return None
        if node.op_type == "MatMul":
            return node
        found = match(LIMIT, node) if node.op_type == "Max" else None
        ahead = [found["scores"]] if found is not None else node.reads
        ahead = [v for v in ahead if v.constant is None and v not in sized]
        if len(ahead) != 1 or not (found or node.op_type in ADMITTED):
            return None
        value = ahead[0]
    return None


def _closed(nodes: dict[Node, None], result: Value) -> bool:
    """Tell whether nothing else reads what the nodes make, but for the result."""
    made = [value for node in nodes for value in node.makes if value is not result]
    return all(not value.is_output and all(use.node in nodes for use in value.uses) for value in made)


def constant_factor(nodes: Iterable[Node]) -> float:
    """Return the product of the numbers by which nodes multiply: queries, keys and logits."""
    factor = 1.0
    for node in nodes:
        for slot, value in enumerate(node.inputs):
            tensor = None if value is None else value.constant
            if tensor is not None and tensor.size == 1 and (node.op_type == "Mul" or (node.op_type == "Div" and slot)):
                number = float(tensor.numpy().reshape(-1)[0])
                factor = factor * number if node.op_type == "Mul" else factor / (number or 1.0)
    return factor
