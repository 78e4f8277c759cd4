"""The version of onnxq, without importing anything else."""

__version__ = "0.1.0"
