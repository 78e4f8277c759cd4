"""Subgraphs and their values: what recognition by value is built on.

It holds no pass.
"""
