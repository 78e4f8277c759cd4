"""A model whose search leaves no product of integers: its weights are stored as they were before channels were divided.

Channels are divided, or shifted, for the sake of activations in 8 bits. That is in vain if all nodes return to float,
and stored weights lose by it: their channels differ more than before.

Tests: `tests/pipeline/test_untransformed.py`.
"""

from __future__ import annotations

from dataclasses import replace

from onnxq.pipeline.request import Request
from onnxq.stages.kernel_timing import stored_only
from onnxq.stages.prepared import Prepared
from onnxq.stages.replan import copy_prepared

SAID = "8 bit loses too much in all nodes: it computes in float, and its channels are as they were"


def copy_before_transforms(prepared: Prepared, request: Request) -> Prepared | None:
    """Return a copy to start again from; None where the search cannot return all nodes to float, or is told its goal.

    Args:
        prepared: The plan that is going to be carried out.
        request: What is asked for besides.

    """
    scheme = prepared.plan.recipe.scheme
    opened = scheme.name == "auto" and scheme.return_to_float and not prepared.fast and not request.budget.is_set
    if not opened or request.samples is None or request.stats is not None or not prepared.plan.in_integers:
        return None
    return copy_prepared(prepared)


def still_of_use(before: Prepared | None, transformed: Prepared) -> Prepared | None:
    """Return the copy, if transforms have changed a plan that computes in 8 bit."""
    used = before is not None and before.transforms != transformed.transforms and transformed.plan.in_integers
    return before if used else None


def stored_untransformed(unchanged: Prepared) -> Prepared | None:
    """Plan to store the weights of a copy that nothing has changed; None where a rule asks for products in 8 bit."""
    stored = stored_only(unchanged)
    return None if stored is None or stored.plan.in_integers else replace(stored, notes=(*stored.notes, SAID))
