"""QuantizeLinear to float8, float6 and float4: divide, add the zero point, saturate, and cast as ml_dtypes does.

Tests: `tests/ops/test_quantized_conformance.py`.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from onnxq.ops.quantized._layout import Expander, Layout
from onnxq.ops.quantized._parallel import spread
from onnxq.ops.quantized._types import FLOAT8, FLOAT32, Array, DType


def quantize_floats(
    x: Array,
    scale: Array,
    zero_point: Array | None,
    divide_in: DType,
    layout: Layout,
    y: Array,
    *,
    saturate: bool,
) -> None:
    """Write cast(x / scale + zero_point) to y, a float8, float6 or float4 array.

    With `saturate`, values beyond the range of a float8 type become its largest value, and NaN stays NaN. Without it
    they become what the type has for them: NaN, or infinity for e5m2. float6 and float4 have neither, and saturate.
    """
    limit = float(ml_dtypes.finfo(y.dtype).max)  # type: ignore[no-untyped-call]
    if not saturate and y.dtype in FLOAT8:
        limit = np.inf
    flat, result = x.reshape(-1), y.reshape(-1)
    scale = scale.astype(divide_in)
    wanted = [(scale, divide_in)]
    if zero_point is not None and np.any(zero_point.astype(FLOAT32)):
        wanted.append((zero_point.astype(FLOAT32), FLOAT32))
    chunks = layout.chunks()

    def work(first: int, last: int) -> None:
        expand = Expander(layout, *wanted)
        with np.errstate(all="ignore"):
            for chunk in chunks[first:last]:
                s, *offset = expand(chunk)
                q = np.divide(flat[chunk.flat].astype(divide_in), s).astype(FLOAT32)
                if offset:
                    np.add(q, offset[0], out=q)
                np.clip(q, -limit, limit, out=q)
                result[chunk.flat] = q.astype(y.dtype)

    spread(work, len(chunks), x.size)
