"""Simplifying passes, one file each: functions that an exporter has spelled out become one operator, or none.

They keep what a model computes, to rounding, and run where the recipe allows it and the target gains by it.
"""

from onnxq.simplify.registry import Change, Simplified, find_simplifications, simplify

__all__ = ["Change", "Simplified", "find_simplifications", "simplify"]
