"""Run a model in the reference evaluator.

Tests: `tests/evaluator/test_evaluate.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from onnxq.data.validation import check_shape, input_specs
from onnxq.errors import ModelError
from onnxq.evaluator import Evaluator, Taps
from onnxq.ir import ModelInput, infer_types
from onnxq.text import as_list


def evaluate(
    model: ModelInput,
    feeds: Mapping[str, Any],
    outputs: str | Sequence[str] | None = None,
    taps: Taps | None = None,
) -> dict[str, Any]:
    """Run a model once in the reference evaluator.

    Args:
        model: Its path, a ModelProto, or loaded.
        feeds: An array for each input of the graph; an input that has an initializer may be left out.
        outputs: Name of the tensor to return, or several, any of the main graph; the graph's outputs by default.
        taps: Functions to call with tensors as they are computed, by name.

    Returns:
        The tensors by name, in the order of `outputs`.

    Raises:
        ModelError: The model cannot be read, or an operator is unknown.
        DataError: An input is missing, unknown, or of the wrong type or shape, or there is no such tensor.

    Examples:
        >>> import numpy as np, onnxq
        >>> outputs = onnxq.evaluate("model.onnx", {"image": np.zeros((1, 3, 8, 8), np.float32)})
        >>> outputs["scores"].shape
        (1, 4)

    """
    evaluator = Evaluator(model)
    typed = evaluator.model.copy()  # the caller's own stays as it is
    with suppress(ModelError):  # a node that contradicts a shape says so when it runs
        infer_types(typed)
    specs = {spec.name: spec for spec in input_specs(typed)}
    for name, array in feeds.items():
        if name in specs and isinstance(array, np.ndarray):
            check_shape(array.shape, specs[name], "the array")
    return evaluator.run(feeds, None if outputs is None else as_list(outputs), taps)
