"""The transforms of values that the float model goes through before calibration, in their order.

Each one leaves what the model computes as it is, and is kept where held-out samples gain in the quantized model.

Tests: `tests/pipeline/test_step_order.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from onnxq.progress import Observer
from onnxq.search.held_out import HoldoutSplit
from onnxq.search.trials.equalization_trial import equalize_if_it_helps
from onnxq.search.trials.mask_limit_trial import limit_attention_masks
from onnxq.search.trials.rescaling_trial import rescale
from onnxq.search.trials.small_savings import stored_where_little_is_saved
from onnxq.stages.prepared import Prepared


def transform_values(
    prepared: Prepared,
    split: HoldoutSplit,
    observer: Observer,
    replanned: Callable[[Prepared], None] = lambda prepared: None,
) -> Prepared:
    """Apply the transforms that gain.

    Args:
        prepared: The float model and its plan.
        split: What variants are judged on.
        observer: Told about the step.
        replanned: Told about a plan in which weights are only stored that were to be computed with in 8 bit.

    """
    observer.step("rescale")
    before = prepared = limit_attention_masks(prepared, split)
    prepared = stored_where_little_is_saved(prepared, split)
    if prepared is not before:
        replanned(prepared)
    prepared = equalize_if_it_helps(prepared, split)
    return rescale(prepared, split, observer)
