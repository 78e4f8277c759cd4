"""Trials before calibration: changes of the float model or of its plan, which stay where held-out samples gain by them.

Trials of a calibrated plan, such as those of ranges and of single nodes in float, are in the package above.
"""
