"""Passes that write a spelled-out function as one operator.

Passes that move constants into weights are in `simplify.folding`.
"""
