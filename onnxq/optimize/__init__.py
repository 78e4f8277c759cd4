"""Rewrites of the quantized graph for one target, exact to the bit.

Rewrites of the float graph are in `simplify`.
"""
