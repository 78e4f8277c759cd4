"""Variants judged on held-out samples: rescaling, ranges, bias correction, mixed precision, budgets.

What a variant consists of is in the packages before.
"""
