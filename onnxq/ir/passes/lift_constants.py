"""Constant nodes become initializers of the same name, in bodies too, so that weights inside them can be quantized.

Tests: `tests/ir/test_passes.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxq.ir.graph import Node
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import Patch
from onnxq.ir.tensor import ArrayTensor, Tensor

# Attributes of Constant that are no tensors; source: onnx operator specification, Constant-12
NUMBERS = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
STRINGS = ("value_string", "value_strings")


@register_pass(order=70, note="lifted {} Constant node{s} to initializers")
def lift_constants(model: Model) -> Iterator[Patch]:
    """Describe the lifts; the elements stay where they are in the file."""
    found = False
    for graph in model.graph.graphs():
        for node in graph.nodes:
            if node.op_type != "Constant" or node.domain or not node.outputs or node.outputs[0] is None:
                continue
            tensor = _tensor(node)
            if tensor is not None:
                patch = Patch(graph, node, "a constant is easier to see as an initializer")
                patch.freeze(node.outputs[0], tensor)
                yield patch
                found = True
    if found:
        model.ir_version = max(model.ir_version, 4)  # before, every initializer had to be an input


def _tensor(node: Node) -> Tensor | None:
    """The constant of a Constant node; None for sparse ones, which stay nodes."""
    if "value" in node.spans:
        return node.tensor_attribute("value")
    for name, dtype in NUMBERS.items():
        if name in node.spans:
            return ArrayTensor(np.array(node.attribute(name), dtype))
    for name in STRINGS:
        if name in node.spans:
            return ArrayTensor(np.array(node.attribute(name), object))
    return None
