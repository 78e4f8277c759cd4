"""The middle of the pipeline for models that onnxruntime cannot run here: custom operators without their library."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from onnxq.errors import InvalidResult, ModelError
from onnxq.ir import Model, Node
from onnxq.ir.consistency import objection, problems
from onnxq.observer import Observer
from onnxq.quant.custom import foreign_node
from onnxq.quant.layers import MeasuredLayers
from onnxq.quant.rewrite import rewrite
from onnxq.quant.stats import Stats
from onnxq.quant.weights import Weights
from onnxq.report import Report
from onnxq.steps import Prepared, choose_qparams, measure, stamp

GIVE_LIBRARY = "Give the library of its custom operators with --custom-ops, or leave out the data for a dynamic model."


def check_runs(model: Model) -> None:
    """Refuse to run a model on data that has a node which onnxruntime does not know.

    Raises:
        ModelError: It has one, which the sentence names.

    """
    foreign = foreign_node(model)
    if foreign is not None:
        raise ModelError(f"onnxruntime cannot run {model.name} on the data: it has no {_label(foreign)}", GIVE_LIBRARY)


def _label(foreign: Node) -> str:
    return f"operator {foreign.op_type} of domain {foreign.domain} (node {foreign.label})"


def carry_out_unrun(
    ready: Prepared, foreign: Node, stats: str | Path | Stats | None, watch: Observer, *, with_data: bool
) -> tuple[Model, Report, bytes]:
    """Rewrite a model and check that it is well formed, without running it.

    Args:
        ready: The float model with its plan.
        foreign: A node that onnxruntime does not know.
        stats: Statistics of an earlier calibration, if there are any.
        watch: Told about each step.
        with_data: Whether samples were given, which cannot be used.

    Returns:
        The quantized model, the report, and the bytes of the model.

    Raises:
        ModelError: The plan needs a run, or the float model is not well formed.
        InvalidResult: The result is not well formed.

    """
    if with_data and stats is None:
        check_runs(ready.model)
    wrong = _objection(ready.model, ready.model.serialize())
    if wrong is not None:
        raise ModelError(f"{ready.model.name} is not well formed: {wrong}", "Export the model again.")
    measured = measure(ready, MeasuredLayers([]), None, stats, watch)
    qparams = choose_qparams(ready.plan, measured)
    weights = Weights(ready.plan, qparams, measured)
    watch.step("rewrite")
    note = f"not run and not compared with the float model, only checked for form: onnxruntime has no {_label(foreign)}"
    report = replace(Report.planned(ready.plan, source=ready.path, notes=ready.notes), notes=(*ready.notes, note))
    model = stamp(rewrite(ready.model, ready.plan, qparams, weights), ready)
    watch.step("verify")
    encoded = model.serialize()
    wrong = _objection(model, encoded)
    if wrong is not None:
        raise InvalidResult(f"the quantized model is not well formed: {wrong}", "Report this model.")
    return model, report, encoded


def _objection(model: Model, encoded: bytes) -> str | None:
    """Say what is wrong with the form of a model; None where nothing is."""
    return objection(encoded) or next(problems(model), None)
