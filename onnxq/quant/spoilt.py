"""Values that are not finite because a weight is not: samples are not to blame then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from onnx import TensorProto

from onnxq.errors import DataError, ModelError
from onnxq.ir import Model, Value

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
WEIGHTED = ("Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM", "GRU", "RNN", "BatchNormalization")


def spoilt_weight(model: Model) -> tuple[Value, str] | None:
    """Return the first constant that holds NaN, or infinity where an operator multiplies by it; a mask may hold it."""
    for value in model.initializers():
        if value.tensor is None or value.tensor.dtype not in FLOATS:
            continue
        array = np.asarray(value.tensor.numpy(), np.float64) if value.tensor.size else np.zeros(0)
        if np.isnan(array).any():
            return value, "NaN"
        if np.isinf(array).any() and any(use.node.op_type in WEIGHTED for use in value.uses):
            return value, "infinity"
    return None


@contextmanager
def blaming_weights(model: Model) -> Iterator[None]:
    """Name a weight that is not finite in place of the samples that met it first.

    Raises:
        ModelError: A weight is not finite, and data were refused.

    """
    try:
        yield
    except DataError as error:
        found = spoilt_weight(model)
        if found is None:
            raise
        value, what = found
        readers = ", ".join(node.display_name for node in value.consumers()[:3])
        where = f" (read by {readers})" if readers else ""
        message = f"weight '{value.name}'{where} holds {what}"
        raise ModelError(message, "Export the model again from sound weights: every sample meets it.") from error
