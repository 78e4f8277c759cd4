"""Decisions of a plan as facts about values: which are calibrated, and which have scale or range of another.

Tests: `tests/planning/test_shared_scales.py`.
"""

from __future__ import annotations

from collections.abc import Collection

from onnxq.ir import Node, Value
from onnxq.ops.forms.integer_domain import MOVERS, TAKING
from onnxq.planning.decision import Plan
from onnxq.planning.static_bounds import exact_bounds

ROUNDING = ("Add", "Concat", "Conv", "Mul")  # what rounds what it computes to any scale


def propagate_qdq(plan: Plan) -> None:
    """Set what a plan says about values, from its decisions."""
    for decision in plan.decisions:
        node, form, settings = decision.node, decision.form, decision.settings
        if form is None or settings is None or decision.scheme != "static-int8":
            continue
        for slot in form.activations:
            value = node.inputs[slot]
            assert value is not None
            plan.ranges.setdefault(value, settings)
        if form.output:
            made = node.makes
            first = plan.outputs.setdefault(node, made[0])
            plan.others[node] = tuple(made[1:])
            source = node.inputs[0]
            for value in (first, *made[1:]):
                plan.ranges.setdefault(value, settings)
                if form.same_scale and source is not None:
                    plan.same_scale[value] = source
    _join_scales(plan)
    _follow_moves(plan)


def _join_scales(plan: Plan) -> None:
    """Share the scale of a Concat's output with inputs that it alone reads.

    The value is rounded once instead of twice. onnxruntime's QLinearConcat copies codes of its own scale and looks up
    all others in a table: half its time.
    """
    makers = {value: node for node, value in plan.outputs.items()}
    for decision in plan.decisions:
        node = decision.node
        joined = plan.outputs.get(node) if node.op_type == "Concat" and decision.scheme == "static-int8" else None
        if joined is None:
            continue
        reads = list(dict.fromkeys(node.reads))
        alike = len({exact_bounds(value) for value in reads}) == 1
        for value in reads:
            source = _alone_behind(value, node, plan)
            maker = makers.get(source) if source is not None else None
            if source is None or maker is None or maker.op_type not in ROUNDING:
                continue
            # A clamp that codes do by saturating needs the range that ends where it does
            clamped = source.producer is not maker
            if (alike or not clamped) and plan.ranges.get(source) == plan.ranges.get(joined):
                plan.same_scale[source] = joined


def _alone_behind(value: Value, reader: Node, plan: Plan) -> Value | None:
    """Return the value whose scale a value has, if a single node reads both, and the nodes between them."""
    while True:
        if value.is_output or any(use.node is not reader for use in value.uses):
            return None
        if value not in plan.same_scale or value.producer is None:
            return value
        if len(value.producer.outputs) > 1:  # others read other parts of what is taken apart
            return None
        reader = value.producer
        value = plan.same_scale[value]


def _follow_moves(plan: Plan) -> None:
    """Let what is only moved from another value, even in float, have the range of that one, if chosen alike.

    onnxruntime then works in 8 bit between the two even where the plan has not asked for it, as around a MaxPool. Both
    are still measured: where a search leaves the first in float, the second needs a range of its own.
    """
    values = plan.calibrated()
    known = set(values)
    for value in values:
        source = _moved_from(value, known)
        if source is not value and plan.range_settings(source) == plan.range_settings(value):
            plan.moved[value] = source


def _moved_from(value: Value, known: Collection[Value]) -> Value:
    """Return the first of the calibrated values that all of a value is moved from; itself where there is none."""
    found, node = value, value.producer
    while node is not None and not node.domain and node.op_type in (*MOVERS, "MaxPool") and node.op_type not in TAKING:
        source = node.inputs[0]
        if source is None:
            break
        found = source if source in known else found
        node = source.producer
    return found
