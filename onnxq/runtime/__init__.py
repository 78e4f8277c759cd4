"""ONNX Runtime sessions, custom operator libraries, threads and memory.

What a model computes in NumPy is in `evaluator`.
"""
