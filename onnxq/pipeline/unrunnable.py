"""The middle of the pipeline for models that onnxruntime cannot run here: custom operators without their library.

Tests: `tests/runtime/test_custom_ops.py`.
"""

from __future__ import annotations

from dataclasses import replace

from onnxq.calibration.layer_moments import MeasuredLayers
from onnxq.errors import InvalidResult, ModelError, RecipeError
from onnxq.ir import Model
from onnxq.ir.invariants import objection, problems
from onnxq.lowering.rewrite import rewrite
from onnxq.pipeline.plan import plan_report
from onnxq.pipeline.request import Quantized, Request
from onnxq.rounding.weights import Weights
from onnxq.runtime.custom_ops import check_runs, lacking_operator
from onnxq.stages.finish import finalize
from onnxq.stages.measure import choose_qparams, measure
from onnxq.stages.prepared import Prepared

UNMEASURED = "bits are chosen by running the model, and onnxruntime lacks one of its operators"


def quantize_unrunnable(prepared: Prepared, request: Request) -> Quantized:
    """Rewrite a model and check that it is well formed, without running it.

    Args:
        prepared: The float model with its plan.
        request: What else the run is given. Statistics of an earlier calibration serve, samples cannot be used.

    Raises:
        ModelError: The plan needs a run, or the float model is not well formed.
        InvalidResult: The result is not well formed.
        RecipeError: Bits of weights are to be chosen by running the model.

    """
    if prepared.plan.recipe.scheme.mixed_bits:
        raise RecipeError(UNMEASURED, "Pass --bits 4.")
    if request.samples is not None and request.stats is None:
        check_runs(prepared.model)
    wrong = _objection(prepared.model, prepared.model.serialize())
    if wrong is not None:
        raise ModelError(f"{prepared.model.name} is not well formed: {wrong}", "Export the model again.")
    measured = measure(prepared, MeasuredLayers([]), None, request.stats, request.observer)
    qparams = choose_qparams(prepared.plan, measured)
    weights = Weights(prepared.plan, qparams, measured)
    request.observer.step("rewrite")
    lacking = lacking_operator(prepared.model)
    note = f"not run and not compared with the float model, only checked for form: onnxruntime has no {lacking}"
    report = replace(plan_report(prepared), notes=(*prepared.notes, note))
    model = finalize(rewrite(prepared.model, prepared.plan, qparams, weights), prepared)
    request.observer.step("verify")
    encoded = model.serialize()
    wrong = _objection(model, encoded)
    if wrong is not None:
        raise InvalidResult(f"the quantized model is not well formed: {wrong}", "Report this model.")
    return Quantized(model, report, encoded)


def _objection(model: Model, encoded: bytes) -> str | None:
    """Say what is wrong with the form of a model; None where nothing is."""
    return objection(encoded) or next(problems(model), None)
