"""Measurements on samples: statistics, ranges, second moments, scales and zero points of activations.

It changes no graph.
"""
