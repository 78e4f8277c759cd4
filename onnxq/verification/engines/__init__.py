"""One model in two engines: onnxruntime without optimisations against the reference evaluator, node by node.

Comparing a quantized model with its float model is in `verification.compare`.
"""

from onnxq.verification.engines.check import check_engines
from onnxq.verification.engines.result import Disagreement, EngineCheck, OutputAgreement, Parting

__all__ = ["Disagreement", "EngineCheck", "OutputAgreement", "Parting", "check_engines"]
