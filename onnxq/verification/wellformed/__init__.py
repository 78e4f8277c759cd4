"""Whether the quantized parts of a model hold together, told from scales and zero points alone: no weight is read.

Whether a model computes the right values is in `verification.engines` and `verification.compare`.
"""

from onnxq.verification.wellformed.check import find_defects
from onnxq.verification.wellformed.defect import Defect

__all__ = ["Defect", "find_defects"]
