"""Initializers that nothing reads go: exporters leave weights behind that they folded, in float and at full size.

Tests: `tests/ir/test_passes.py`.
"""

from __future__ import annotations

from onnxq.ir.graph import Value
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass

LEAST = 1 << 10  # bytes; smaller ones may stay


@register_pass(order=60, note="removed {} unused initializer{s}")
def remove_unused_initializers(model: Model) -> int:
    """Leave them out, in bodies too; those that are inputs or outputs stay."""
    count = 0
    for graph in model.graph.graphs():
        for value in [value for value in graph.initializers.values() if _is_unread(value)]:
            del graph.initializers[value.name], graph.values[value.name]
            graph.mark_dirty()
            count += 1
    return count


def _is_unread(value: Value) -> bool:
    unread = not (value.uses or value.is_input or value.is_output)
    return unread and value.tensor is not None and value.tensor.nbytes >= LEAST
