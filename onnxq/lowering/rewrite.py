"""Carry out a plan: every family describes its nodes as patches, and the graph commits them in one place."""

from __future__ import annotations

from collections.abc import Mapping

from onnxq.calibration.qparams import QParams
from onnxq.ir import Model, Node, Patch, Value, commit
from onnxq.lowering.qdq_patch import QuantizingPatch, SharedNodes
from onnxq.ops.forms.family import NodeView, rewrite_site
from onnxq.optimize.body_captures import copy_for_bodies
from onnxq.planning.planner import Plan
from onnxq.rescaling.outlier_split import restore_unclipped
from onnxq.rounding.weights import Weights


def rewrite(model: Model, plan: Plan, qparams: Mapping[Value, QParams], weights: Weights | None = None) -> Model:
    """Replace every planned node by its quantized form.

    Args:
        model: The model that the plan was made for; it is changed.
        plan: The decisions.
        qparams: Scale and zero point of every value in `plan.calibrated()`.
        weights: Codes of the weights; rounded to nearest without it.

    Returns:
        The same model.

    """
    commit(_clip_less(plan))
    weights = weights or Weights()
    weights.prepare(plan)
    shared = SharedNodes(plan, qparams, weights)
    patches: list[Patch] = []
    for decision in plan.decisions:
        if decision.scheme is None:
            continue
        patch = QuantizingPatch(decision.node.graph, decision.node, decision.node.label, shared, decision.settings)
        if decision.form is not None and decision.settings is not None:
            if decision.form.pairs:
                patch.read_pairs(decision.node, decision.form)
            else:
                rewrite_site(NodeView(decision.node, decision.settings, model.opset), patch)
            for value in plan.pairs_behind(decision.node):
                _quantize_output(patch, decision.node, value, plan)
        patches.append(patch)
    patches = [*shared.outer.values(), *patches]
    commit(patches)
    commit(copy_for_bodies(model))
    for node in (node for patch in patches for node in patch.nodes if node.domain):
        model.opsets.setdefault(node.domain, 1)
    return model


def _clip_less(plan: Plan) -> list[Patch]:
    """Let nodes without static codes read what was clipped for such codes alone."""
    readers: dict[Value, tuple[list[Node], list[Node]]] = {}
    for decision in plan.decisions if plan.clipped else ():
        read = decision.node.inputs[0] if decision.node.inputs else None
        if read is not None and read.name in plan.clipped and decision.scheme != "static-int8":
            readers.setdefault(read, ([], []))[decision.scheme is not None].append(decision.node)
    return [restore_unclipped(read, plan.clipped[read.name], *others) for read, others in readers.items()]


def _quantize_output(patch: QuantizingPatch, node: Node, value: Value, plan: Plan) -> None:
    produced = patch.produced or (node.outputs[0] if value.producer in plan.absorbed else value)
    assert produced is not None
    patch.quantize_output(value, produced)
