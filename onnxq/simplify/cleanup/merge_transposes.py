"""A Transpose behind another becomes one with it, or none; axes of length 1 may come and go between them."""

from __future__ import annotations

from collections.abc import Iterator

from onnxq.ir.graph import Graph, Node, Value
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import Patch, named_after
from onnxq.simplify.opset_builders import add_with_axes
from onnxq.simplify.regions.axis_tracking import constant_axes

NEW: None = None  # an axis that was inserted


@register_pass(order=260, note="merged {} Transpose with the one before")
def merge_transposes(model: Model) -> Iterator[Patch]:
    """Describe one change for each Transpose that has another before it, with nothing but (un)squeezed axes between.

    onnxruntime merges them itself in float models, but not around QuantizeLinear and DequantizeLinear.
    """
    for graph in model.graph.graphs():
        yield from _in_graph(graph, model.opset)


def _in_graph(graph: Graph, opset: int) -> Iterator[Patch]:
    taken: set[Node] = set()
    for node in graph.nodes:
        chain = _chain(node)
        if chain is not None and taken.isdisjoint(chain):
            source, rank = chain[0].inputs[0], len(chain[0].attribute("perm"))
            axes = _followed(chain, rank)
            output = node.outputs[0]
            alone = all(_only_reader(before) for before in chain[:-1])
            if source is None or output is None or axes is None or not (alone or _in_order(axes)):
                continue
            patch = Patch(graph, node, "two transpositions are one")
            result = _written(patch, source, axes, rank, output.name, opset)
            if result is source and (output.is_output or source.constant is not None):
                continue
            taken.update(chain)
            if patch.nodes:
                named_after(patch, node)
            patch.replace(output, result)
            yield patch


def _chain(last: Node) -> list[Node] | None:
    """Return the nodes from the Transpose before a Transpose to it."""
    if not _is_transpose(last):
        return None
    chain = [last]
    while True:
        source = chain[0].inputs[0]
        before = source.producer if source is not None and source.graph is last.graph else None
        if before is None or before.domain:
            return None
        if _is_transpose(before):
            return [before, *chain]
        if before.op_type not in ("Squeeze", "Unsqueeze") or constant_axes(before) is None:
            return None
        chain.insert(0, before)


def _is_transpose(node: Node) -> bool:
    return node.op_type == "Transpose" and not node.domain and node.attribute("perm") is not None


def _only_reader(node: Node) -> bool:
    output = node.outputs[0]
    return output is not None and not output.is_output and len(output.uses) == 1


def _followed(chain: list[Node], rank: int) -> list[int | None] | None:
    """Return for each axis behind a chain the axis before it, or NEW; None where an inserted one is dropped."""
    axes: list[int | None] = list(range(rank))
    for node in chain:
        if node.op_type == "Transpose":
            axes = [axes[axis] for axis in node.attribute("perm")]
            continue
        stated = constant_axes(node) or []
        if node.op_type == "Squeeze":
            gone = {axis % len(axes) for axis in stated}
            if any(axes[axis] is NEW for axis in gone):
                return None
            axes = [axis for place, axis in enumerate(axes) if place not in gone]
        else:
            inserted = {axis % (len(axes) + len(stated)) for axis in stated}
            left = iter(axes)
            axes = [NEW if place in inserted else next(left) for place in range(len(axes) + len(stated))]
    return axes


def _in_order(axes: list[int | None]) -> bool:
    kept = [axis for axis in axes if axis is not NEW]
    return kept == sorted(kept)


def _written(patch: Patch, source: Value, axes: list[int | None], rank: int, hint: str, opset: int) -> Value:
    """Describe what a chain does: drop axes, transpose, insert axes, each only where needed."""
    kept = [axis for axis in axes if axis is not NEW]
    dropped = sorted(set(range(rank)) - set(kept))
    inserted = [place for place, axis in enumerate(axes) if axis is NEW]
    value = source
    if dropped:
        value = add_with_axes(patch, "Squeeze", value, dropped, opset, hint)
    if kept != sorted(kept):
        remaining = sorted(kept)
        value = patch.op("Transpose", value, hint=hint, perm=[remaining.index(axis) for axis in kept])
    return add_with_axes(patch, "Unsqueeze", value, inserted, opset, hint) if inserted else value
