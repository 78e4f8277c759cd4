"""Passes that remove or merge nodes without changing any weight.

Passes that recognise functions are in `simplify.fusing`.
"""
