"""Why a pass did not apply to a node: the passes run as they would, and the one that is asked about is listened to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from onnxq.errors import ModelError, RecipeError
from onnxq.explanation.unknown_node import unknown_node
from onnxq.ir import Model, ModelInput, Node, Patch, read_model
from onnxq.ir.match import Failure, attempt, match
from onnxq.ir.pass_manager import NORMALISE, OPTIMIZE, PACKAGES, Change, Pass, find_passes, run_passes
from onnxq.ir.pattern_pass import Rewrite
from onnxq.planning.recipe import Recipe, load_recipe
from onnxq.runtime.custom_ops import foreign_node
from onnxq.runtime.memory import gc_disabled
from onnxq.simplify import ROUNDS, convert
from onnxq.stages.prepare import computes_in_integers, normalise_for_plan
from onnxq.targets.target import Target, load_target
from onnxq.text import did_you_mean
from onnxq.verification.ort_graph import holds_codes

FARTHEST = 6  # nodes between one that is asked about and the end of an expression that it could be part of


@dataclass(frozen=True)
class PassAnswer:
    """The answer of a pass about a node.

    Attributes:
        name, phase, summary: Of the pass.
        node: Name of the node.
        operator: Its operator; empty where the node is gone before the pass runs.
        applies: Whether the pass changes the node.
        reason: Why not; empty where it does.

    """

    name: str
    phase: str
    summary: str
    node: str
    operator: str
    applies: bool
    reason: str


def why_not(model: ModelInput, name: str, node: str, recipe: str | Path | Recipe = "auto") -> PassAnswer:
    """Say why a pass does not change a node, or that it does; nothing is written.

    Args:
        model: Its path, a ModelProto, or loaded: a float ONNX model, a quantized one for a pass that optimizes those.
        name: Name of the pass.
        node: Name of a node, or of a tensor that a node makes.
        recipe: As for `quantize`.

    Returns:
        Whether the pass changes the node, and why not.

    Raises:
        RecipeError: No pass has the name; the hint lists all of them.
        ModelError: The model has no such node, or is not quantized where the pass works on quantized models.

    Examples:
        >>> import onnxq
        >>> onnxq.why_not("model.onnx", "fold_add_into_conv", "conv1").applies
        False

    """
    item = find_pass(name)
    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    target = load_target(chosen.scheme.target)
    with gc_disabled():
        source = read_model(model)
        label = source.name
        known = {node.display_name: node.op_type for node in source.graph.walk()}
        asked = _Asked(item, node, integer=computes_in_integers(chosen))
        asked.look(source)
        if item.phase == OPTIMIZE:
            _refuse_float(source, name)
            run_passes(source, asked.followed(), target=target)
        elif item.phase == NORMALISE:
            run_passes(source, asked.followed())
        else:
            source, notes = normalise_for_plan(source)
            asked.last = "; ".join(notes)
            asked.look(source)
            asked.refused = _not_simplified(source, chosen, target)
            if not asked.refused:
                run_passes(source, asked.followed(), rounds=ROUNDS, typed=True, convert=convert)
    if not asked.operator:
        raise unknown_node(label, node, known)
    return asked.answer(source, target)


def find_pass(name: str) -> Pass:
    """Return the pass of a name.

    Raises:
        RecipeError: There is none.

    """
    every = [item for phase in PACKAGES for item in find_passes(phase)]
    found = next((item for item in every if item.name == name), None)
    if found is None:
        names = [f"{phase}: {', '.join(item.name for item in find_passes(phase))}" for phase in PACKAGES]
        near = did_you_mean(name, [item.name for item in every], most=3, cutoff=0.5)
        raise RecipeError(f"no pass is called '{name}'", f"{near} All passes: {'; '.join(names)}.".strip())
    return found


class _Asked:
    """A node, and a pass that is asked about it whenever it runs.

    Attributes:
        operator: Of the node; empty as long as it was not seen.
        refused: Why no pass of the phase runs.
        last: What changed the model last.

    """

    def __init__(self, item: Pass, name: str, *, integer: bool) -> None:
        self.operator = ""
        self.refused = ""
        self.last = ""
        self._item = item
        self._name = name
        self._integer = integer
        self._reasons: list[str] = []  # of each time that the pass ran; empty where it applied
        self._gone = ""  # what took the node in

    def followed(self) -> list[Pass]:
        """Return the passes of the phase, each of which is watched while it runs."""
        allowed = [item for item in find_passes(self._item.phase) if self._integer or not item.integer]
        return [replace(item, run=self._watch(item)) for item in allowed]

    def look(self, model: Model) -> Node | None:
        """Find the node; where it was there and is gone, note what has been done to the model last."""
        found = _node(model, self._name)
        if found is not None:
            self.operator, self._gone = found.operator, ""
        elif self.operator and not self._gone:
            self._gone = self.last
        return found

    def _watch(self, item: Pass) -> Callable[..., Iterator[Patch | Change] | int]:
        def run(model: Model, *told: Target) -> Iterator[Patch | Change] | int:
            node = self.look(model)
            before = _written(node)
            found = item.run(model, *told)
            changes = None if isinstance(found, int) else list(found)
            if node is not None and item.name == self._item.name:
                if changes is None:
                    touched = before != _written(_node(model, self._name))
                else:
                    touched = any(node in _touched(change) for change in changes)
                self._reasons.append("" if touched else self._reason(model, node))
            if found if changes is None else changes:
                self.last = f"the pass {item.name} took it in, or what it is part of"
            return found if isinstance(found, int) else iter(changes or ())

        return run

    def _reason(self, model: Model, node: Node) -> str:
        if isinstance(self._item.run, Rewrite):
            return _of_pattern(self._item.run, model, node)
        return f"it finds nothing to change at {node.operator} '{node.display_name}', and gives no closer reason"

    def answer(self, model: Model, target: Target) -> PassAnswer:
        """Sum up: a pass applies if it did once; else its first reason counts."""
        applies = "" in self._reasons
        obstacle = self._item.obstacle(model, target, integer=self._integer)
        reason = next(iter(self._reasons), "") or self.refused or obstacle
        if not reason:
            reason = f"the node is gone before it runs: {self._gone}"
        about = (self._item.name, self._item.phase, self._item.summary, self._name, self.operator)
        return PassAnswer(*about, applies, "" if applies else reason)


def _of_pattern(rewrite: Rewrite, model: Model, node: Node) -> str:
    """Say why an expression that a node could be part of is not replaced; empty where it is."""
    types = " or ".join(rewrite.pattern.types)
    ends = [node] if node.op_type in rewrite.pattern.types else list(_behind(node, rewrite.pattern.types))
    best: tuple[int, str, Node] | None = None
    for end in ends:
        found = attempt(rewrite.pattern, end)
        reason = rewrite.why_not(model, end)
        if isinstance(found, Failure):
            depth = found.depth
        else:
            if not reason and (end is node or node in _inside(rewrite, end)):
                return ""
            depth = len(found.values) + 1 if reason else -1
        if reason and (best is None or depth > best[0]):
            best = (depth, reason, end)
    if best is None:
        return f"it replaces an expression that ends in {types}, and none is behind this {node.op_type}"
    reason, end = best[1:]
    return (
        reason if end is node else f"it replaces an expression that ends in {types}; of '{end.display_name}': {reason}"
    )


def _inside(rewrite: Rewrite, end: Node) -> set[Node]:
    found = match(rewrite.pattern, end)
    if found is None:
        return set()
    return {*found.claimed, *(value.producer for value in found.values.values() if value.producer is not None)}


def _behind(node: Node, types: Iterable[str]) -> Iterator[Node]:
    """Visit the nodes of these types behind a node in its scope, the nearest first."""
    seen, front = {node}, [node]
    for _ in range(FARTHEST):
        values = [value for each in front for value in each.makes]
        reads = dict.fromkeys(use.node for value in values for use in value.uses)
        front = [each for each in reads if each not in seen and each.graph is node.graph]
        seen.update(front)
        yield from (each for each in front if each.op_type in types)


def _touched(change: Patch | Change) -> set[Node]:
    """Return the nodes that a change replaces, removes or rewires."""
    patch = change.patch if isinstance(change, Change) else change
    values = [old for old, _ in patch.replaced] + [value for value, _ in patch.frozen]
    nodes = [*patch.removed, *(node for node, _, _ in patch.rewired), *(value.producer for value in values)]
    return {node for node in (*nodes, patch.anchor) if node is not None}


def _written(node: Node | None) -> object:
    """Return what a pass that changes the model itself may change of a node."""
    if node is None:
        return None
    return node.operator, node.name, node.encoded, sorted(node.spans), [value and value.name for value in node.inputs]


def _node(model: Model, name: str) -> Node | None:
    nodes = list(model.graph.walk())
    named = (node for node in nodes if node.display_name == name)
    made = (node for node in nodes if any(value is not None and value.name == name for value in node.outputs))
    return next(named, None) or next(made, None)


def _refuse_float(model: Model, name: str) -> None:
    if not holds_codes(model):
        raise ModelError(
            f"the pass {name} works on quantized models, and {model.name} is float",
            f"Quantize it and ask about the result: `onnxq plan OUTPUT --why-not {name} NODE`.",
        )


def _not_simplified(model: Model, recipe: Recipe, target: Target) -> str:
    if not target.simplify:
        return f"models for {target.name} are not simplified"
    if not recipe.simplifies:
        return f"the recipe {recipe.name} says that models are not simplified"
    foreign = foreign_node(model)
    return f"the model cannot be run because of {foreign.label}: no simplified one could be compared" if foreign else ""
