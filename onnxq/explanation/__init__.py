"""Descriptions of a model and its nodes, which change nothing.

Figures of a result are in `verification`.
"""
