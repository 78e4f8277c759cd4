"""Operators: `ops.kernels` and `ops.quantized` compute them, `ops.forms` plans and rewrites them.

`planning` decides which node gets which form. The quantized operators are listed once, in `ops.quantized`.
"""

from __future__ import annotations

from onnxq.ops.quantized import *  # noqa: F403
from onnxq.ops.quantized import __all__ as __all__
