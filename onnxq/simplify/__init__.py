"""Simplifying passes, one file each: functions that an exporter has spelled out become one operator, or none, or are
written so that the target's runtime makes its faster kernels of them.

They keep what a model computes, to rounding, and run where the recipe allows it and the target gains by it.
"""

from onnxq.simplify.pass_manager import Change, Simplified, find_simplifications, simplify

__all__ = ["Change", "Simplified", "find_simplifications", "simplify"]
