"""From recipe to a decision for every node: cost model, min-cut partition, Q/DQ propagation.

It reads types and shapes, never weights.
"""
