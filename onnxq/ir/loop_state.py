"""State that a Loop carries from one run of its body to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from onnxq.ir.graph import Graph, Node, Use, Value

FIRST_INPUT, FIRST_OUTPUT = 2, 1  # trip count and condition stand before; source: onnx operator specification, Loop
Rewire = Callable[[Node, int, Value | None], None]


def body_of(node: Node) -> Graph:
    """Return the body of a Loop."""
    return node.bodies["body"][0]


def unchanged_state(node: Node) -> Iterator[int]:
    """Yield the numbers of the states that every run of a Loop's body hands on as it got them, once."""
    body = body_of(node)
    for index in range(len(node.inputs) - FIRST_INPUT):
        given, place = body.inputs[FIRST_INPUT + index], FIRST_OUTPUT + index
        value: Value | None = body.outputs[place]
        while value is not None and value.producer is not None and value.producer.operator == "Identity":
            value = value.producer.inputs[0]
        if value is given and given not in (*body.outputs[:place], *body.outputs[place + 1 :]):
            yield index


def uncarry(node: Node, index: int, rewire: Rewire) -> list[Value]:
    """Let a Loop carry one state less, whose readers in the body and behind read what it began with.

    Args:
        node: The Loop, changed in place, as is its body.
        index: Number of the state, one that stays as it is and is no output of the graph.
        rewire: Lets an input of a node read another value.

    Returns:
        Values that lost a reader.

    """
    body = body_of(node)
    start, inner = node.inputs[FIRST_INPUT + index], body.inputs[FIRST_INPUT + index]
    behind = node.outputs[index] if index < len(node.outputs) else None
    for value in (inner, behind):
        for use in list(value.uses) if value is not None else ():
            rewire(use.node, use.slot, start)
    if behind is not None:
        del node.graph.values[behind.name]
    del node.outputs[index : index + 1], body.inputs[FIRST_INPUT + index]
    _without_input(node, FIRST_INPUT + index)
    handed_on = body.outputs.pop(FIRST_OUTPUT + index)
    handed_on.is_output = handed_on in body.outputs
    inner.is_input = False
    for value in {inner, handed_on}:
        body.infos.pop(value.name, None)
    del body.values[inner.name]
    node.changed = True
    body.mark_dirty()
    return [value for value in (start, handed_on) if value is not None]


def _without_input(node: Node, slot: int) -> None:
    """Leave out an input, so that those behind it move up."""
    for at, value in enumerate(node.inputs):
        if value is not None:
            del value.uses[Use(node, at)]
    del node.inputs[slot]
    for at, value in enumerate(node.inputs):
        if value is not None:
            value.uses[Use(node, at)] = None
