"""Passes that fold constants and linear operators into weights.

Passes that only remove nodes are in `simplify.cleanup`.
"""
