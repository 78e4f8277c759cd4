"""A constant that a Loop hands on from run to run is read from outside: a weight in its body is one again.

TensorFlow's recurrent layers reach ONNX so where they stay a Loop: tf2onnx carries their weights as state.

Tests: `tests/ir/test_loop_state.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnxq.ir.graph import Node
from onnxq.ir.loop_state import FIRST_INPUT, unchanged_state
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import Patch


@register_pass(order=100, note="hoisted {} constant{s} out of Loop state")
def hoist_loop_constants(model: Model) -> Iterator[Patch]:
    """Describe one patch for each such state, the last of a Loop first: those behind it move up."""
    for graph in model.graph.graphs():
        for node in graph.nodes:
            if node.operator == "Loop":
                for index in reversed([*_constants(node)]):
                    patch = Patch(graph, node, "the state is the same in every run")
                    patch.uncarry(node, index)
                    yield patch


def _constants(node: Node) -> Iterator[int]:
    for index in unchanged_state(node):
        start, behind = node.inputs[FIRST_INPUT + index], node.outputs[index] if index < len(node.outputs) else None
        if start is not None and start.constant is not None and (behind is None or not behind.is_output):
            yield index
