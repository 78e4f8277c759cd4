"""onnxq turns a float ONNX model into a quantized one that is valid, verified, smaller and faster.

The public names. They are imported when they are first used, so that `import onnxq` and `onnxq --help` stay cheap.
"""

import os
from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any

from onnxq.errors import (
    CheckFailed,
    DataError,
    EngineError,
    InvalidResult,
    ModelError,
    NothingToQuantize,
    OnnxqError,
    OutputError,
    ProjectError,
    RecipeError,
)
from onnxq.version import __version__

if TYPE_CHECKING:
    from onnxq.api.calibrate import Shard, calibrate, merge
    from onnxq.api.evaluate import evaluate
    from onnxq.api.examine import examine, input_specs
    from onnxq.api.project import build, check
    from onnxq.api.runtime import Runtime
    from onnxq.api.verify import Verification, verify
    from onnxq.calibration.stats import Stats
    from onnxq.data.examine import Examination
    from onnxq.data.input_summary import InputSummary
    from onnxq.data.reading import ModelFacts, Preparation, Reading
    from onnxq.data.samples import Samples, open_samples
    from onnxq.data.validation import InputSpec
    from onnxq.evaluator import Taps
    from onnxq.explanation.explain import explain
    from onnxq.explanation.inspect import Inspection, inspect
    from onnxq.explanation.records import Explanation
    from onnxq.explanation.why_not import PassAnswer, why_not
    from onnxq.ir import Model, ModelInput, Value, load, save
    from onnxq.pipeline.plan import plan
    from onnxq.pipeline.quantize import quantize
    from onnxq.pipeline.request import Quantized
    from onnxq.planning.recipe import Recipe, in_blocks, load_recipe, recipe_names
    from onnxq.progress import STEPS, Observer, Progress
    from onnxq.project.check import Checked, Finding
    from onnxq.project.outcome import Built
    from onnxq.publish.export import Export, export
    from onnxq.publish.model_card import ExportedFile
    from onnxq.report import NodeReport, Report, write_report
    from onnxq.runtime.custom_ops import register_custom_ops
    from onnxq.runtime.session import InMemory, InSegments, ModelSource
    from onnxq.search.budget import Budget
    from onnxq.stages.kernel_timing import Timing
    from onnxq.stages.prepare import prepare
    from onnxq.stages.prepared import Prepared
    from onnxq.verification.compare import Comparison, compare
    from onnxq.verification.engines import EngineCheck
    from onnxq.verification.families import FamilyFigures
    from onnxq.verification.layerwise import compare_layers
    from onnxq.verification.ort_graph import Fusion, read_fusion
    from onnxq.verification.records import Contribution, Latency, LayerComparison, MetricComparison, OutputComparison
    from onnxq.verification.user_metric import Metric, measure_metric
    from onnxq.warning import WarningLine

# onnxruntime from 1.32 on sends events about runs to its maker, and keeps an identifier in the home folder
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_LAZY = {
    "Budget": "onnxq.search.budget",
    "Built": "onnxq.project.outcome",
    "Checked": "onnxq.project.check",
    "Comparison": "onnxq.verification.compare",
    "Contribution": "onnxq.verification.records",
    "EngineCheck": "onnxq.verification.engines",
    "Examination": "onnxq.data.examine",
    "Explanation": "onnxq.explanation.records",
    "Export": "onnxq.publish.export",
    "ExportedFile": "onnxq.publish.model_card",
    "FamilyFigures": "onnxq.verification.families",
    "Finding": "onnxq.project.check",
    "Fusion": "onnxq.verification.ort_graph",
    "InMemory": "onnxq.runtime.session",
    "InSegments": "onnxq.runtime.session",
    "InputSpec": "onnxq.data.validation",
    "InputSummary": "onnxq.data.input_summary",
    "Inspection": "onnxq.explanation.inspect",
    "Latency": "onnxq.verification.records",
    "LayerComparison": "onnxq.verification.records",
    "Metric": "onnxq.verification.user_metric",
    "MetricComparison": "onnxq.verification.records",
    "Model": "onnxq.ir",
    "ModelFacts": "onnxq.data.reading",
    "ModelInput": "onnxq.ir",
    "ModelSource": "onnxq.runtime.session",
    "NodeReport": "onnxq.report",
    "Observer": "onnxq.progress",
    "OutputComparison": "onnxq.verification.records",
    "PassAnswer": "onnxq.explanation.why_not",
    "Preparation": "onnxq.data.reading",
    "Prepared": "onnxq.stages.prepared",
    "Progress": "onnxq.progress",
    "Quantized": "onnxq.pipeline.request",
    "Reading": "onnxq.data.reading",
    "Recipe": "onnxq.planning.recipe",
    "Report": "onnxq.report",
    "Runtime": "onnxq.api.runtime",
    "STEPS": "onnxq.progress",
    "Samples": "onnxq.data.samples",
    "Shard": "onnxq.api.calibrate",
    "Stats": "onnxq.calibration.stats",
    "Taps": "onnxq.evaluator",
    "Timing": "onnxq.stages.kernel_timing",
    "Value": "onnxq.ir",
    "Verification": "onnxq.api.verify",
    "WarningLine": "onnxq.warning",
    "build": "onnxq.api.project",
    "calibrate": "onnxq.api.calibrate",
    "check": "onnxq.api.project",
    "compare": "onnxq.verification.compare",
    "compare_layers": "onnxq.verification.layerwise",
    "evaluate": "onnxq.api.evaluate",
    "examine": "onnxq.api.examine",
    "explain": "onnxq.explanation.explain",
    "export": "onnxq.publish.export",
    "in_blocks": "onnxq.planning.recipe",
    "input_specs": "onnxq.api.examine",
    "inspect": "onnxq.explanation.inspect",
    "load": "onnxq.ir",
    "load_recipe": "onnxq.planning.recipe",
    "measure_metric": "onnxq.verification.user_metric",
    "merge": "onnxq.api.calibrate",
    "open_samples": "onnxq.data.samples",
    "plan": "onnxq.pipeline.plan",
    "prepare": "onnxq.stages.prepare",
    "quantize": "onnxq.pipeline.quantize",
    "read_fusion": "onnxq.verification.ort_graph",
    "recipe_names": "onnxq.planning.recipe",
    "register_custom_ops": "onnxq.runtime.custom_ops",
    "save": "onnxq.ir",
    "verify": "onnxq.api.verify",
    "why_not": "onnxq.explanation.why_not",
    "write_report": "onnxq.report",
}

__all__ = [
    "STEPS",
    "Budget",
    "Built",
    "CheckFailed",
    "Checked",
    "Comparison",
    "Contribution",
    "DataError",
    "EngineCheck",
    "EngineError",
    "Examination",
    "Explanation",
    "Export",
    "ExportedFile",
    "FamilyFigures",
    "Finding",
    "Fusion",
    "InMemory",
    "InSegments",
    "InputSpec",
    "InputSummary",
    "Inspection",
    "InvalidResult",
    "Latency",
    "LayerComparison",
    "Metric",
    "MetricComparison",
    "Model",
    "ModelError",
    "ModelFacts",
    "ModelInput",
    "ModelSource",
    "NodeReport",
    "NothingToQuantize",
    "Observer",
    "OnnxqError",
    "OutputComparison",
    "OutputError",
    "PassAnswer",
    "Preparation",
    "Prepared",
    "Progress",
    "ProjectError",
    "Quantized",
    "Reading",
    "Recipe",
    "RecipeError",
    "Report",
    "Runtime",
    "Samples",
    "Shard",
    "Stats",
    "Taps",
    "Timing",
    "Value",
    "Verification",
    "WarningLine",
    "__version__",
    "build",
    "calibrate",
    "check",
    "compare",
    "compare_layers",
    "evaluate",
    "examine",
    "explain",
    "export",
    "in_blocks",
    "input_specs",
    "inspect",
    "load",
    "load_recipe",
    "measure_metric",
    "merge",
    "open_samples",
    "plan",
    "prepare",
    "quantize",
    "read_fusion",
    "recipe_names",
    "register_custom_ops",
    "save",
    "verify",
    "why_not",
    "write_report",
]


if not TYPE_CHECKING:  # or a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module 'onnxq' has no attribute '{name}'")
        found = getattr(import_module(_LAZY[name]), name)
        if isinstance(found, FunctionType):
            from onnxq.api.words import speaks_python

            found = speaks_python(found)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted(__all__)
