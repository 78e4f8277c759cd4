"""Decisions and times that plans of one graph have in common: a search makes dozens with other choices and prices.

Tests: `tests/planning/test_shared_decisions.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from onnxq.ir import Model, Node
from onnxq.planning.cost_model import node_times
from onnxq.planning.recipe import Recipe
from onnxq.targets import Costs

T = TypeVar("T")


class SharedDecisions:
    """Facts about nodes that hang neither on choices nor on prices.

    Args:
        model: The model that is planned, of types that are known.
        recipe: The rules, as they are for its operator set.
        costs: Kernel times; prices may be others.
        settings: Further settings that decide about a single node.

    """

    def __init__(self, model: Model, recipe: Recipe, costs: Costs, *settings: bool) -> None:
        self._graph, self._revision = model.graph, model.graph.revision
        self._recipe, self._basis, self._settings = recipe, costs.basis, (model.opset, *settings)
        self._costs = costs
        self._known: dict[Hashable, Any] = {}
        self._times: dict[Node, tuple[float, float]] = {}

    def fits(self, model: Model, recipe: Recipe, costs: Costs, *settings: bool) -> bool:
        """Tell whether another plan is made of the same: the graph as it was, rules, times and settings."""
        same = model.graph is self._graph and model.graph.revision == self._revision
        if not same or (model.opset, *settings) != self._settings or recipe != self._recipe:
            return False
        return all(one is other for one, other in zip(costs.basis, self._basis, strict=True))

    def once(self, key: Hashable, find: Callable[[], T]) -> T:
        """Return what was found by this key before, or find it."""
        if key not in self._known:
            self._known[key] = find()
        found: T = self._known[key]
        return found

    def times(self, node: Node) -> tuple[float, float]:
        """Return the time of a node in float and in 8 bit; see `node_times`."""
        found = self._times.get(node)
        if found is None:
            found = self._times[node] = node_times(node, self._costs)
        return found
