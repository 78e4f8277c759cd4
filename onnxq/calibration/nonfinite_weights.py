"""Values that are not finite because a weight is not: samples are not to blame then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from onnx import TensorProto

from onnxq.errors import DataError, ModelError, OnnxqError
from onnxq.ir import Model, Value

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
MOST_READERS = 3
SOUND = "Export the model again from sound weights: every sample meets it."
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


def spoilt_sentence(model: Model) -> str:
    """Return the sentence that names a weight that is not finite; empty where all are."""
    found = spoilt_weight(model)
    if found is None:
        return ""
    value, what = found
    readers = ", ".join(node.display_name for node in value.consumers()[:MOST_READERS])
    return f"weight '{value.name}'{f' (read by {readers})' if readers else ''} holds {what}"


@contextmanager
def blaming_weights(
    model: Model, refusal: type[OnnxqError] = DataError, kind: type[OnnxqError] = ModelError
) -> Iterator[None]:
    """Name a weight that is not finite in place of the samples that met it first.

    Args:
        model: The model that runs.
        refusal: What is raised where a value is not finite.
        kind: What to raise in its place.

    Raises:
        OnnxqError: Of `kind`: a weight is not finite.

    """
    try:
        yield
    except refusal as error:
        sentence = spoilt_sentence(model) if "NaN" in error.message or "infinity" in error.message else ""
        if not sentence:
            raise
        raise kind(sentence, SOUND) from error
