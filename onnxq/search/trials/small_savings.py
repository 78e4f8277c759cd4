"""A plan that saves little and is far from float: its weights are stored in 8 bits, and it computes in float.

A search would return nodes to float until the model meets its goals, and leave next to nothing of a small saving.

Tests: `tests/search/test_small_savings.py`.
"""

from __future__ import annotations

from dataclasses import replace

from onnxq.search.candidates import is_priced, saved_time
from onnxq.search.held_out import HoldoutSplit
from onnxq.stages.kernel_timing import stored_only
from onnxq.stages.prepared import Prepared
from onnxq.text import percent

SMALL, FAR = 0.15, 24.0  # share of its time that a plan saves, dB from float
STORED = "8 bit would save {} of the time at {:.0f} dB: it computes in float, with weights stored in 8 bits"


def stored_where_little_is_saved(prepared: Prepared, split: HoldoutSplit) -> Prepared:
    """Plan to store weights only where computing in 8 bits saves less than `SMALL`, less than `FAR` dB from float.

    Args:
        prepared: The model and its plan.
        split: What it is judged on: ranges from one half of the samples, weights to nearest.

    """
    plan = prepared.plan
    opened = not prepared.fast and plan.recipe.scheme.name == "auto" and plan.recipe.scheme.return_to_float
    if not opened or not plan.in_integers or not is_priced(plan) or split.samples.made_up or split.halves is None:
        return prepared
    saved = saved_time(plan)
    if saved >= SMALL:
        return prepared
    reached = split.judge.sqnr(split.channel_trial(prepared, 0).model_before(prepared))
    stored = stored_only(prepared) if reached < FAR else None
    if stored is None:
        return prepared
    return replace(stored, notes=(*stored.notes, STORED.format(percent(saved), reached)))
