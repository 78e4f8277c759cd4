"""Plan, scales and codes written into the graph as Q/DQ pairs and integer operators.

Rewrites that are faster for one runtime are in `optimize`.
"""
