"""Quantized forms of operators: for each family what a plan accepts, how a node is rewritten, and why it is refused.

Arithmetic is in `ops.kernels`.
"""
