"""The reference evaluator: our own schedule over our own kernels, `onnx.reference` for what has none."""

from onnxq.evaluator.engine import Evaluator, Taps, evaluate

__all__ = ["Evaluator", "Taps", "evaluate"]
