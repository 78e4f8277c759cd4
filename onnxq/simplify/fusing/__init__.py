"""Passes that write a decomposed function as one operator.

Passes that move constants into weights are in `simplify.folding`.
"""
