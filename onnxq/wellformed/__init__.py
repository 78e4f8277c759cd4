"""Whether the quantized parts of a model hold together, told from scales and zero points alone: no weight is read."""

from onnxq.wellformed.check import find_defects
from onnxq.wellformed.defect import Defect

__all__ = ["Defect", "find_defects"]
