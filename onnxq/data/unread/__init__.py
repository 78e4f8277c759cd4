"""Files that hold samples in a form that onnxq does not read: their names, and the way to arrays.

Tests: `tests/data/test_unread_formats.py`.
"""
