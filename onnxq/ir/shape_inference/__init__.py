"""Types and shapes of every value, inferred where onnx's inference stops.

It changes no graph.
"""
