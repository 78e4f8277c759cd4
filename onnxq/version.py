"""The version of onnxq.

Tests: `tests/cli/test_cli_help.py`.
"""

__version__ = "0.1.0"
