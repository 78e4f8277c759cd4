"""Apply patches: the only place where a graph changes."""

from __future__ import annotations

from collections.abc import Iterable

from onnxq.ir.graph import Graph, Node, Use, Value, rename_values
from onnxq.ir.loop_state import uncarry
from onnxq.ir.patch import Patch
from onnxq.ir.tensor import Tensor
from onnxq.ir.topological_order import CycleError, in_order, reads


def commit(patches: Iterable[Patch]) -> None:
    """Apply patches to their graphs, in the order given.

    Nodes and initializers that lose their last reader go too, in the scopes around as well. The order of nodes stays
    topological. A new node goes before its patch's anchor, or after the last node it reads from if that is later. The
    cost is linear in the graphs and the patches together: commit many patches at once.

    Raises:
        ValueError: The patches contradict themselves, for example by removing a node whose result is still read.

    """
    described = list(patches)
    if not described:
        return
    work = _Commit()
    for patch in described:
        try:
            work.apply(patch)
        except ValueError as error:
            raise ValueError(f"{patch.reason or 'patch'}: {error}") from error
    work.finish()


class _Scope:
    """The changes of one commit to one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.position = {node: index for index, node in enumerate(graph.nodes)}
        self.behind: dict[int, list[Node]] = {}  # new nodes, by the position of the node they follow; -1 at the start
        graph.mark_dirty()

    def finish(self, gone: set[Node]) -> None:
        """Put the new nodes in their places, leave out those that are gone, and sort what is out of order."""
        order = list(self.behind.get(-1, ()))
        for index, node in enumerate(self.graph.nodes):
            order.append(node)
            order.extend(self.behind.get(index, ()))
        try:
            self.graph.nodes = in_order(self.graph, [node for node in order if node not in gone])
        except CycleError as error:
            raise ValueError(f"the patches make a cycle: {error}") from error
        self.graph.inputs = [value for value in self.graph.inputs if value.is_input]


class _Commit:
    """The state of one commit."""

    def __init__(self) -> None:
        self.scopes: dict[Graph, _Scope] = {}
        self.gone: set[Node] = set()
        self.lost: list[Value] = []  # outputs of nodes that are gone
        self.suspects: list[Value] = []  # values that lost a reader
        self.renamed: dict[Value, Value] = {}  # values whose maker took over another's name → that other

    def scope(self, graph: Graph) -> _Scope:
        """Return what is in store for a graph."""
        if graph not in self.scopes:
            self.scopes[graph] = _Scope(graph)
        return self.scopes[graph]

    def current(self, value: Value) -> Value:
        """Return the value that a value has become, where its maker took over another name."""
        while value in self.renamed:
            value = self.renamed[value]
        return value

    def apply(self, patch: Patch) -> None:
        """Carry out one patch; nodes get their order, and what is unread goes, in `finish`."""
        for value in patch.constants:
            patch.graph.values[value.name] = patch.graph.initializers[value.name] = value
            self.suspects.append(value)
        for value in patch.inputs:
            patch.graph.values[value.name] = value
            patch.graph.inputs.append(value)
        for value in patch.shown:
            value.is_output = True
            patch.graph.outputs.append(value)
        self.place(patch, self.scope(patch.graph))
        for value in patch.dropped_inputs:
            if value.tensor is None:
                raise ValueError(f"the input '{value.name}' has no elements of its own")
            value.is_input = False
            if not value.is_output:
                value.graph.infos.pop(value.name, None)
        for node, index, new in patch.rewired:
            self.rewire(node, index, new)
        for node, index in patch.uncarried:
            self.suspects += uncarry(node, index, self.rewire)
        for value, tensor in patch.frozen:
            self.freeze(value, tensor)
        for old, new in patch.replaced:
            self.replace(patch, old, self.current(new))
        for node in patch.removed:
            self.remove(node)
        for value, hint in patch.renamed:
            if value.is_output or value.is_input:
                raise ValueError(f"'{value.name}' is known outside under its name")
            rename_values(value.graph, {value: value.graph.names.fresh(hint or value.name)})

    def place(self, patch: Patch, scope: _Scope) -> None:
        """Find a place for the new nodes of a patch, and connect what they read and make."""
        earliest = scope.position[patch.anchor] - 1 if patch.anchor is not None else -1
        for node in patch.nodes:
            index = earliest
            for slot, given in enumerate(node.inputs):
                if given is None:
                    continue
                value = node.inputs[slot] = self.current(given)
                self.expose(node.graph, value)
                value.uses[Use(node, slot)] = None
                if value.producer is not None and value.graph is scope.graph:
                    index = max(index, scope.position[value.producer])
            for output in node.outputs:
                if output is not None:
                    scope.graph.values[output.name] = output
            scope.position[node] = index
            scope.behind.setdefault(index, []).append(node)

    def rewire(self, node: Node, index: int, new: Value | None) -> None:
        """Let a node read another value, or none, as one of its inputs."""
        if node in self.gone:
            return
        node.inputs.extend([None] * (index + 1 - len(node.inputs)))
        old = node.inputs[index]
        if old is not None:
            del old.uses[Use(node, index)]
            self.suspects.append(old)
        if new is not None:
            new = self.current(new)
            self.expose(node.graph, new)
            new.uses[Use(node, index)] = None
        node.inputs[index] = new
        node.changed = True
        node.graph.mark_dirty()

    def expose(self, graph: Graph, value: Value) -> None:
        """Make sure that the name of an outer value means that value inside a body."""
        scope = graph
        while scope is not value.graph:
            if value.name in scope.values:
                hiding = scope.values[value.name]  # its name hides a value outside
                rename_values(scope, {hiding: scope.names.fresh(value.name)})
            if scope.parent is None:
                raise ValueError(f"'{value.name}' is not visible in graph '{graph.name}'")
            scope = scope.parent

    def replace(self, patch: Patch, old: Value, new: Value) -> None:
        """Put a value in the place of another: by name where its maker can take that over, else reader by reader."""
        if old is new:
            return
        if old.graph is not patch.graph:
            raise ValueError(f"'{old.name}' belongs to another graph than the patch")
        maker = new.producer
        fresh = maker in patch.nodes
        movable = maker is not None and new.graph is patch.graph and not new.is_output and not old.is_input
        leaving = old.producer is not None and (old.is_output or old.producer in patch.removed)
        if movable and (leaving or (fresh and _is_free(patch, old))):
            self.take_over(patch, old, new)
            return
        if old.is_output and old.producer is not None:
            raise ValueError(f"'{old.name}' is an output, and what replaces it cannot take its name")
        for use in [use for use in old.uses if use.node not in patch.nodes]:
            self.rewire(use.node, use.slot, new)
        self.suspects.append(old)

    def take_over(self, patch: Patch, old: Value, new: Value) -> None:
        """Let the node that makes `new` make `old` instead: readers keep their bytes."""
        before, maker = old.producer, new.producer
        assert maker is not None
        inner = [use for use in old.uses if use.node in patch.nodes]
        if before is not None and inner:
            # The patch reads what it replaces, as a Q/DQ pair does: the float value gets a new name.
            value = Value(old.graph.names.fresh(f"{old.name}_float"), old.graph)
            value.producer, value.dtype, value.shape = before, old.dtype, old.shape
            old.graph.values[value.name] = value
            self.unmake(old, value)
            for use in inner:
                self.rewire(use.node, use.slot, value)
        elif before is not None:
            self.unmake(old, None)
        else:
            old.graph.initializers.pop(old.name, None)
            old.tensor = None
        maker.outputs[maker.outputs.index(new)] = old
        maker.changed = True
        old.producer = maker
        del old.graph.values[new.name]
        self.renamed[new] = old
        for use in list(new.uses):
            self.rewire(use.node, use.slot, old)

    def unmake(self, value: Value, instead: Value | None) -> None:
        """Let the producer of a value make another, or none."""
        node, value.producer = value.producer, None
        assert node is not None
        node.outputs[node.outputs.index(value)] = instead
        node.changed = True
        node.graph.mark_dirty()
        if not any(node.outputs):
            self.remove(node)

    def freeze(self, value: Value, tensor: Tensor) -> None:
        """Make a value an initializer under the name it has."""
        if value.producer is not None:
            self.unmake(value, None)
        value.tensor, value.dtype, value.shape = tensor, tensor.dtype, tensor.shape
        value.graph.initializers[value.name] = value
        self.suspects.append(value)

    def remove(self, node: Node) -> None:
        """Let a node go, with all that it reads and makes; done once however often it is asked for."""
        if node in self.gone:
            return
        self.gone.add(node)
        self.scope(node.graph)
        for value in _drop_uses(node):
            self.suspects.append(value)
        for output in node.outputs:
            if output is not None and output.producer is node:
                node.graph.values.pop(output.name, None)
                self.lost.append(output)

    def finish(self) -> None:
        """Remove what has no reader any more, and put every graph in order."""
        while self.suspects:
            self.sweep(self.suspects.pop())
        for value in self.lost:
            if value.uses or value.is_output:
                raise ValueError(f"a node was removed whose result '{value.name}' is still needed")
        # Bodies first: what a node needs is what its bodies read without those that are gone
        for scope in sorted(self.scopes.values(), key=lambda scope: -scope.graph.depth):
            scope.finish(self.gone)

    def sweep(self, value: Value) -> None:
        """Remove what the patches left without a reader."""
        if value.uses or value.is_output or value.is_input:
            return
        node = value.producer
        if node is not None:
            if node not in self.gone and _is_unread(node):
                self.remove(node)
        elif value.tensor is not None and value.graph.initializers.get(value.name) is value:
            del value.graph.initializers[value.name], value.graph.values[value.name]
            value.graph.mark_dirty()


def _drop_uses(node: Node) -> list[Value]:
    """Forget that a node and the nodes of its bodies read anything; give what they read."""
    dropped = list(reads(node))
    for slot, value in enumerate(node.inputs):
        if value is not None:
            value.uses.pop(Use(node, slot), None)
    for bodies in node.bodies.values():
        for body in bodies:
            for inner in body.nodes:
                _drop_uses(inner)
    return dropped


def _is_unread(node: Node) -> bool:
    """Whether a node can go: no reader, and no body whose effects are unknown."""
    return not node.bodies and all(o is None or not (o.uses or o.is_output) for o in node.outputs)


def _is_free(patch: Patch, value: Value) -> bool:
    """Whether another node can make a value: an initializer that the patch reads has to stay what it is."""
    if value.producer is not None:
        return True
    return not value.is_output and not any(use.node in patch.nodes for use in value.uses)
