"""The reference evaluator: our own schedule over our own kernels, `onnx.reference` for what has none."""

from onnxq.evaluator.engine import Evaluator, Taps, arithmetic, evaluate
from onnxq.evaluator.run import Run
from onnxq.evaluator.schedule import Step

__all__ = ["Evaluator", "Run", "Step", "Taps", "arithmetic", "evaluate"]
