"""A change, first described as a `Patch` and then applied in one place: `commit`.

A patch inserts nodes and constants, lets a new value take the place of an old one, moves single wires, and says why.
Nothing in the graph changes before `commit`, and `commit` costs time linear in the graph and the patches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx

from onnxq.ir.graph import Graph, Node, Use, Value
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

    def constant(self, array: np.ndarray | Tensor, hint: str) -> Value:
        """Add an initializer, named `hint` or freshly after it."""
        tensor = array if isinstance(array, Tensor) else ArrayTensor(np.asarray(array))
        value = Value(self.graph.names.fresh(hint), self.graph)
        value.tensor = tensor
        value.dtype, value.shape = tensor.dtype, tensor.shape
        self.constants.append(value)
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
        node = Node(op_type, domain, name or hints[0], self.graph)
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
        return [value for value in node.outputs if value is not None]

    def op(self, op_type: str, *inputs: Value | None, hint: str = "", **attributes: Any) -> Value:
        """Add a node with one output, named `hint`."""
        return self.node(op_type, inputs, outputs=[hint or op_type], **attributes)[0]

    def replace(self, old: Value, new: Value) -> None:
        """Let every reader of `old`, and the graph where `old` is an output, have `new` instead.

        Where a node of this patch makes `new`, that node takes over the old name, so that no reader changes its bytes.
        """
        self.replaced.append((old, new))

    def rewire(self, node: Node, index: int, new: Value | None) -> None:
        """Let input `index` of one node read `new` (None: leave the optional input out)."""
        self.rewired.append((node, index, new))

    def remove(self, node: Node) -> None:
        """Take a node out; its outputs must be replaced by the same patch, or unread."""
        self.removed.append(node)

    def freeze(self, value: Value, tensor: Tensor) -> None:
        """Turn the output of a node into an initializer of the same name, and take the node out."""
        self.frozen.append((value, tensor))

    def drop_input(self, value: Value) -> None:
        """Take an initializer off the inputs of the graph, so that it is a constant."""
        self.dropped_inputs.append(value)


def commit(patches: Iterable[Patch]) -> None:
    """Apply patches to their graphs, in order; the only place where a graph changes.

    Nodes and initializers that lose their last reader go too. The order of nodes stays topological: a new node stands
    right before its patch's anchor, or right behind the last node it reads from if that is later.
    """
    by_graph: dict[int, tuple[Graph, list[Patch]]] = {}
    for patch in patches:
        by_graph.setdefault(id(patch.graph), (patch.graph, []))[1].append(patch)
    for graph, own in by_graph.values():
        graph.mark_dirty()
        state = _Commit(graph)
        for patch in own:
            state.apply(patch)
        state.finish()


class _Commit:
    """The state of one commit to one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.position = {node: index for index, node in enumerate(graph.nodes)}
        self.behind: dict[int, list[Node]] = {}
        self.gone: set[Node] = set()
        self.suspects: list[Value] = []

    def apply(self, patch: Patch) -> None:
        for value in patch.constants:
            self.graph.values[value.name] = self.graph.initializers[value.name] = value
        self.place(patch)
        for value in patch.dropped_inputs:
            value.is_input = False
            self.graph.infos.pop(value.name, None)
        for node, index, new in patch.rewired:
            self.rewire(node, index, new)
        for value, tensor in patch.frozen:
            self.freeze(value, tensor)
        for old, new in patch.replaced:
            self.replace(patch, old, new)
        for node in patch.removed:
            self.remove(node)

    def place(self, patch: Patch) -> None:
        earliest = self.position[patch.anchor] - 1 if patch.anchor is not None else -1
        for node in patch.nodes:
            index = earliest
            for slot, value in enumerate(node.inputs):
                if value is None:
                    continue
                value.uses[Use(node, slot)] = None
                if value.producer is not None and value.producer.graph is self.graph:
                    index = max(index, self.position[value.producer])
            for output in node.outputs:
                if output is not None:
                    self.graph.values[output.name] = output
            self.position[node] = index
            self.behind.setdefault(index, []).append(node)

    def rewire(self, node: Node, index: int, new: Value | None) -> None:
        node.inputs.extend([None] * (index + 1 - len(node.inputs)))
        old = node.inputs[index]
        if old is not None:
            del old.uses[Use(node, index)]
            self.suspects.append(old)
        node.inputs[index] = new
        if new is not None:
            new.uses[Use(node, index)] = None
        node.changed = True
        node.graph.mark_dirty()

    def replace(self, patch: Patch, old: Value, new: Value) -> None:
        if new.producer in patch.nodes and not new.is_output and (old.producer is not None or not _reads(patch, old)):
            self.take_over(patch, old, new)
            return
        if old.is_output:
            raise ValueError(f"'{old.name}' is an output: a node of the patch has to make what replaces it")
        for use in [use for use in old.uses if use.node not in patch.nodes]:
            self.rewire(use.node, use.slot, new)

    def take_over(self, patch: Patch, old: Value, new: Value) -> None:
        """Let the node that makes `new` make `old` instead: readers keep their bytes."""
        before, maker = old.producer, new.producer
        assert maker is not None
        inner = [use for use in old.uses if use.node in patch.nodes]
        if (
            before is not None and inner
        ):  # the patch reads what it replaces, as a Q/DQ pair does: the float value gets a new name
            float_value = Value(self.graph.names.fresh(f"{old.name}_float"), self.graph)
            float_value.producer, float_value.dtype, float_value.shape = before, old.dtype, old.shape
            self.graph.values[float_value.name] = float_value
            before.outputs[before.outputs.index(old)] = float_value
            before.changed = True
            for use in inner:
                self.rewire(use.node, use.slot, float_value)
        elif before is not None:
            before.outputs[before.outputs.index(old)] = None
            before.changed = True
            if not any(before.outputs):
                self.remove(before)
        else:
            self.graph.initializers.pop(old.name, None)
            old.tensor = None
        maker.outputs[maker.outputs.index(new)] = old
        old.producer = maker
        del self.graph.values[new.name]
        for use in list(new.uses):
            self.rewire(use.node, use.slot, old)

    def freeze(self, value: Value, tensor: Tensor) -> None:
        node, value.producer = value.producer, None
        value.tensor, value.dtype, value.shape = tensor, tensor.dtype, tensor.shape
        self.graph.initializers[value.name] = value
        if node is not None:
            node.outputs[node.outputs.index(value)] = None
            self.remove(node)

    def remove(self, node: Node) -> None:
        if node in self.gone:
            return
        self.gone.add(node)
        for index, value in enumerate(node.inputs):
            if value is not None:
                del value.uses[Use(node, index)]
                self.suspects.append(value)
        for output in node.outputs:
            if output is not None and output.producer is node:
                node.graph.values.pop(output.name, None)

    def finish(self) -> None:
        while self.suspects:
            self.sweep(self.suspects.pop())
        order = list(self.behind.get(-1, ()))
        for index, node in enumerate(self.graph.nodes):
            order.append(node)
            order.extend(self.behind.get(index, ()))
        self.graph.nodes = [node for node in order if node not in self.gone]
        self.graph.inputs = [value for value in self.graph.inputs if value.is_input]

    def sweep(self, value: Value) -> None:
        """Remove what the patches left without a reader."""
        if value.uses or value.is_output or value.is_input:
            return
        node = value.producer
        if node is None and value.tensor is not None:
            value.graph.initializers.pop(value.name, None)
            value.graph.values.pop(value.name, None)
            value.graph.mark_dirty()
        elif node is not None and node.graph is self.graph and node not in self.gone and _unread(node):
            self.remove(node)


def _unread(node: Node) -> bool:
    """Whether a node can go: no reader, and no body whose effects are unknown."""
    return not node.bodies and all(o is None or not (o.uses or o.is_output) for o in node.outputs)


def _reads(patch: Patch, value: Value) -> bool:
    return any(use.node in patch.nodes for use in value.uses)
