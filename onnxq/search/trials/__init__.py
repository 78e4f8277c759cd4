"""Trials before calibration: changes of the float model or its plan that stay where held-out samples gain by them."""
