"""The tensors that onnxruntime computes inside a model: outputs of all nodes of the main graph, listed as outputs.

Tests: `tests/verification/test_engines_arena.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxq.evaluator import Evaluator
from onnxq.ir import Value, infer_types
from onnxq.ir.tensor import SUB_BYTE_BITS, item_bits
from onnxq.runtime.session import SessionError, open_session, run_session

# onnxruntime keeps all listed outputs until the end of a run: larger models are opened part by part
MOST_BYTES = 512 << 20
# onnxruntime's Python interface has no NumPy type for these
NOT_SHOWN = frozenset(
    (
        *SUB_BYTE_BITS,
        TensorProto.BFLOAT16,
        TensorProto.FLOAT8E4M3FN,
        TensorProto.FLOAT8E4M3FNUZ,
        TensorProto.FLOAT8E5M2,
        TensorProto.FLOAT8E5M2FNUZ,
        TensorProto.FLOAT8E8M0,
    )
)


class InnerTensors:
    """The outputs of the steps of an evaluator, as onnxruntime without optimisations computes them for one sample.

    Args:
        evaluator: The model; its steps are what `of` counts.
        feeds: The sample.

    """

    def __init__(self, evaluator: Evaluator, feeds: Mapping[str, np.ndarray]) -> None:
        infer_types(evaluator.model)
        self._model = evaluator.model
        self._feeds = dict(feeds)
        self._sizes = _symbols(evaluator, feeds)
        self._parts = self._split([_shown(step.node.outputs) for step in evaluator.steps])
        self._at = 0
        self._values: dict[Value, Any] = {}
        self._end = 0

    def of(self, index: int) -> Mapping[Value, Any]:
        """Return the outputs of a step, and perhaps more; steps have to be asked for in order.

        Raises:
            SessionError: onnxruntime cannot load the model with its inner tensors as outputs, or cannot run it.

        """
        while index >= self._end:
            count, wanted = self._parts[self._at]
            self._values = self._run(wanted)
            self._at += 1
            self._end += count
        return self._values

    def _split(self, outputs: Sequence[list[Value]]) -> list[tuple[int, list[Value]]]:
        """Cut the steps into parts whose outputs fit into memory: number of steps, and what they make."""
        parts: list[tuple[int, list[Value]]] = [(0, [])]
        taken = 0
        for values in outputs:
            size = sum(self._bytes(value) for value in values)
            if taken + size > MOST_BYTES and parts[-1][0]:
                parts.append((0, []))
                taken = 0
            count, wanted = parts[-1]
            wanted.extend(values)
            parts[-1] = count + 1, wanted
            taken += size
        return parts

    def _bytes(self, value: Value) -> int:
        """Estimate the size of a value; one of unknown type or rank counts nothing."""
        if value.dtype in (None, TensorProto.STRING) or value.shape is None:
            return 0
        sizes = (d if isinstance(d, int) else self._sizes.get(d or "", 1) for d in value.shape)
        return math.prod(sizes) * item_bits(value.dtype or TensorProto.FLOAT) // 8

    def _run(self, wanted: list[Value]) -> dict[Value, Any]:
        if not wanted:
            return {}
        try:
            return self._run_once(wanted)
        except SessionError:
            typed = [value for value in wanted if value.dtype is not None]
            if len(typed) == len(wanted) or not typed:
                raise
            return self._run_once(typed)  # perhaps onnxruntime does not know the types of the others either

    def _run_once(self, wanted: list[Value]) -> dict[Value, Any]:
        extra = [value for value in wanted if not value.is_output]
        session = open_session(self._model, optimize="none", reuse_shapes=False, taps=extra)
        return dict(zip(wanted, run_session(session, [value.name for value in wanted], self._feeds), strict=True))


def _shown(outputs: Sequence[Value | None]) -> list[Value]:
    return [value for value in outputs if value is not None and value.dtype not in NOT_SHOWN]


def _symbols(evaluator: Evaluator, feeds: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Return the sizes that a sample gives to the symbolic dimensions of the inputs."""
    sizes: dict[str, int] = {}
    for value in evaluator.model.graph.inputs:
        if value.name in feeds and value.shape is not None:
            pairs = zip(value.shape, np.shape(feeds[value.name]), strict=False)
            sizes.update({dim: size for dim, size in pairs if isinstance(dim, str)})
    return sizes
