"""Files: finding, reading and atomic writing of models and scratch data.

The meaning of bytes is in `ir.wire` and `ir.parse`.
"""
