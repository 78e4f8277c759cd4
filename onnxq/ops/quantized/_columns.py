"""A view of the columns of a convolution, the window of each output, without copying.

Tests: `tests/ops/test_quantized_properties.py`.
"""

from __future__ import annotations

from numpy.lib.stride_tricks import as_strided

from onnxq.ops.kernels.windows import Windows
from onnxq.ops.quantized._types import Array


def columns_view(padded: Array, windows: Windows, group: int) -> Array:
    """Show [C, ...] as [group, C / group, k1..kn, o1..on] without copying."""
    channel, *spatial = padded.strides
    channels = padded.shape[0] // group
    taps = [s * d for s, d in zip(spatial, windows.dilations, strict=True)]
    steps = [s * d for s, d in zip(spatial, windows.strides, strict=True)]
    return as_strided(
        padded,
        shape=(group, channels, *windows.kernel, *windows.output),
        strides=(channel * channels, channel, *taps, *steps),
        writeable=False,
    )
