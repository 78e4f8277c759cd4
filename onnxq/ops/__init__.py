"""Operator families: one file a family, with its kernels, its quantized forms and its refusals.

`ops.kernels` and `ops.quantized` compute, `ops.forms` plans and rewrites. `planning` decides which node gets which
form. The quantized operators are listed once, in `ops.quantized`.
"""

from __future__ import annotations

from onnxq.ops.quantized import *  # noqa: F403
from onnxq.ops.quantized import __all__ as __all__
