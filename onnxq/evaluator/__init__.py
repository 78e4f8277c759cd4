"""The reference evaluator: our own schedule over our own kernels, `onnx.reference` for what has none.

Kernels of single operators are in `ops`; runs in onnxruntime are in `runtime`.
"""

from onnxq.evaluator.engine import Evaluator, Taps, arithmetic, wide_evaluator
from onnxq.evaluator.run import Run
from onnxq.evaluator.schedule import Step

__all__ = ["Evaluator", "Run", "Step", "Taps", "arithmetic", "wide_evaluator"]
