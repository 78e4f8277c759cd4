"""onnxq turns a float ONNX model into a quantized one that is valid, verified, smaller and faster.

The public names. They are imported when they are first used, so that `import onnxq` and `onnxq --help` stay cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from onnxq.errors import (
    CheckFailed,
    DataError,
    InvalidResult,
    ModelError,
    NothingToQuantize,
    OnnxqError,
    OutputError,
    RecipeError,
)
from onnxq.version import __version__

if TYPE_CHECKING:
    from onnxq.calibration.stats import Stats
    from onnxq.data.reading import Preparation, Reading
    from onnxq.data.samples import Samples, open_samples
    from onnxq.evaluator import evaluate
    from onnxq.explanation.explain import explain
    from onnxq.explanation.inspect import Inspection, inspect
    from onnxq.explanation.records import Explanation
    from onnxq.ir import Model, load, save
    from onnxq.pipeline.plan import plan
    from onnxq.pipeline.quantize import Quantized, quantize
    from onnxq.planning.recipe import Recipe, load_recipe, recipe_names
    from onnxq.progress import STEPS, Observer, Progress
    from onnxq.report import Report
    from onnxq.runtime.custom_ops import register_custom_ops
    from onnxq.search.budget import Budget
    from onnxq.stages.kernel_timing import Timing
    from onnxq.stages.prepare import prepare
    from onnxq.verification.compare import Comparison, compare
    from onnxq.verification.layerwise import compare_layers
    from onnxq.verification.ort_graph import read_fusion
    from onnxq.verification.user_metric import measure_metric

_LAZY = {
    "Budget": "onnxq.search.budget",
    "Comparison": "onnxq.verification.compare",
    "Explanation": "onnxq.explanation.records",
    "Inspection": "onnxq.explanation.inspect",
    "Model": "onnxq.ir",
    "Observer": "onnxq.progress",
    "Progress": "onnxq.progress",
    "Quantized": "onnxq.pipeline.quantize",
    "Preparation": "onnxq.data.reading",
    "Reading": "onnxq.data.reading",
    "Recipe": "onnxq.planning.recipe",
    "Report": "onnxq.report",
    "STEPS": "onnxq.progress",
    "Samples": "onnxq.data.samples",
    "Stats": "onnxq.calibration.stats",
    "Timing": "onnxq.stages.kernel_timing",
    "compare": "onnxq.verification.compare",
    "compare_layers": "onnxq.verification.layerwise",
    "evaluate": "onnxq.evaluator",
    "explain": "onnxq.explanation.explain",
    "inspect": "onnxq.explanation.inspect",
    "load": "onnxq.ir",
    "load_recipe": "onnxq.planning.recipe",
    "measure_metric": "onnxq.verification.user_metric",
    "open_samples": "onnxq.data.samples",
    "plan": "onnxq.pipeline.plan",
    "prepare": "onnxq.stages.prepare",
    "quantize": "onnxq.pipeline.quantize",
    "read_fusion": "onnxq.verification.ort_graph",
    "recipe_names": "onnxq.planning.recipe",
    "register_custom_ops": "onnxq.runtime.custom_ops",
    "save": "onnxq.ir",
}

__all__ = [
    "STEPS",
    "Budget",
    "CheckFailed",
    "Comparison",
    "DataError",
    "Explanation",
    "Inspection",
    "InvalidResult",
    "Model",
    "ModelError",
    "NothingToQuantize",
    "Observer",
    "OnnxqError",
    "OutputError",
    "Preparation",
    "Progress",
    "Quantized",
    "Reading",
    "Recipe",
    "RecipeError",
    "Report",
    "Samples",
    "Stats",
    "Timing",
    "__version__",
    "compare",
    "compare_layers",
    "evaluate",
    "explain",
    "inspect",
    "load",
    "load_recipe",
    "measure_metric",
    "open_samples",
    "plan",
    "prepare",
    "quantize",
    "read_fusion",
    "recipe_names",
    "register_custom_ops",
    "save",
]


if not TYPE_CHECKING:  # or a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module 'onnxq' has no attribute '{name}'")
        return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
