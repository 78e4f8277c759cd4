"""The changes of the plan that keep to a budget, or go for goals where there is none.

Tests: `tests/search/test_mixed_precision.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from onnxq.data.samples import spread_samples
from onnxq.errors import CheckFailed
from onnxq.ir import Model
from onnxq.ir.graph import MICROSOFT
from onnxq.planning.decision import FOR_SIZE, Choices, Override, Plan
from onnxq.planning.planner import NOT_WORTHWHILE, node_key
from onnxq.planning.recipe import Recipe
from onnxq.planning.worthwhile import worthwhile
from onnxq.search.budget import LAST_GOAL, LESS, RAISE, Budget, BudgetCheck
from onnxq.search.candidates import Candidate, find_candidates, is_priced, predicted_time, searchable, time_to_spend
from onnxq.search.mixed_bits import keep_to_loss, keep_to_mean, keep_to_size, mixed_weights, said_bits
from onnxq.search.mixed_precision import SearchResult, cheap_wins, fewest_float_nodes, keep_small_weights_float
from onnxq.search.noise_cuts import LAST, NO_PRICE, Judged, NoiseCuts, noise_cuts
from onnxq.search.sensitivity import SPLITS, sensitivity, weighted_decisions
from onnxq.search.size_search import fits_corrected, meet_size_limit
from onnxq.search.sqnr_evaluator import ENOUGH, SqnrEvaluator
from onnxq.search.variants import MOST_ELEMENTS, SEQUENTIAL, ChooseBits, Variants
from onnxq.search.wide_weights import widen_stored_weights
from onnxq.targets.target import load_target
from onnxq.verification.records import Contribution

# Goals of `auto` without a budget, in dB, and the share of the saved time given back for each, with all goals before.
# Below 20 dB a model is of no use, however fast
GOALS = ((20.0, math.inf), (24.0, 0.6), (27.0, 0.3), (LAST_GOAL, 0.05))
# dB beyond each goal for the same share, if that is enough: the samples that judge also chose ranges and codes. Others
# lose that much more, in the median of 18 models by others
OVERFITTING = 1.0
WIDER = "8 bit activations miss the goal, and the target has kernels for 16"
WIDENED = f"gave activations 16 bits: {WIDER}"
SMALLER = "stored weights of {} node{} in fewer bits to meet the size limit"
FEW_SPLITS = 8  # groups of nodes halved without a budget of the user's


@dataclass(frozen=True)
class SearchOutcome:
    """The decisions of the search.

    Attributes:
        choices: For the nodes that are returned to float.
        sensitivity: What each node contributed before.
        correct: Whether there is room for corrected biases.

    """

    choices: Choices = field(default_factory=dict)
    sensitivity: tuple[Contribution, ...] = ()
    correct: bool = True

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of the report about all nodes at once."""
        reasons = Counter(choice.reason for choice in self.choices.values())
        smaller = (SMALLER.format(reasons[FOR_SIZE], "s" * (reasons[FOR_SIZE] > 1)),) if reasons[FOR_SIZE] else ()
        return ((WIDENED,) if reasons[WIDER] else ()) + smaller + said_bits(self.choices)


def settle_codes(variants: Variants, budget: Budget, outcome: SearchOutcome) -> SearchOutcome:
    """Choose bits of weights once accuracy is settled, and codes with the limits of the kernels that read them.

    Without a budget, stored weights may get more bits, and for a size limit fewer.

    Args:
        variants: What is tried.
        budget: What the model may take and lose.
        outcome: From `meet_accuracy`.

    Raises:
        CheckFailed: No choice meets the budget.

    """
    widen = partial(widen_stored_weights, variants, outcome.choices, outcome.sensitivity)
    # Before codes of 8 bits are settled, which weights of 12 do not need
    widened = None if budget.is_set or not outcome.sensitivity else widen()
    changed = variants.weights.settle()
    if widened is not None:
        return replace(outcome, choices=widen() if changed and widened == outcome.choices else widened)
    if budget.max_size is None:
        return outcome
    choices = meet_size_limit(variants, outcome.choices, budget.max_size, budget.data_file)
    if budget.max_drop is not None and choices != outcome.choices:
        meets = _check(variants, budget)
        if not meets(variants.model(choices)):
            raise CheckFailed(f"no choice of nodes that is small enough meets the budget: {meets.last}", RAISE)
    correct = fits_corrected(variants, choices, budget.max_size, budget.data_file)
    return replace(outcome, choices=choices, correct=correct)


def meet_accuracy(variants: Variants, budget: Budget) -> SearchOutcome:
    """Return nodes to float: those whose error is out of proportion to their time, and as many as the budget needs.

    Without a budget, `auto` goes for what is in `GOALS`.

    Raises:
        CheckFailed: No choice meets the budget.

    """
    if variants.prepared.plan.recipe.scheme.mixed_bits:
        return _settle_bits(variants, budget)
    nodes = weighted_decisions(variants.prepared.plan)
    if variants.prepared.fast or not any(searchable(variants.prepared.plan, decision) for decision in nodes):
        if budget.max_drop is not None:  # an SQNR is held against the budget at the end
            meets = _check(variants, budget)
            if not meets(variants.model({})):
                raise CheckFailed(f"the recipe leaves no node open, and misses the budget: {meets.last}", RAISE)
        return SearchOutcome()
    contributions = sensitivity(variants, splits=SPLITS if budget.is_accuracy else FEW_SPLITS)
    ranked = find_candidates(variants.prepared.plan, contributions, variants.prepared.model.opset)
    found = cheap_wins(variants, ranked if is_priced(variants.prepared.plan) else [])  # no price, no trade
    if budget.is_accuracy:
        meets = _check(variants, budget)
        if not meets(variants.model(found.choices)):
            found = _more_accurate(variants, ranked, meets, found)
        if not found.met:
            raise CheckFailed(f"no choice of nodes meets the budget: {meets.last}", RAISE)
        if not variants.planned(found.choices).quantized():
            raise CheckFailed(f"only the float model meets the budget: {meets.last}", LESS)
    else:
        found = towards_goals(variants, ranked, found, keeps_weights=budget.max_size is None)
        found = _usable_on_more(variants, ranked, found, keeps_weights=budget.max_size is None)
        if budget.max_size is None:
            found = keep_small_weights_float(variants, ranked, found)
    return SearchOutcome(stored_unless_worthwhile(variants, found.choices), contributions)


def _check(variants: Variants, budget: Budget) -> BudgetCheck:
    """Return what tells whether variants meet a budget."""
    return BudgetCheck(variants.baseline, variants.samples, budget, variants.split.scratch)


def _settle_bits(variants: Variants, budget: Budget) -> SearchOutcome:
    """Find 8 bits for as many weights as the budget needs; those that a size has settled stay."""
    plan = variants.prepared.plan
    if not budget.is_accuracy:
        return SearchOutcome(plan.choices)
    meets = _check(variants, budget)
    if budget.max_size is not None or plan.recipe.scheme.mean_bits:
        choices = plan.choices if meets(variants.model(plan.choices)) else None
    else:
        weights = mixed_weights(
            variants.prepared, list(spread_samples(variants.samples, SEQUENTIAL, MOST_ELEMENTS).values())
        )
        choices = keep_to_loss(variants.prepared, weights, variants.model, meets)
    if choices is None:
        raise CheckFailed(f"no choice of bits meets the budget: {meets.last}", RAISE)
    return SearchOutcome(choices)


def stored_unless_worthwhile(variants: Variants, choices: Choices) -> Choices:
    """Let the rest compute in float, too, where what was returned leaves too little of the time that 8 bit saves."""
    plan = variants.planned(choices)
    if not choices or worthwhile(plan):
        return choices
    rest = [one.node for one in plan.decisions if one.node in plan.in_integers and searchable(plan, one)]
    return {**choices, **{node_key(node): Override("weight-int8", NOT_WORTHWHILE) for node in rest}}


def towards_goals(
    variants: Variants,
    ranked: list[Candidate],
    found: SearchResult,
    *,
    keeps_weights: bool = False,
    goals: Sequence[tuple[float, float]] | None = None,
) -> SearchResult:
    """Go from goal to goal, as far as what is given back by then is worth it.

    Args:
        variants: What is tried.
        ranked: The nodes, in the order in which they are returned.
        found: The choices so far.
        keeps_weights: Whether weights may stay float for a goal that may take any time: the file grows by them.
        goals: dB, and the share of the saved time given back for each; those of a run with searches by default.

    """
    before, judge = variants.prepared.plan, variants.split.goal_evaluator
    goals = goals_of(before) if goals is None else goals
    if judge not in (variants.judge, variants.fine_judge) and found.sqnr is not None and found.sqnr < ENOUGH:
        found = replace(found, sqnr=judge.sqnr(variants.model(found.choices)))
    cuts = None if _widened(variants) else noise_cuts(variants, ranked, found.choices)
    along = None if cuts is None or found.sqnr is None else _along_cuts(cuts, judge, found.sqnr, goals)
    if along is not None:
        return along if along.met else found
    for goal, share in goals:
        if found.sqnr is None or found.sqnr >= goal:
            continue
        most = time_to_spend(before, share)
        most -= 0.0 if math.isinf(most) else _given_back(variants, found.choices)
        if most <= 0:
            break

        def meets(model: Model, goal: float = goal) -> bool:
            return judge.sqnr_towards(model, goal) >= goal

        stages = 2 if keeps_weights and math.isinf(most) else 1
        reached = _more_accurate(variants, ranked, meets, found, stages=stages, most=most)
        if not reached.met or not variants.planned(reached.choices).quantized():
            break
        found = replace(reached, sqnr=goal)
    return found


def _usable_on_more(
    variants: Variants, ranked: list[Candidate], found: SearchResult, *, keeps_weights: bool
) -> SearchResult:
    """Search on for the first goal, which may take any time, where more samples miss it than the search looked at.

    One sample may hold most of the error: a classifier that is sure of all others but takes another class there.
    """
    judge, others = variants.fine_judge, (variants.split.goal_evaluator, variants.judge)
    goal = next((goal for goal, _ in GOALS), 0.0)
    if judge in others or found.sqnr is None or found.sqnr < goal:
        return found

    def meets(model: Model) -> bool:
        return judge.sqnr_towards(model, goal) >= goal

    if meets(variants.model(found.choices)):
        return found
    reached = _more_accurate(variants, ranked, meets, found, stages=1 + keeps_weights)
    return reached if reached.met and variants.planned(reached.choices).quantized() else found


def goals_of(plan: Plan) -> Sequence[tuple[float, float]]:
    """Return the goals of a run with searches: dB, and the share of the saved time that may be given back for each."""
    if not is_priced(plan):
        return GOALS[:1]
    return [(goal + more, share) for goal, share in GOALS for more in (0.0, OVERFITTING)]


def _along_cuts(
    cuts: NoiseCuts, judge: SqnrEvaluator, sqnr: float, goals: Sequence[tuple[float, float]]
) -> SearchResult | None:
    """Find the plan of the lowest price that reaches the last goal for which its share of the time is enough.

    Args:
        cuts: Plans by the price of noise.
        judge: What they are judged by.
        sqnr: What the first one reaches, in dB.
        goals: As in `towards_goals`. The more dB, the less time: who reaches one could reach all before.

    Returns:
        What was found, which is not met where no goal is reached. None where the first one is missed at any price,
        though it may take any time.

    """
    judged, plan = Judged(cuts, judge, sqnr), cuts.variants.prepared.plan
    ahead = [(goal, cuts.affordable(time_to_spend(plan, share))) for goal, share in goals if goal > sqnr]
    tried, met, missed = {NO_PRICE: sqnr}, 0, len(ahead) + 1  # goals in front of these
    while missed - met > 1:
        middle = (met + missed) // 2
        goal, place = ahead[middle - 1]
        if place not in tried:
            tried[place] = judged(cuts.plan(place), min(other for other, same in ahead if same == place))
        met, missed = (middle, missed) if tried[place] >= goal else (met, middle)
    if not met and ahead and ahead[0][1] == LAST:
        return None
    for goal, _ in reversed(ahead[:met]):
        many = min(place for place, reached in tried.items() if reached >= goal)
        few = max(place for place, reached in tried.items() if reached < goal and place < many)
        choices = cuts.cheapest(few, many, goal, partial(judged, goal=goal))
        if cuts.variants.planned(choices).quantized():
            return SearchResult(choices, met=True, sqnr=goal)
    return SearchResult({}, met=False)


def _given_back(variants: Variants, choices: Choices) -> float:
    """Return how much longer the model takes with these choices, as a share of its time without."""
    before, after = variants.prepared.plan, variants.planned(choices)
    return predicted_time(after, before.costs) / predicted_time(before, before.costs) - 1


def _more_accurate(
    variants: Variants,
    ranked: list[Candidate],
    meets: Callable[[Model], bool],
    missed: SearchResult,
    *,
    stages: int = 2,
    most: float = math.inf,
) -> SearchResult:
    """Search on from what misses a goal, with activations of 16 bits at first where the target has kernels for them."""
    wide = _widened(variants)
    return fewest_float_nodes(
        variants,
        ranked,
        meets,
        missed.choices,
        below=wide,
        stages=stages,
        max_time=most,
        missed=not wide,
        cuts=None if wide else noise_cuts(variants, ranked, missed.choices),
    )


def _widened(variants: Variants) -> Choices:
    """Return all activations 16 bits, if the target has kernels for that: they read and write one type."""
    plan, opset = variants.prepared.plan, variants.prepared.model.opset
    wide = load_target(plan.recipe.scheme.target).wide
    if wide == "":
        return {}
    standard = replace(plan.recipe.scheme, activations=wide).pair_opset(activation=True, weight=True) <= opset
    settings = (("activations", wide), ("domain", plan.recipe.scheme.domain if standard else MICROSOFT))
    return {
        node_key(decision.node): Override("static-int8", WIDER, settings)
        for decision in plan.decisions
        if decision.scheme == "static-int8" and searchable(plan, decision)
    }


def bits_by_size(recipe: Recipe, budget: Budget) -> ChooseBits | None:
    """Return what plans the bits of weights for their mean or the size of a budget; None where neither is asked for."""
    if recipe.scheme.mean_bits:
        return partial(keep_to_mean, bits=recipe.scheme.mean_bits)
    if not recipe.scheme.mixed_bits or budget.max_size is None:
        return None
    return partial(keep_to_size, max_size=budget.max_size, data_file=budget.data_file)
