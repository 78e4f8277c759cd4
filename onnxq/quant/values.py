"""What the decisions of a plan mean for values: which are calibrated, and which have scale or range of another."""

from __future__ import annotations

from collections.abc import Collection

from onnxq.ir import Value
from onnxq.ops.integer_domain import MOVERS
from onnxq.quant.decision import Plan


def collect_values(plan: Plan) -> None:
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
            value = plan.outputs.setdefault(node, next(output for output in node.outputs if output is not None))
            plan.ranges.setdefault(value, settings)
            source = node.inputs[0]
            if form.same_scale and source is not None:
                plan.same_scale[value] = source
    _follow_moves(plan)


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
    """Give the first of the calibrated values that all of a value is moved from; itself where there is none."""
    found, node = value, value.producer
    while node is not None and not node.domain and node.op_type in (*MOVERS, "MaxPool") and node.op_type != "Split":
        source = node.inputs[0]
        if source is None:
            break
        found = source if source in known else found
        node = source.producer
    return found
