"""The search for the fewest nodes that have to compute in float, so that the outputs stay within a budget.

Contributions of single nodes rank them by what each buys for its time; because they add up, whoever contributes most
for the least time goes first, and the smallest number that meets the budget is found by bisection, each step a run of
the whole model. Nodes compute in float with weights stored in 8 bit first; only if that is not enough are weights
stored in float as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from onnxq.comparison import Contribution
from onnxq.ir import Model
from onnxq.quant.alternatives import by_blocks
from onnxq.quant.decision import Choice, Choices, Decision, Plan
from onnxq.quant.plan import node_key
from onnxq.quant.region import node_times
from onnxq.sensitivity import counted
from onnxq.targets import Costs
from onnxq.trials import Variants

T = TypeVar("T")

# A bargain: dB that a node has to gain, dB for the whole time (0.9 for a hundredth of it), the most that it may take
LEAST_GAIN, GAIN_FOR_TIME, MOST_FOR_ONE = 1.0, 90.0, 0.03
GAINS = 4  # bargains tried
KEPT_GAIN = 0.5  # of what was expected of one


@dataclass(frozen=True)
class Move:
    """A node that can be returned to float.

    Attributes:
        key: See `node_key`.
        noise: What it contributes.
        share: Of the error of all nodes, 0 to 1.
        cost: Predicted time that this takes, by the time of the whole quantized model.
        computes: Whether it computes in 8 bit now, and does not only store its weight so.
        blocks: What stands between both, where there is something: products with scales by block.

    """

    key: str
    noise: float
    share: float
    cost: float
    computes: bool
    blocks: Choice | None = None


@dataclass(frozen=True)
class Found:
    """What a search came to.

    Attributes:
        choices: For the nodes that are returned to float.
        met: Whether the budget is met.
        sqnr: What the model was judged at in dB; None where the search asks only whether it meets the budget.

    """

    choices: Choices
    met: bool
    sqnr: float | None = None


def decibels_without(share: float) -> float:
    """Give how many dB the outputs gain where a share of their squared error goes."""
    return -10 * math.log10(max(1 - share, 1e-9))


Meets = Callable[[Model], bool]


def moves(plan: Plan, contributions: Sequence[Contribution], opset: int) -> list[Move]:
    """List the nodes that `auto` has put into 8 bit, those that buy most for their time first."""
    total = predicted_time(plan, plan.costs)
    known = {c.tensor: c for c in contributions}
    found = []
    for decision in counted(plan):
        key = node_key(decision.node)
        if key not in known or not left_open(plan, decision):
            continue
        in_float, in_integers = _times(decision, plan.costs)
        computes = decision.scheme != "weight-int8"
        cost = max(in_float - in_integers, 0.0) / total if computes else 0.0
        blocks = by_blocks(decision.node, plan.recipe, opset) if computes else None
        found.append(Move(key, known[key].noise, known[key].share, cost, computes, blocks))
    return sorted(found, key=lambda move: (-move.noise / (move.cost + 1e-3), move.key))


def predicted_time(plan: Plan, costs: Costs) -> float:
    """Add up the kernel times of all nodes as planned, in nanoseconds."""
    return (
        sum(_times(decision, costs)[decision.scheme not in (None, "weight-int8")] for decision in plan.decisions) or 1.0
    )


def bargains(variants: Variants, ranked: Sequence[Move]) -> Found:
    """Return nodes to float, one by one, whose error is out of proportion to the time that 8 bit saves there.

    What a node really takes along shows when the plan is made anew: where it goes, its neighbours may follow.
    """
    costs = variants.ready.plan.costs
    choices: dict[str, Choice] = {}
    left = list(ranked)
    best = variants.judge.sqnr(variants.model(choices))
    time = predicted_time(variants.ready.plan, costs)
    for _ in range(GAINS):
        noise = math.fsum(move.noise for move in left) or 1.0
        gains = {move: decibels_without(move.noise / noise) for move in left}
        worth = [move for move, gain in gains.items() if move.computes and _pays(gain, move.cost)]
        if not worth:
            break
        move = max(worth, key=lambda m: (gains[m] / (m.cost + 1e-3), m.key))
        left.remove(move)
        attempt = {**choices, move.key: _choice(move)}
        longer = predicted_time(variants.settled(attempt)[0].plan, costs)
        if not _pays(gains[move], longer / time - 1):
            continue
        reached = variants.judge.sqnr(variants.model(attempt))
        if reached >= best + KEPT_GAIN * gains[move]:
            best, choices, time = reached, attempt, longer
    return Found(choices, met=True, sqnr=best)


def _pays(gain: float, cost: float) -> bool:
    return gain >= max(LEAST_GAIN, GAIN_FOR_TIME * cost) and cost <= MOST_FOR_ONE


def fewest(
    variants: Variants,
    ranked: Sequence[Move],
    meets: Meets,
    settled: Choices,
    *,
    stages: int = 2,
    missed: bool = False,
) -> Found:
    """Find the fewest nodes to return to float until the model meets the budget.

    Args:
        variants: What is tried.
        ranked: The nodes, in the order in which they are returned.
        meets: Whether a quantized model meets the budget.
        settled: Choices that stay.
        stages: 1 to store all weights in 8 bit whatever happens, 2 to store those in float, too, that it takes.
        missed: Whether the choices that stay are known to miss the budget, and need not be tried alone.

    """
    computing = [move for move in ranked if move.computes and move.key not in settled]
    in_order: list[tuple[list[Move], Callable[[Move], Choice]]] = [(computing, _choice)]
    if any(move.blocks for move in computing):
        in_order.insert(0, (computing, lambda move: move.blocks or _choice(move)))
    if stages > 1:
        in_order.append((sorted(ranked, key=lambda move: (-move.noise, move.key)), _kept))
    choices = dict(settled)

    def returned(choose: Callable[[Move], Choice], moves: Sequence[Move]) -> dict[str, Choice]:
        return choices | {move.key: choose(move) for move in moves}

    def suffices(choose: Callable[[Move], Choice], moves: Sequence[Move]) -> bool:
        return meets(variants.model(returned(choose, moves)))

    if not missed and meets(variants.model(choices)):
        return Found(choices, met=True)
    for stage, choose in in_order:
        if stage and suffices(choose, stage):
            return Found(returned(choose, shortest(stage, partial(suffices, choose))), met=True)
        choices = returned(choose, stage)
    return Found(choices, met=False)


def shortest(ranked: Sequence[T], suffices: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """Find by bisection how much of a list suffices from its front, if all of it does and nothing does not."""
    few, enough = 0, len(ranked)  # `few` is not enough
    while enough - few > 1:
        middle = (few + enough) // 2
        if suffices(ranked[:middle]):
            enough = middle
        else:
            few = middle
    return ranked[:enough]


def affordable(ranked: Sequence[Move], most: float) -> list[Move]:
    """Take moves from the front as long as their time together is no more than a share of the model's."""
    taken, spent = [], 0.0
    for move in ranked:
        spent += move.cost
        if spent > most:
            break
        taken.append(move)
    return taken


def _choice(move: Move) -> Choice:
    return Choice("weight-int8", f"{_bought(move)}, for {100 * move.cost:.1f} % of the time")


def _kept(move: Move) -> Choice:
    return Choice("float", f"kept float: {_bought(move)}")


def _bought(move: Move) -> str:
    return f"in 8 bit it made {100 * move.share:.0f} % of the error"


def left_open(plan: Plan, decision: Decision) -> bool:
    """Whether the recipe leaves the node to `auto`, to the very end."""
    scheme, _ = plan.recipe.scheme_for(decision.node.op_type, decision.node.name)
    return scheme.name == "auto" and scheme.return_to_float


def _times(decision: Decision, costs: Costs) -> tuple[float, float]:
    node = decision.node
    if not node.inputs or node.inputs[0] is None or node.outputs[0] is None or node.bodies:
        return 0.0, 0.0
    return node_times(node, costs)
