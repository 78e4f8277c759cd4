"""Remove the notes of PyTorch's exporter on the source of every node: up to half of a small int8 model.

Tests: `tests/ir/test_passes.py`.
"""

from __future__ import annotations

import re

from onnxq.ir.graph import Node
from onnxq.ir.model import Model
from onnxq.ir.parse import first_text
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.proto_fields import NODE_DOC, NODE_METADATA
from onnxq.ir.wire import LENGTH_DELIMITED, fields

# Lines of source with their paths, the traced call, and names of classes. `namespace` holds the last as well and stays,
# with the names of modules. Source: torch/onnx/_internal/exporter/_core.py
PLACE = re.compile(rb"\S.*\.py\(\d+\): \S+$")
TRACES = frozenset(f"pkg.torch.onnx.{name}" for name in ("stack_trace", "fx_node", "class_hierarchy"))


@register_pass(order=20, note="removed PyTorch's source metadata of {} node{s}")
def strip_exporter_metadata(model: Model) -> int:
    """Write the nodes without those notes, and count the nodes that had some."""
    nodes = [node for node in model.graph.walk() if _drop(node)]
    for node in nodes:
        node.graph.mark_dirty()
    return len(nodes)


def _is_trace(text: memoryview) -> bool:
    """Tell whether a description is a traceback, as PyTorch wrote it up to 1.12: a place in a Python file each line."""
    lines = bytes(text).strip().splitlines()
    return bool(lines) and all(PLACE.match(line) for line in lines)


def _drop(node: Node) -> bool:
    """Leave the notes out of what is kept of a node; tell whether there were any."""
    data = node.encoded
    if data is None:
        return False
    kept, found = list[memoryview](), False
    for number, wire_type, start, payload, end in fields(data):
        noted = number == NODE_METADATA and wire_type == LENGTH_DELIMITED and first_text(data[payload:end]) in TRACES
        noted = noted or (number == NODE_DOC and wire_type == LENGTH_DELIMITED and _is_trace(data[payload:end]))
        found = found or noted
        if not noted:
            kept.append(data[start:end])
    if found:
        node.encoded = memoryview(b"".join(kept))
    return found
