"""Variants judged on held-out samples: rescaling, ranges, bias correction, mixed precision, budgets.

The parts of a variant are in the packages before.
"""
