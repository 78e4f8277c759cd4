"""ONNX Runtime sessions, custom operator libraries, threads, copies of the process and memory.

Running a model in NumPy is in `evaluator`.
"""
