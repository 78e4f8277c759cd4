"""Normalising passes, one file each: they change how a model is written, never what it computes.

Passes that change how much there is to compute are in `simplify`.
"""

from onnxq.ir.passes.registry import Pass, find_passes, normalise

__all__ = ["Pass", "find_passes", "normalise"]
