"""Filters and channels of zeros left out of the file, and added by a Pad that onnxruntime folds when it loads a model.

Kernels of a Conv want certain numbers of channels. Three filters of 9 × 9 over 32 channels are computed as 16 of them.
These would take 41 kB in place of 8, and the float weight takes 31.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from onnxq.ir import Model, Patch, Tensor, Value
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.schemas import PAD_OF_CODES

LEAST = 2048  # bytes that have to be spared, of which a Pad and its sizes take some two hundred
RANK = 3  # of the weight of a Conv of one axis


@register_pass(order=170, timed=True, operators=("Conv",), opset=PAD_OF_CODES)
def cut_zeros(model: Model) -> Iterator[Patch]:
    """Store codes of weights without their last filters and channels where those are zeros.

    Args:
        model: A quantized model of operator set 11 or later. Its results stay the same to the bit.

    """
    for graph in model.graph.graphs():
        for value in list(graph.values.values()):
            tensor = value.constant
            if tensor is None or value.is_input or value.is_output or not value.uses:
                continue
            short = _without_zeros(tensor)
            if short is not None:
                yield _padded(value, short, tensor.shape)


def _without_zeros(tensor: Tensor) -> np.ndarray | None:
    """Return int8 codes without zeros at the end of the first two axes; None where that spares little."""
    if tensor.dtype != TensorProto.INT8 or len(tensor.shape) < RANK or tensor.nbytes < LEAST:
        return None
    codes = tensor.numpy()
    filters = np.flatnonzero(codes.any(axis=tuple(range(1, codes.ndim))))
    channels = np.flatnonzero(codes.any(axis=(0, *range(2, codes.ndim))))
    if not filters.size or codes[: filters[-1] + 1, : channels[-1] + 1].nbytes > codes.nbytes - LEAST:
        return None
    return np.ascontiguousarray(codes[: filters[-1] + 1, : channels[-1] + 1])


def _padded(value: Value, short: np.ndarray, shape: tuple[int, ...]) -> Patch:
    patch = Patch(value.graph, None, f"store {value.name} without zeros at its end")
    stored = patch.constant(short, f"{value.name}_used")
    more = [size - kept for size, kept in zip(shape, short.shape, strict=True)]
    ends = patch.constant(np.array([0] * len(shape) + more), f"{value.name}_zeros")
    patch.replace(value, patch.op("Pad", stored, ends, hint=f"{value.name}_filled"))
    return patch
