"""The error that every quantized node adds to the outputs, from one pass and a few probes.

Errors of single nodes add up at the outputs as long as they are small. A node's contribution is the error that it makes
itself, times the factor by which the rest of the graph passes it on. One pass over a sample gives the error for all
nodes. The factor is measured at a few nodes spread over the graph, by quantizing them alone. Its logarithm is
interpolated between them. The nodes that come out on top are then run alone as well.

Tests: `tests/search/test_mixed_precision.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from onnxq.errors import ModelError
from onnxq.ir import Model
from onnxq.planning.decision import Choices, Decision, Override, Plan
from onnxq.planning.planner import node_key
from onnxq.runtime.fork import in_copy
from onnxq.search.resolution import resolved_noise, round_to_resolution
from onnxq.search.variants import Variants
from onnxq.verification.layerwise import compare_layers
from onnxq.verification.records import Contribution

ALL_ALONE = 20  # up to so many nodes each is run alone
PROBES = 8
EXACT = 10  # of the nodes that contribute most
PASS_SAMPLES = 1
ALONE = "only one node is quantized"


def sensitivity(variants: Variants, *, exact: int = EXACT, all_alone: int = ALL_ALONE) -> tuple[Contribution, ...]:
    """Measure what each quantized node contributes.

    Args:
        variants: The quantized model and what it can be compared with.
        exact: How many of the nodes that come out on top are run alone.
        all_alone: Up to how many nodes each is run alone.

    Returns:
        One for each node that is quantized on its own account, in graph order. Operators without weights that only
        stay in 8 bit between others are not counted: without their neighbours they would be float.

    """
    plan = variants.prepared.plan
    nodes = weighted_decisions(plan)
    keys = [node_key(decision.node) for decision in nodes]
    measured: dict[int, float] = {}

    def alone(indices: Iterable[int]) -> list[float]:
        new = [index for index in indices if index not in measured]
        found = variants.noises((quantize_only(plan, nodes[index]) for index in new), costs_count=False)
        for index, noise in zip(new, found, strict=True):
            measured[index] = resolved_noise(float(noise.max(initial=0.0)))
        return [measured[index] for index in indices]

    if len(nodes) <= all_alone:
        noises = alone(range(len(nodes)))
    else:
        with in_copy(partial(_own, variants, keys), copies=variants.split.shareable) as own:
            alone(np.linspace(0, len(nodes) - 1, PROBES).round().astype(int).tolist())
            noises = _interpolated(own(), measured)
        top = sorted(range(len(nodes)), key=lambda i: (-noises[i], i))[:exact]
        for index, noise in zip(top, alone(top), strict=True):
            noises[index] = noise
    total = math.fsum(noises) or 1.0
    return tuple(
        Contribution(d.node.display_name, d.node.op_type, key, d.scheme or "", noise, noise / total, index in measured)
        for index, (d, key, noise) in enumerate(zip(nodes, keys, noises, strict=True))
    )


def weighted_decisions(plan: Plan) -> list[Decision]:
    """Return the decisions for nodes that are quantized on their own account."""
    return [d for d in plan.decisions if d.form is not None and not d.form.passive and d.node not in plan.absorbed]


def quantize_only(plan: Plan, chosen: Decision) -> Choices:
    """Choose float for all nodes but one; operators that stay in 8 bit between others follow by themselves."""
    choices = {}
    for decision in plan.decisions:
        if decision is chosen and decision.scheme is not None:
            known = plan.choices.get(node_key(decision.node))
            settings = known.settings if known is not None and known.scheme == decision.scheme else ()
            choices[node_key(decision.node)] = Override(decision.scheme, ALONE, settings)
        elif decision.node not in plan.absorbed and (decision.form is None or not decision.form.passive):
            choices[node_key(decision.node)] = Override("float", ALONE)
    return choices


def _own(variants: Variants, keys: Sequence[str]) -> list[float]:
    """Return each node's own squared error by its squared size; 0 where it is part of the next node's."""
    reference: Model = variants.prepared.model.copy()
    try:
        layers = compare_layers(reference, variants.model({}), variants.samples, limit=PASS_SAMPLES)
    except ModelError:  # the evaluator does not know an operator: all nodes count as if they made the same error
        return [1.0] * len(keys)
    known: Mapping[str, float] = {
        layer.tensor: 10 ** (-round_to_resolution(layer.own) / 10) for layer in layers if layer.own > -math.inf
    }
    return [known.get(key, 0.0) for key in keys]


def _interpolated(own: Sequence[float], measured: Mapping[int, float]) -> list[float]:
    """Multiply each node's own error by the gain at its place: a straight line through the logarithms of the probes."""
    at = [index for index, noise in measured.items() if noise > 0 and own[index] > 0 and math.isfinite(noise)]
    if not at:
        return [measured.get(index, noise) for index, noise in enumerate(own)]
    at.sort()
    gains = np.interp(range(len(own)), at, [math.log(measured[index] / own[index]) for index in at])
    return [
        measured.get(index, noise * math.exp(gain)) for index, (noise, gain) in enumerate(zip(own, gains, strict=True))
    ]
