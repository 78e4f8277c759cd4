"""Limit masks in front of Softmax nodes, on which onnxruntime spends time with denormal numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from onnxq.data.samples import Samples
from onnxq.ir import Model, Value, commit
from onnxq.ir.shape_inference.dims import product
from onnxq.ir.shape_inference.symbolic import Shapes
from onnxq.ir.shape_inference.types import infer_types
from onnxq.optimize.optimize import softmax_in_attention
from onnxq.rescaling.attention_masks import DEEPEST, MaskedSoftmax, ValueLookup, find_masked
from onnxq.rescaling.mask_limits import MaskLimit, choose_limits, limit_patch
from onnxq.runtime.session import InMemory, SessionError, open_session, run_session
from onnxq.search.held_out import HoldoutSplit
from onnxq.search.logits import scores
from onnxq.simplify.regions.constant_values import ARITHMETIC, known_array
from onnxq.stages.prepared import Prepared
from onnxq.stages.replan import copy_prepared

WHY = "what lies deeper costs onnxruntime denormal numbers"
CODED = "codes that reach deeper leave no steps for scores"
MASKS = "limited the mask of {} Softmax node{} to {}: {}"
SCORES = "limited the logits of {} Softmax node{} to {:.0f} below the largest of a row: {}"
SAME = 100.0  # dB, that is 1e-5: float32 is more accurate, but not after many layers
MOST_SEEN = 512 << 20  # bytes of scores and masks that are looked at
# Operators that masks are computed with
OPERATORS = ARITHMETIC | frozenset((
    "And", "ConstantOfShape", "Equal", "Expand", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or",
    "Range", "Slice", "Tile", "Transpose", "Trilu", "Where",
))  # fmt: skip
DEPTH = 12
SHARE = 0.01  # of the weights' bytes that a mask may take which was computed before


def limit_attention_masks(prepared: Prepared, split: HoldoutSplit) -> Prepared:
    """Limit masks from below as far as the samples show that what is masked weighs nothing either way.

    How deep is chosen on one half of the samples; on the other, the outputs have to stay the same. Samples that are
    made up say nothing about scores. A target that is not simplified for keeps its masks unless it has scores in codes.
    So does attention that becomes one operator: limits would be no part of that, and keep it apart.
    """
    recipe, coded = prepared.plan.recipe, {value.name for value in prepared.plan.ranges}
    if prepared.fast or not recipe.simplify or split.samples.made_up or split.halves is None:
        return prepared
    if not (recipe.simplifies or coded):
        return prepared
    model = prepared.model.copy()
    infer_types(model)
    known = _known(model)
    # Scores from which an output comes at once are what variants are judged by
    found = find_masked(model.graph, model.opset, known, scores(model).values())
    for masked in found:
        read = masked.softmax.inputs[0]
        masked.coded = not coded.isdisjoint(value.name for value in (read, masked.scores) if value is not None)
    found = [masked for masked in found if recipe.simplifies or masked.coded]
    if found and any(d.settings is not None and d.settings.form == "matmulnbits" for d in prepared.plan.decisions):
        joined = softmax_in_attention(model, recipe.scheme.target)
        found = [masked for masked in found if masked.coded or _result(masked) not in joined]
    if not found:
        return prepared
    try:
        _look(model, found, split.halves[0])
    except SessionError:  # which calibration reports, with the sample
        return prepared
    chosen = choose_limits(found, known)
    if not chosen:
        return prepared
    commit([limit_patch(limited, model.opset) for limited in chosen])
    infer_types(model)
    changed = copy_prepared(replace(prepared, model=model, notes=(*prepared.notes, *_notes(chosen))))
    return changed if split.judge.sqnr_towards(changed.model, SAME) >= SAME else prepared


def _result(masked: MaskedSoftmax) -> str:
    result = masked.softmax.outputs[0]
    return "" if result is None else result.name


def _look(model: Model, found: Sequence[MaskedSoftmax], samples: Samples) -> None:
    """Show the scores and masks of a few samples to those that have to choose."""
    terms = list(dict.fromkeys(term for masked in found for term in masked.terms))
    fixed = {term: term.constant.numpy() for term in terms if term.constant is not None}
    fed = [term for term in terms if term not in fixed and term.is_input]
    taps = [term for term in terms if term not in fixed and not term.is_input]
    session = open_session(InMemory(model, [tap for tap in taps if not tap.is_output]), optimize="basic")
    seen = 0
    for sample in samples:
        arrays = dict(zip(taps, run_session(session, [tap.name for tap in taps], sample), strict=True))
        arrays |= fixed | {value: sample[value.name] for value in fed}
        for masked in found:
            masked.look(arrays)
        seen += sum(array.nbytes for array in arrays.values())
        if seen > MOST_SEEN:
            break


def _known(model: Model) -> ValueLookup:
    """Make what gives the elements of a value that is the same at every run, and small enough to be stored."""
    shapes = Shapes(model.graph, model.opset)
    most = SHARE * model.weight_bytes

    def known(value: Value) -> np.ndarray | None:
        if value.constant is not None:
            return known_array(value, shapes)
        shape = shapes.of(value)
        size = None if shape is None else product(shape).known
        if size is None or size * np.dtype(np.float32).itemsize > most:
            return None
        return known_array(value, shapes, DEPTH, OPERATORS)

    return known


def _notes(chosen: Sequence[MaskLimit]) -> Iterator[str]:
    depths = sorted({limited.limit for limited in chosen if limited.limit is not None})
    counts = [sum(len(each.readers) for each in chosen if (each.limit is None) == bare) for bare in (False, True)]
    plurals = ["" if count == 1 else "s" for count in counts]
    why = CODED if any(reader.coded for limited in chosen for reader in limited.readers) else WHY
    if depths:
        yield MASKS.format(counts[0], plurals[0], " and ".join(map(str, depths)), why)
    if counts[1]:
        yield SCORES.format(counts[1], plurals[1], DEEPEST, why)
