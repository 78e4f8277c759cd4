"""The middle of the pipeline for models that onnxruntime cannot run here: custom operators without their library.

Tests: `tests/pipeline/test_quantize.py`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx

from onnxq.calibration.layer_moments import MeasuredLayers
from onnxq.calibration.stats import Stats
from onnxq.errors import InvalidResult, ModelError
from onnxq.ir import Model
from onnxq.ir.invariants import objection, problems
from onnxq.lowering.rewrite import rewrite
from onnxq.progress import Observer
from onnxq.report import Report
from onnxq.rounding.weights import Weights
from onnxq.runtime.custom_ops import foreign_node
from onnxq.stages.finish import finalize
from onnxq.stages.measure import choose_qparams, measure
from onnxq.stages.prepared import Prepared

GIVE_LIBRARY = "Give the library of its custom operators with --custom-ops, or leave out the data for a dynamic model."


def check_runs(model: Model) -> None:
    """Refuse to run a model on data that has a node which onnxruntime does not know.

    Raises:
        ModelError: It has one, which the sentence names.

    """
    if (lacking := _lacking(model)) is not None:
        raise ModelError(f"onnxruntime cannot run {model.name} on the data: it has no {lacking}", GIVE_LIBRARY)


def _lacking(model: Model) -> str | None:
    """Name an operator that onnxruntime does not know; None where it knows all."""
    foreign = foreign_node(model)
    if foreign is None:
        return None
    return f"operator {foreign.op_type} of domain {foreign.domain} (node {foreign.label})"


def quantize_unrunnable(
    prepared: Prepared, stats: str | Path | Stats | None, observer: Observer, *, with_data: bool
) -> tuple[Model, Report, bytes]:
    """Rewrite a model and check that it is well formed, without running it.

    Args:
        prepared: The float model with its plan.
        stats: Statistics of an earlier calibration, if there are any.
        observer: Told about each step.
        with_data: Whether samples were given, which cannot be used.

    Returns:
        The quantized model, the report, and the bytes of the model.

    Raises:
        ModelError: The plan needs a run, or the float model is not well formed.
        InvalidResult: The result is not well formed.

    """
    if with_data and stats is None:
        check_runs(prepared.model)
    wrong = _objection(prepared.model, prepared.model.serialize())
    if wrong is not None:
        raise ModelError(f"{prepared.model.name} is not well formed: {wrong}", "Export the model again.")
    measured = measure(prepared, MeasuredLayers([]), None, stats, observer)
    qparams = choose_qparams(prepared.plan, measured)
    weights = Weights(prepared.plan, qparams, measured)
    observer.step("rewrite")
    lacking = _lacking(prepared.model)
    note = f"not run and not compared with the float model, only checked for form: onnxruntime has no {lacking}"
    report = replace(
        Report.planned(prepared.plan, source=prepared.path, notes=prepared.notes), notes=(*prepared.notes, note)
    )
    model = finalize(rewrite(prepared.model, prepared.plan, qparams, weights), prepared)
    observer.step("verify")
    encoded = model.serialize()
    wrong = _objection(model, encoded)
    if wrong is not None:
        raise InvalidResult(f"the quantized model is not well formed: {wrong}", "Report this model.")
    return model, report, encoded


def _objection(model: Model, encoded: bytes) -> str | None:
    """Say what is wrong with the form of a model; None where nothing is.

    onnx's checker asks for the shape of every output. onnxruntime does not, and exporters leave it out behind custom
    operators.
    """
    proto = onnx.ModelProto.FromString(encoded)
    for output in proto.graph.output:
        if output.type.HasField("tensor_type") and not output.type.tensor_type.HasField("shape"):
            output.type.tensor_type.shape.SetInParent()
    return objection(proto.SerializeToString()) or next(problems(model), None)
