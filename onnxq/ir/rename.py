"""New names for values: the one change that leaves every wire where it is.

Tests: `tests/ir/test_commit.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from onnxq.ir.graph import Graph, Value


def rename_values(graph: Graph, names: Mapping[Value, str]) -> None:
    """Rename values of one scope, at a cost that is linear in the scope.

    Args:
        graph: The scope that defines the values.
        names: Fresh names.

    """
    old = {value.name: value for value in names}
    for value, name in names.items():
        if value.name in graph.infos:
            info = onnx.ValueInfoProto.FromString(bytes(graph.infos.pop(value.name)))
            info.name = name
            graph.infos[name] = memoryview(info.SerializeToString(deterministic=True))
        value.name = name
        for node in {use.node: None for use in value.uses} | ({value.producer: None} if value.producer else {}):
            node.changed = True
            node.graph.mark_dirty()
    for table in (graph.values, graph.initializers):
        if old.keys() & table.keys():
            entries = [(value.name, value) for value in table.values()]
            table.clear()
            table.update(entries)
    graph.mark_dirty()
