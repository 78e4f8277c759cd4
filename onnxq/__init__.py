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
    from onnxq.budget import Budget
    from onnxq.evaluator import evaluate
    from onnxq.fusion import read_fusion
    from onnxq.ir import Model, load, save
    from onnxq.layerwise import compare_layers
    from onnxq.metric import measure_metric
    from onnxq.pipeline import quantize
    from onnxq.quant.custom import register_custom_ops
    from onnxq.quant.recipe import Recipe, load_recipe, recipe_names
    from onnxq.quant.samples import Samples, open_samples
    from onnxq.report import Report
    from onnxq.steps import prepare
    from onnxq.verify import Comparison, compare

_LAZY = {
    "Budget": "onnxq.budget",
    "Comparison": "onnxq.verify",
    "Model": "onnxq.ir",
    "Recipe": "onnxq.quant.recipe",
    "Report": "onnxq.report",
    "Samples": "onnxq.quant.samples",
    "compare": "onnxq.verify",
    "compare_layers": "onnxq.layerwise",
    "evaluate": "onnxq.evaluator",
    "load": "onnxq.ir",
    "load_recipe": "onnxq.quant.recipe",
    "measure_metric": "onnxq.metric",
    "open_samples": "onnxq.quant.samples",
    "prepare": "onnxq.steps",
    "quantize": "onnxq.pipeline",
    "read_fusion": "onnxq.fusion",
    "recipe_names": "onnxq.quant.recipe",
    "register_custom_ops": "onnxq.quant.custom",
    "save": "onnxq.ir",
}

__all__ = [
    "Budget",
    "CheckFailed",
    "Comparison",
    "DataError",
    "InvalidResult",
    "Model",
    "ModelError",
    "NothingToQuantize",
    "OnnxqError",
    "OutputError",
    "Recipe",
    "RecipeError",
    "Report",
    "Samples",
    "__version__",
    "compare",
    "compare_layers",
    "evaluate",
    "load",
    "load_recipe",
    "measure_metric",
    "open_samples",
    "prepare",
    "quantize",
    "read_fusion",
    "recipe_names",
    "register_custom_ops",
    "save",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'onnxq' has no attribute '{name}'")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
