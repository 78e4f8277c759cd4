"""One model in two engines: onnxruntime without optimisations against the reference evaluator, node by node."""

from onnxq.engines.check import check_engines
from onnxq.engines.result import Disagreement, EngineCheck, OutputAgreement, Parting

__all__ = ["Disagreement", "EngineCheck", "OutputAgreement", "Parting", "check_engines"]
