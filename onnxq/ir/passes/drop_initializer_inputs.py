"""Initializers that are listed as graph inputs, as IR version 3 demanded, become constants.

Tests: `tests/ir/test_passes.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import Patch

FIRST_IR_WITHOUT_LISTING = 4  # source: onnx/docs/IR.md, "initializer" of graphs


@register_pass(order=50, note="removed {} initializer{s} from the graph inputs")
def drop_initializer_inputs(model: Model) -> Iterator[Patch]:
    """Describe the drops.

    Since IR version 4 a listed initializer is a default that callers may replace. Exporters that keep the old habit
    list all weights; if most initializers are not listed, the few listed ones were chosen, and they stay.
    """
    graph = model.graph
    listed = [value for value in graph.inputs if value.tensor is not None]
    chosen = model.ir_version >= FIRST_IR_WITHOUT_LISTING and 2 * len(listed) < len(graph.initializers)
    if chosen or not listed:
        return
    model.ir_version = max(model.ir_version, FIRST_IR_WITHOUT_LISTING)
    for value in listed:
        patch = Patch(graph, reason="an initializer that is an input is no constant")
        patch.drop_input(value)
        yield patch
