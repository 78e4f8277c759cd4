"""Weights that only save bytes in 8 bits, and get 12 bits where the outputs are far from float.

A model that computes in float has no time to lose: four more bits cost bytes only. Their error is 24 dB less. No
sample chooses codes of 12 bits, so other samples gain as much.

Tests: `tests/search/test_wide_weights.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from onnxq.ir import Model
from onnxq.ir.storage.files import written_bytes
from onnxq.ops.forms.family import NotQuantizable
from onnxq.planning.decision import Choices, Decision, Override, node_key
from onnxq.planning.planner import form_of
from onnxq.rounding.weights import Weights
from onnxq.search.candidates import reason_for_share, searchable
from onnxq.search.cross_validation import fitted_on_half
from onnxq.search.sensitivity import ALL_ALONE, sensitivity
from onnxq.search.variants import Variants, read_many_rows
from onnxq.stages.prepare import spared_bytes
from onnxq.stages.replan import copy_prepared
from onnxq.targets.target import load_target
from onnxq.verification.records import Contribution

BELOW, GOAL = 33.0, 36.0  # dB on samples that codes of 8 bits follow: others have to have 30
ENOUGH_LEFT = 10 ** (-GOAL / 10)
LARGEST_FILE = 0.39  # of the float model's bytes
# Below so many dB, a file may take more bytes: with 17 dB, 0.40 of them are of no use
LITTLE_USE, OF_USE, LARGER_FILES = 23.0, 25.0, (LARGEST_FILE, 0.48, 0.6)
WIDER = 1 / 6  # of the bytes that 8 bits spare: what 12 take more
NODES = 1000  # bytes of the nodes that put 12 bits together
LEFT = 10 ** (-24 / 10)  # of the error
# Error on other samples, in relation to those that chose the codes, where these had few rows. A network with 48 samples
# of one row each makes 11 dB more
OVERFITTED = 10.0
# dB that samples have to show; less where few rows chose the codes, whose error on other samples is larger. A text
# detector gains 0.3 dB on its ten samples and 1.4 dB on others
SHOWN, SHOWN_BY_FEW = 1.0, 0.2
UNSEEN = "random numbers do not show what 8 bit loses"
SETTINGS = (("form", "cast-mul"), ("block_size", 0), ("zero_points", False))


def widen_stored_weights(variants: Variants, choices: Choices, contributions: Sequence[Contribution]) -> Choices:
    """Choose 12 bits for those stored weights that make most of the error for their bytes.

    Args:
        variants: What is tried. Where samples are made up and show no error at all, as many as there is room for.
        choices: What was settled before.
        contributions: What nodes add to the error without any choices.

    """
    stored = can_be_wider(variants, choices)
    costs = {key: WIDER * spared_bytes(decision.node) + NODES for key, decision in stored.items()}
    if not costs:
        return choices
    made_so_far = variants.model(choices)
    taken, least = written_bytes(made_so_far), min(costs.values())
    if least > _room(variants, taken, LARGER_FILES[-1]):
        return choices
    before = variants.judge.sqnr(made_so_far)
    if variants.samples.made_up and before == math.inf:
        chosen = _worth_most(dict.fromkeys(costs, 1.0), costs, _room(variants, taken, LARGEST_FILE), enough=None)
        return {**choices, **{key: Override("weight-int12", UNSEEN, SETTINGS) for key in chosen}}
    few = _overfitted(variants)
    if variants.samples.made_up:
        before = min(before, _of_undecided_cases(variants, made_so_far))
    elif few and before < math.inf:
        before -= _lost_on_others(variants, choices, made_so_far)
    useless = before < LITTLE_USE
    rooms = [_room(variants, taken, most) for most in (LARGER_FILES if useless else (LARGEST_FILE,))]
    goal = before + (SHOWN_BY_FEW if few else SHOWN)
    if before >= BELOW or least > rooms[-1] or not _reaches(variants, choices, dict.fromkeys(costs, 1.0), goal):
        return choices
    found = _contributions(variants, choices, contributions, few=few)
    noises = {one.tensor: one.noise for one in found}
    for room, wanted in zip(rooms, [*(max(goal, OF_USE) for _ in rooms[1:]), goal], strict=True):
        chosen = _worth_most(noises, costs, room, enough=None if useless else ENOUGH_LEFT)
        shares = {one.tensor: one.share for one in found if one.tensor in chosen}
        known = shares.keys() == costs.keys() and wanted <= goal  # all of them, which reach it
        if shares and (known or _reaches(variants, choices, shares, wanted)):
            return _wider(choices, shares)
    return choices


def can_be_wider(variants: Variants, choices: Choices) -> dict[str, Decision]:
    """Return the nodes whose weights are stored in 8 bits, and can have 12."""
    plan = variants.planned(choices)
    if load_target(plan.recipe.scheme.target).stored != "cast-mul":
        return {}
    return {node_key(d.node): d for d in plan.decisions if d.scheme == "weight-int8" and _fits(variants, d)}


def stored_wider(share: float) -> Override:
    """Return the choice of 12 bits for a node that made a share of the error."""
    return Override("weight-int12", reason_for_share(share), SETTINGS)


def _wider(choices: Choices, shares: Mapping[str, float]) -> Choices:
    """Add 12 bits for some nodes, by the share of the error that each made."""
    return {**choices, **{key: stored_wider(share) for key, share in shares.items()}}


def _reaches(variants: Variants, choices: Choices, shares: Mapping[str, float], goal: float) -> bool:
    """Tell whether samples show that 12 bits for these nodes reach so many dB."""
    return variants.judge.sqnr_towards(variants.model(_wider(choices, shares)), goal) >= goal


def _contributions(
    variants: Variants, choices: Choices, known: Sequence[Contribution], *, few: bool
) -> Sequence[Contribution]:
    """Return what nodes add to the error: of codes that few rows chose, what codes to nearest would add.

    Those follow the samples so closely that their error shows on others only. If there are many nodes, what they were
    found to add stands for both.
    """
    if known and not few:
        return known
    if len(known) > ALL_ALONE or (known and variants.samples.made_up):
        return [replace(one, noise=OVERFITTED * one.noise) for one in known]
    prepared = copy_prepared(variants.prepared, choices)
    return sensitivity(Variants(prepared, variants.stats, Weights(), variants.split))


def _overfitted(variants: Variants) -> bool:
    """Tell whether others are going to have more error than the samples show: few chose codes, or they are made up."""
    samples = variants.samples
    if samples.made_up:
        return True
    return variants.weights.fitted and not read_many_rows(variants.prepared.plan, samples.count)


def _lost_on_others(variants: Variants, choices: Choices, fitted: Model) -> float:
    """Return the dB by which samples are worse that chose no codes: of two halves, of which one chooses.

    A model that is fitted on n samples loses two thirds of what one fitted on half as many does; see `CrossValidated`.
    """
    halves = variants.split.fitting_halves
    if halves is None or variants.planned(choices).calibrated() or not variants.weights.fitted:
        return 0.0
    fitting, judging = halves
    half = fitted_on_half(variants, choices, fitting)
    judge = variants.split.evaluator(judging)
    lost = judge.sqnr(fitted) - judge.sqnr(half)
    return 2 / 3 * max(lost, 0.0) if math.isfinite(lost) else 0.0


def _of_undecided_cases(variants: Variants, model: Model) -> float:
    """Return the dB that probabilities in between would have: numbers at random are clear cases of nothing.

    An error that is small in relation to their large scores may be large in relation to those of undecided cases.
    """
    errors = variants.judge.score_errors(model).values()
    return min((10 * math.log10(one.signal / one.noise) for one in errors if one.noise > 0), default=math.inf)


def _worth_most(
    noises: Mapping[str, float], costs: Mapping[str, float], room: float, *, enough: float | None = ENOUGH_LEFT
) -> set[str]:
    """Choose nodes for 12 bits, those first that make most of the error for their bytes.

    Args:
        noises: What each node adds to the error.
        costs: Bytes that each node takes more; of those that can be chosen.
        room: Bytes that there are.
        enough: Error that may be left; None to use all bytes.

    """
    taken, left = set[str](), math.fsum(noises.values())
    for key in sorted(costs, key=lambda key: (-noises.get(key, 0.0) / costs[key], key)):
        if (enough is None or left > enough) and costs[key] <= room:
            taken.add(key)
            left, room = left - (1 - LEFT) * noises.get(key, 0.0), room - costs[key]
    return taken


def _room(variants: Variants, taken: int, most: float) -> float:
    """Return the bytes that a file of so many may still grow by, up to a share of the float model's."""
    model = variants.prepared.model
    return most * max(len(model.source), model.weight_bytes) - taken


def _fits(variants: Variants, decision: Decision) -> bool:
    if decision.settings is None or not searchable(variants.prepared.plan, decision):
        return False
    settings = replace(decision.settings, name="weight-int12", form="cast-mul", block_size=0, zero_points=False)
    try:
        form_of(decision.node, settings, variants.prepared.model.opset)
    except NotQuantizable:
        return False
    return True
