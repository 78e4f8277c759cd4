"""ONNX Runtime sessions, custom operator libraries, threads and memory.

Running a model in NumPy is in `evaluator`.
"""
