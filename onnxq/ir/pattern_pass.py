"""Passes that replace an expression: the decorator has the pattern, the function builds the replacement.

@pattern_pass(op("Neg", op("Neg", var("x"), once=True)), order=10, because="it is undone")
def double_negation(patch: Patch, found: Match) -> Value:
return found["x"]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from onnxq.ir.graph import Node, Value
from onnxq.ir.match import Failure, Match, NoMatch, Operator, attempt, match
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import Change, register_pass
from onnxq.ir.patch import Patch, named_after
from onnxq.ir.shape_inference.symbolic import Shapes, shapes_of

Build = Callable[..., Value]


@dataclass(frozen=True)
class Rewrite:
    """A pattern and its replacement; called with a model, it describes one change for each match.

    Attributes:
        pattern: The expression; its last node is the root.
        build: Given the patch and the match, adds nodes to the patch and returns the value that takes the place of the
            result; raises `NoMatch` where the rewrite does not apply. It may ask for `shapes`, too.
        because: Why, in a few words; shown when a change turns out to be invalid.
        replaces: Name of the value in the pattern that is replaced; empty for what the root makes.
        anchor: Name of the value whose node the new ones stand in front of; empty for the one that is replaced.
        keeps_name: Whether the last new node gets the name of that node.
        main_graph: Whether bodies are left alone.
        shapes: Whether `build` is given symbolic shapes of the graph.
        needs_opset: See `Change.opset`.

    """

    pattern: Operator
    build: Build
    because: str
    replaces: str = ""
    anchor: str = ""
    keeps_name: bool = True
    main_graph: bool = False
    shapes: bool = False
    needs_opset: int = 0

    def __call__(self, model: Model) -> Iterator[Change]:
        """Describe one change for each match, none of which shares a node with another that goes."""
        for graph in [model.graph] if self.main_graph else model.graph.graphs():
            taken: set[Node] = set()
            shapes: Shapes | None = None
            for node in graph.nodes:
                found = match(self.pattern, node)
                if found is None or not taken.isdisjoint(found.claimed):
                    continue
                if self.shapes and shapes is None:
                    shapes = shapes_of(model, graph)
                try:
                    change = self._change(found, shapes)
                except NoMatch:
                    continue
                taken.update(found.claimed)
                yield change

    def _change(self, found: Match, shapes: Shapes | None) -> Change:
        old = found[self.replaces] if self.replaces else found.result
        anchor = found.node(self.anchor) if self.anchor else old.producer
        assert anchor is not None
        patch = Patch(anchor.graph, anchor, self.because)
        new = self.build(patch, found, shapes) if self.shapes else self.build(patch, found)
        if self.keeps_name and patch.nodes:
            named_after(patch, anchor)
        patch.replace(old, new)
        return Change(patch, opset=self.needs_opset)

    def why_not(self, model: Model, node: Node) -> str:
        """Say why the expression that ends in a node is not replaced; empty where it is."""
        found = attempt(self.pattern, node)
        if isinstance(found, Failure):
            return found.reason
        if self.main_graph and node.graph is not model.graph:
            return "it stands in a body, and the pass works on the main graph"
        try:
            self._change(found, shapes_of(model, node.graph) if self.shapes else None)
        except NoMatch as error:
            return str(error)
        return ""


def pattern_pass(
    pattern: Operator,
    *,
    order: int,
    because: str,
    note: str = "",
    replaces: str = "",
    anchor: str = "",
    keeps_name: bool = True,
    main_graph: bool = False,
    shapes: bool = False,
    needs_opset: int = 0,
    **needs: Any,
) -> Callable[[Build], Rewrite]:
    """Register a function that builds the replacement of an expression as a pass.

    `Rewrite` describes the first arguments; `register_pass` those that say when the pass runs.
    """

    def register(build: Build) -> Rewrite:
        rewrite = Rewrite(pattern, build, because, replaces, anchor, keeps_name, main_graph, shapes, needs_opset)
        register_pass(order=order, note=note, run=rewrite, **needs)(build)
        return rewrite

    return register
