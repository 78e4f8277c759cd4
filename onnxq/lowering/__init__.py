"""Plan, scales and codes written into the graph as Q/DQ pairs and integer operators.

What is faster for one runtime is in `optimize`.
"""
