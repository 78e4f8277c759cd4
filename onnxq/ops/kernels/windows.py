"""Sliding windows: the padding and output size of convolutions and pools, and padded copies to slide over.

Formulas: https://onnx.ai/onnx/operators/onnx__Conv.html and onnx__MaxPool.html.

Tests: `tests/ops/test_conv_kernels.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxq.errors import ModelError
from onnxq.ir.shape_inference.pool_output import window_count
from onnxq.ops.kernels.arrays import Array

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


@dataclass(frozen=True)
class Windows:
    """How windows lie on the spatial axes of a tensor, one entry an axis.

    Attributes:
        kernel: Elements of the window.
        strides: Steps from one window to the next.
        dilations: Steps from one element of the window to the next.
        begin, end: Padding that belongs to the operator.
        extra: Padding behind `end` that only lets the last window be read whole (`ceil_mode`).
        output: Number of windows.

    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    extra: tuple[int, ...]
    output: tuple[int, ...]

    def slices(self, tap: Sequence[int]) -> tuple[slice, ...]:
        """The place of element `tap` of every window in the padded tensor."""
        starts = [t * d for t, d in zip(tap, self.dilations, strict=True)]
        return tuple(
            slice(start, start + out * stride, stride)
            for start, out, stride in zip(starts, self.output, self.strides, strict=True)
        )


def lay_windows(
    shape: Sequence[int],
    kernel: Sequence[int],
    *,
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
    ceil_mode: bool = False,
    pool: bool = False,
) -> Windows:
    """Work out padding and number of windows for the spatial shape of an input.

    With `auto_pad`, `pads` count for nothing, as in onnxruntime. Windows are counted as `window_count` says.

    Raises:
        ModelError: An attribute has the wrong length or a value that makes no sense, or the window is larger than the
            padded input.

    """
    rank = len(shape)
    auto_pad = auto_pad or "NOTSET"
    if auto_pad not in AUTO_PADS:
        raise ModelError(f"auto_pad {auto_pad!r} is none of {', '.join(AUTO_PADS)}", "Correct `auto_pad`.")
    strides = tuple(strides or (1,) * rank)
    dilations = tuple(dilations or (1,) * rank)
    pads = tuple(pads or (0,) * (2 * rank)) if auto_pad == "NOTSET" else (0,) * (2 * rank)
    if not len(kernel) == len(strides) == len(dilations) == rank or len(pads) != 2 * rank:
        raise ModelError(
            f"kernel {list(kernel)}, strides {list(strides)}, dilations {list(dilations)} and pads {list(pads)} "
            f"do not fit {rank} spatial axes",
            "Correct the attributes.",
        )
    if min((*kernel, *strides, *dilations), default=1) < 1:
        raise ModelError(
            f"kernel {list(kernel)}, strides {list(strides)} and dilations {list(dilations)} have to be positive",
            "Correct the attributes.",
        )
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    begin, end, output = list(pads[:rank]), list(pads[rank:]), [0] * rank
    for i, (size, stride, span) in enumerate(zip(shape, strides, reach, strict=True)):
        if auto_pad.startswith("SAME"):
            output[i] = -(-size // stride)
            total = max((output[i] - 1) * stride + span - size, 0)
            small, large = total // 2, total - total // 2
            begin[i], end[i] = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
            continue
        output[i] = window_count(size, span, stride, (begin[i], end[i]), ceil_mode=ceil_mode, pool=pool)
    if min(output, default=1) < 0:
        raise ModelError(f"a window of {reach} does not fit into the padded input {list(shape)}", "Correct `pads`.")
    extra = [
        max((out - 1) * stride + span - size - b - e, 0)
        for out, stride, span, size, b, e in zip(output, strides, reach, shape, begin, end, strict=True)
    ]
    return Windows(
        tuple(kernel), strides, dilations, tuple(begin), tuple(end), tuple(extra), tuple(max(o, 0) for o in output)
    )


def padded(x: Array, windows: Windows, fill: Any = 0, *, lines: int = 0) -> Array:
    """Return X [N, C, ...] with the padding of its windows, X itself when there is none; negative padding crops.

    Args:
        x: The tensor.
        windows: Of an operator over it.
        fill: What is around it.
        lines: Further lines behind each map, along its first axis, where it is padded anyway.

    """
    end = [e + extra for e, extra in zip(windows.end, windows.extra, strict=True)]
    if not any(windows.begin) and not any(end):
        return x
    source = [slice(max(-b, 0), size - max(-e, 0)) for b, e, size in zip(windows.begin, end, x.shape[2:], strict=True)]
    x = x[(slice(None), slice(None), *source)]
    begin = [max(b, 0) for b in windows.begin]
    shape = [b + size + max(e, 0) for b, size, e in zip(begin, x.shape[2:], end, strict=True)]
    shape[0] += lines
    made = (*x.shape[:2], *shape)
    result = np.zeros(made, x.dtype) if not fill else np.full(made, fill, x.dtype)  # the system zeroes fresh memory
    inside = [slice(b, b + size) for b, size in zip(begin, x.shape[2:], strict=True)]
    result[(slice(None), slice(None), *inside)] = x
    return result
