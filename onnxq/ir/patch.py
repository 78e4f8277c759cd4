"""A change, described as a `Patch`: nodes and constants to insert, values to replace, wires to move, and why.

Nothing in the graph changes before `onnxq.ir.commit`.

Tests: `tests/ir/test_pass_manager.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from onnxq.ir.graph import Graph, Node, Value
from onnxq.ir.tensor import ArrayTensor, Tensor


class Patch:
    """A described change to one graph.

    Args:
        graph: The scope that receives the new nodes.
        anchor: The node that the change is about: new nodes go right before it, or behind their last input.
        reason: Why, in a few words; shown when the change turns out to be invalid.

    """

    def __init__(self, graph: Graph, anchor: Node | None = None, reason: str = "") -> None:
        self.graph = graph
        self.anchor = anchor
        self.reason = reason
        self.nodes: list[Node] = []
        self.constants: list[Value] = []
        self.replaced: list[tuple[Value, Value]] = []
        self.rewired: list[tuple[Node, int, Value | None]] = []
        self.removed: list[Node] = []
        self.frozen: list[tuple[Value, Tensor]] = []
        self.dropped_inputs: list[Value] = []
        self.renamed: list[tuple[Value, str]] = []
        self.inputs: list[Value] = []
        self.shown: list[Value] = []
        self.uncarried: list[tuple[Node, int]] = []

    def constant(self, array: np.ndarray | Tensor, hint: str) -> Value:
        """Add an initializer, named `hint` or freshly after it."""
        tensor = array if isinstance(array, Tensor) else ArrayTensor(np.asarray(array))
        value = Value(self.graph.names.fresh(hint), self.graph)
        value.tensor = tensor
        value.dtype, value.shape = tensor.dtype, tensor.shape
        self.constants.append(value)
        return value

    def input(self, dtype: int, shape: tuple[int | str | None, ...], hint: str) -> Value:
        """Add an input to the graph, which runs have to give."""
        value = Value(self.graph.names.fresh(hint), self.graph)
        value.is_input, value.dtype, value.shape = True, dtype, shape
        self.inputs.append(value)
        return value

    def node(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        *,
        outputs: Sequence[str],
        domain: str = "",
        name: str = "",
        **attributes: Any,
    ) -> list[Value]:
        """Add a node.

        Args:
            op_type: Name of the operator.
            inputs: Values in order; None for an optional input that is absent.
            outputs: One name hint for each output.
            domain: Operator set domain; empty for `ai.onnx`.
            name: Hint for the node's name; the first output's name without it.
            attributes: Python numbers, strings, lists and NumPy arrays.

        Returns:
            The output values.

        """
        hints = [self.graph.names.fresh(hint) for hint in outputs]
        node = Node(op_type, domain, self.graph.names.fresh(name) if name else hints[0], self.graph)
        node.inputs = list(inputs)
        node.changed = True
        for hint in hints:
            value = Value(hint, self.graph)
            value.producer = node
            node.outputs.append(value)
        for key, attribute in attributes.items():
            value_of = onnx.numpy_helper.from_array(attribute) if isinstance(attribute, np.ndarray) else attribute
            node.spans[key] = memoryview(
                onnx.helper.make_attribute(key, value_of).SerializeToString(deterministic=True)
            )
        self.nodes.append(node)
        return node.makes

    def op(self, op_type: str, *inputs: Value | None, hint: str = "", **attributes: Any) -> Value:
        """Add a node with one output, named `hint`."""
        return self.node(op_type, inputs, outputs=[hint or op_type], **attributes)[0]

    def replace(self, old: Value, new: Value) -> None:
        """Let every reader of `old` but this patch's nodes, and the graph where `old` is an output, have `new` instead.

        The node that makes `new` takes over the old name, so that no reader changes its bytes. It does so if it is of
        this patch, if `old` is an output, or if the patch removes the node that made `old`. A graph input or
        initializer that is listed as an output stays that output: only its readers change.
        """
        self.replaced.append((old, new))

    def rewire(self, node: Node, index: int, new: Value | None) -> None:
        """Let input `index` of one node read `new` (None: leave the optional input out)."""
        self.rewired.append((node, index, new))

    def remove(self, node: Node) -> None:
        """Take a node out; its outputs must be replaced by a patch of the same commit, or unread."""
        self.removed.append(node)

    def freeze(self, value: Value, tensor: Tensor) -> None:
        """Turn an output of a node into an initializer of the same name; a node whose outputs are all gone goes too."""
        self.frozen.append((value, tensor))

    def drop_input(self, value: Value) -> None:
        """Take an initializer off the inputs of the graph, so that it is a constant."""
        self.dropped_inputs.append(value)

    def uncarry(self, node: Node, index: int) -> None:
        """Take a state that stays as it is away from a Loop, whose body reads it from outside; the last ones first."""
        self.uncarried.append((node, index))

    def show(self, value: Value) -> None:
        """List a value as an output of the graph too, so that runs give it and nothing that makes it goes."""
        self.shown.append(value)

    def rename(self, value: Value, hint: str) -> None:
        """Name a value inside the graph freshly after `hint`: one that means something else from now on."""
        self.renamed.append((value, hint))


def named_after(patch: Patch, node: Node) -> None:
    """Name the last node of a patch after the one that it replaces, so that recipes still find it."""
    if node.name:
        patch.nodes[-1].name = node.name
