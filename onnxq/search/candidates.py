"""The choices of a search for each node: forms other than 8 bit, their cost, and the error that they remove.

Tests: `tests/search/test_mixed_precision.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onnxq.planning.alternatives import Alternative, alternatives
from onnxq.planning.cost_model import node_times
from onnxq.planning.decision import Decision, Override, Plan
from onnxq.planning.planner import node_key
from onnxq.planning.row_costs import row_time
from onnxq.search.sensitivity import weighted_decisions
from onnxq.targets import Costs
from onnxq.targets.target import load_target
from onnxq.text import percent
from onnxq.verification.records import Contribution


@dataclass(frozen=True)
class Option:
    """A form that a node may take in place of its static 8-bit form.

    Attributes:
        choice: What to choose.
        cost: Predicted time that this takes, by the time of the whole quantized model.
        left: How much of the node's noise is expected to remain, 0 to 1.

    """

    choice: Override
    cost: float
    left: float = 0.0


@dataclass(frozen=True)
class Candidate:
    """A node that can be returned to float.

    Attributes:
        key: See `node_key`.
        noise: What it contributes.
        share: Of the error of all nodes, 0 to 1.
        cost: Predicted time that this takes, by the time of the whole quantized model.
        computes: Whether it computes in 8 bit now, and does not only store its weight so.
        between: What stands between both, the cheapest first: products with scales by row, or by block.
        priced: Whether the target's kernel times are known, from which the cost comes; 0 where they are not.

    """

    key: str
    noise: float
    share: float
    cost: float
    computes: bool
    between: tuple[Option, ...] = ()
    priced: bool = True

    @property
    def ways(self) -> tuple[Option, ...]:
        """All that the node may become, the cheapest first; the last is float with its weight stored in 8 bit."""
        return *self.between, Option(_choice(self), self.cost)


def find_candidates(plan: Plan, contributions: Sequence[Contribution], opset: int) -> list[Candidate]:
    """List the nodes that `auto` has put into 8 bit, those that buy most for their time first."""
    total, priced = predicted_time(plan, plan.costs), is_priced(plan)
    known = {c.tensor: c for c in contributions}
    found = []
    for decision in weighted_decisions(plan):
        key = node_key(decision.node)
        if key not in known or not searchable(plan, decision):
            continue
        in_float, in_integers = _times(decision, plan.costs)
        computes = decision.scheme != "weight-int8"
        cost = max(in_float - in_integers, 0.0) / total if computes and priced else 0.0
        others = between_forms(plan, decision, opset)
        between = tuple(Option(one.choice, max(one.time - in_integers, 0.0) / total, one.left) for one in others)
        found.append(Candidate(key, known[key].noise, known[key].share, cost, computes, between, priced))
    return sorted(found, key=lambda move: (-move.noise / (move.cost + 1e-3), move.key))


def between_forms(plan: Plan, decision: Decision, opset: int) -> tuple[Alternative, ...]:
    """List what stands between 8 bit and float for a node, the fastest first; nothing where its weight is stored."""
    if decision.scheme == "weight-int8" or _by_rows(decision):
        return ()
    return alternatives(decision.node, plan.recipe, opset, plan.costs)


def is_priced(plan: Plan) -> bool:
    """Whether the kernel times of the target are known."""
    return load_target(plan.recipe.scheme.target).timed


def predicted_time(plan: Plan, costs: Costs) -> float:
    """Add up the kernel times of all nodes as planned and the conversions between them, in nanoseconds."""
    return sum(_planned_time(decision, costs) for decision in plan.decisions) + plan.conversions or 1.0


def float_time(plan: Plan) -> float:
    """Add up the kernel times of all nodes in float, in nanoseconds."""
    return sum(_times(decision, plan.costs)[0] for decision in plan.decisions)


def saved_time(plan: Plan) -> float:
    """Return how much less time the plan takes than float does, as a share of its own time; 0 where it takes more."""
    return max(float_time(plan) / predicted_time(plan, plan.costs) - 1, 0.0)


def time_to_spend(plan: Plan, share: float) -> float:
    """Return a share of the saved time, as a share of the plan's own time; any time if the share is infinite."""
    return share if math.isinf(share) else share * saved_time(plan)


def searchable(plan: Plan, decision: Decision) -> bool:
    """Whether the recipe leaves the node to `auto`, to the very end."""
    scheme, _ = plan.recipe.scheme_for(decision.node.op_type, decision.node.name)
    return scheme.name == "auto" and scheme.return_to_float


def within_cost(ranked: Sequence[Candidate], max_share: float, step: int = 0) -> list[Candidate]:
    """Take moves from the front as long as their time together is no more than a share of the model's.

    Args:
        ranked: Moves, those that are to be taken first in front.
        max_share: The share.
        step: Which of the ways of each node is taken.

    """
    taken, spent = [], 0.0
    for move in ranked:
        spent += option_at(step, move).cost
        if spent > max_share:
            break
        taken.append(move)
    return taken


def option_at(step: int, move: Candidate) -> Option:
    """Return what a node becomes in a step of the search: what it may become, in turn, and at the end float."""
    return move.ways[min(step, len(move.ways) - 1)]


def benefit_per_cost(step: int, move: Candidate) -> tuple[float, str]:
    """Return a key that sorts those moves to the front that buy most for their time in a step of the search."""
    way = option_at(step, move)
    return -move.noise * (1 - way.left) / (way.cost + 1e-3), move.key


def _choice(move: Candidate) -> Override:
    price = f", for {percent(move.cost, 1)} of the time" if move.priced else ""
    return Override("weight-int8", reason_for(move) + price)


def reason_for(move: Candidate) -> str:
    """Say what a node did to the outputs in 8 bit."""
    return reason_for_share(move.share)


def reason_for_share(share: float) -> str:
    """Say what a node did to the outputs in 8 bit that made a share of the error."""
    return f"in 8 bit it made {percent(share)} of the error"


def _by_rows(decision: Decision) -> bool:
    settings = decision.settings
    return settings is not None and settings.activation_granularity == "row" and decision.scheme == "dynamic-int8"


def _planned_time(decision: Decision, costs: Costs) -> float:
    in_float, in_integers = _times(decision, costs)
    if decision.scheme in (None, "weight-int8", "weight-int12"):
        return in_float
    if _by_rows(decision):
        return row_time(decision.node, costs) or in_integers
    return in_integers


def _times(decision: Decision, costs: Costs) -> tuple[float, float]:
    node = decision.node
    if not node.inputs or node.inputs[0] is None or node.outputs[0] is None or node.bodies:
        return 0.0, 0.0
    return node_times(node, costs)
