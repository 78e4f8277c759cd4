"""A graph of its own with the content of another, made object by object: spans of the file and weights are shared.

It is what parsing the encoded graph would give, to the order of every table: names of new values depend on that.
"""

from __future__ import annotations

from onnxq.ir.encode import encode_value, join_others
from onnxq.ir.graph import GRAPH_SPARSE, Graph, Node, Use, Value
from onnxq.ir.names import Names


def can_be_cloned(graph: Graph) -> bool:
    """Return whether a main graph has neither bodies nor sparse initializers, which only parsing reads."""
    return not any(node.bodies for node in graph.nodes) and not any(
        _field(span) == GRAPH_SPARSE for span in graph.others
    )


def clone_graph(graph: Graph) -> Graph:
    """Return a copy of a main graph for which `can_be_cloned`; types and shapes are copied, too.

    Types that the file states for inner tensors are left out, as `encode_graph` does without `verbatim`.
    """
    made = Graph(graph.encoded, None, None, graph.folder, Names())
    made.name, made.dirty = graph.name, True
    made.others = join_others(graph)
    values: dict[Value, Value] = {}
    for value in graph.initializers.values():
        copied = values[value] = _defined(made, value)
        made.initializers[value.name] = copied
    for value in graph.inputs:
        copied = values.get(value) or _defined(made, value)
        values[value] = copied
        copied.is_input = True
        made.inputs.append(copied)
    nodes = [_node(made, node, values) for node in graph.nodes]
    for before, node in zip(graph.nodes, nodes, strict=True):
        node.inputs = [None if value is None else values[value] for value in before.inputs]
        for slot, read in enumerate(node.inputs):
            if read is not None:
                read.uses[Use(node, slot)] = None
    made.nodes = nodes
    for value in graph.outputs:
        values[value].is_output = True
        made.outputs.append(values[value])
    made.infos = _infos(graph)
    for node in nodes:
        made.names.reserve(node.name)
    return made


def _defined(graph: Graph, value: Value) -> Value:
    copied = graph.define(value.name)
    copied.tensor, copied.dtype, copied.shape = value.tensor, value.dtype, value.shape
    return copied


def _node(graph: Graph, node: Node, values: dict[Value, Value]) -> Node:
    copied = node.copy(graph)
    for value in node.outputs:
        output = None if value is None else _defined(graph, value)
        copied.outputs.append(output)
        if value is not None and output is not None:
            output.producer = copied
            values[value] = output
    return copied


def _infos(graph: Graph) -> dict[str, memoryview]:
    """Return what encoding states: the types of inputs and outputs, and of what operators of other domains give."""
    shown = (*graph.inputs, *graph.outputs)
    kept = {value.name: memoryview(bytes(encode_value(graph, value))) for value in shown}
    foreign = (value for value in graph.values.values() if value.producer is not None and value.producer.domain)
    kept |= {v.name: graph.infos[v.name] for v in foreign if not v.is_output and v.name in graph.infos}
    return kept


def _field(span: memoryview) -> int:
    return span[0] >> 3 if span[0] < 0x80 else 0
