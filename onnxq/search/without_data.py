"""Random numbers tell of a model without data which nodes compute in float after all, and which get more bits.

Ranges that are chosen on random numbers serve no other samples, and without data nothing has such a range. Codes of
weights and scales that are found at run time make errors on any numbers, and these show at the outputs. Scales at run
time lose more on others, whose values are spread less evenly. Token ids at random lose about as much as texts.

Some networks give the same whatever the numbers are, which says nothing. Then no scales are found at run time, and all
stored weights get more bits.

Tests: `tests/search/test_without_data.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from onnxq.data.samples import Samples
from onnxq.data.text.table_rows import table_rows
from onnxq.errors import OnnxqError
from onnxq.ir import Model
from onnxq.planning.decision import Choices, Override, node_key
from onnxq.search.candidates import Candidate, find_candidates, is_priced, searchable, time_to_spend
from onnxq.search.meet_budget import FEW_SPLITS, GOALS, SearchOutcome, stored_unless_worthwhile
from onnxq.search.sensitivity import quantize_only, sensitivity, weighted_decisions
from onnxq.search.variants import Variants
from onnxq.search.wide_weights import UNSEEN

NO_ERROR = 1e-11  # of the size of the outputs: errors below which nothing of random numbers reaches them
# dB that scales at run time lose more on other floats: those of three text recognizers and a voice encoder lose 1 to
# 12. On texts, three of six models lose 1, 2 and 8 dB more than on token ids at random. Three lose 2 to 4 dB less
MORE_ON_OTHERS = 6.0
LESS_SURE = 0.5  # what a goal beyond the first is worth on random numbers, as a share of its worth on samples


def settle_without_data(variants: Variants) -> SearchOutcome:
    """Let those nodes compute in float whose scales at run time are too coarse for random numbers.

    Weights that are only stored may get more bits when codes are settled.

    Args:
        variants: The model, with samples that are made up.

    """
    plan = variants.prepared.plan
    if not any(searchable(plan, decision) for decision in weighted_decisions(plan)):
        return SearchOutcome()
    try:
        found = sensitivity(variants, splits=FEW_SPLITS)
        ranked = find_candidates(plan, found, variants.prepared.model.opset)
        computing = [move for move in ranked if move.computes]
        if all(one.noise <= NO_ERROR for one in found):
            return SearchOutcome({move.key: Override("weight-int8", UNSEEN) for move in computing}, found)
        return SearchOutcome(stored_unless_worthwhile(variants, _too_coarse(variants, computing)), found)
    except OnnxqError:  # it does not run on random numbers, which the comparison reports
        return SearchOutcome()


def _too_coarse(variants: Variants, ranked: list[Candidate]) -> Choices:
    """Return nodes to float, those first that make most of the error for their time, as far as a goal is worth it."""
    plan = variants.prepared.plan
    more = _more_on_others(variants.prepared.model, variants.samples) + _more_together(variants, ranked)
    goals = GOALS if is_priced(plan) else GOALS[:1]
    spending = [(goal + more, time_to_spend(plan, LESS_SURE * share)) for goal, share in goals]
    return _in_float(ranked[: _worthwhile(ranked, spending)])


def _worthwhile(ranked: list[Candidate], goals: Sequence[tuple[float, float]]) -> int:
    """Return how many of the first have to go for the last goal, in dB, that their time together is enough for."""
    best = 0
    for goal, most in goals:
        count = _needed(ranked, goal)
        if count > best and math.fsum(move.cost for move in ranked[:count]) > most:
            break
        best = max(best, count)
    return best


def _in_float(moves: list[Candidate]) -> Choices:
    return {move.key: move.ways[-1].choice for move in moves}


def _more_on_others(model: Model, samples: Samples) -> float:
    """Return how many dB more error scales at run time may make on other samples than on those made up."""
    floats = [spec for spec in samples.inputs if spec.numpy_dtype is not None and spec.numpy_dtype.kind == "f"]
    return MORE_ON_OTHERS if any(table_rows(model, spec.name) is None for spec in floats) else 0.0


def _more_together(variants: Variants, ranked: list[Candidate]) -> float:
    """Return how many dB more error some nodes make together than the errors of each add up to."""
    keys, alone = {move.key for move in ranked}, math.fsum(move.noise for move in ranked)
    if len(ranked) < 2 or not 0 < alone < math.inf:
        return 0.0
    plan = variants.prepared.plan
    only = quantize_only(plan, [decision for decision in plan.decisions if node_key(decision.node) in keys])
    together = float(variants.judge.noise(variants.model(only, costs_count=False)).max())
    return max(10 * math.log10(together / alone), 0.0) if 0 < together < math.inf else 0.0


def _needed(ranked: list[Candidate], goal: float) -> int:
    """Return how many of the first have to go so that the others together make no more error than a goal allows."""
    left = [math.fsum(move.noise for move in ranked[place:]) for place in range(len(ranked) + 1)]
    return next(place for place, noise in enumerate(left) if noise <= 10 ** (-goal / 10))
