"""Functions for what the command line can do and no step of the pipeline does alone.

They return what they find and never print; `onnxq.cli` shows it.
"""
