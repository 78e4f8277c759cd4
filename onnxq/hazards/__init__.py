"""Hazards: versions of onnxruntime that compute a quantized model otherwise than its file says, as a table of data.

Measured accuracy and latency are in `verification`.
"""

from onnxq.hazards.found import FoundHazard, find_hazards, least_onnxruntime
from onnxq.hazards.planned import planned_hazards
from onnxq.hazards.processor import this_processor
from onnxq.hazards.table import Hazard, load_hazards

__all__ = [
    "FoundHazard",
    "Hazard",
    "find_hazards",
    "least_onnxruntime",
    "load_hazards",
    "planned_hazards",
    "this_processor",
]
