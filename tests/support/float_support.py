"""One node in onnxruntime and in the evaluator, for the tests of the float kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from helpers import run
from onnx import helper

from onnxq.evaluator import Evaluator
from onnxq.evaluator.fallback import Fallback

IR_BY_OPSET = {7: 3, 8: 3, 9: 4, 10: 5, 11: 6, 12: 7, 13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10}


def single(
    op_type: str, inputs: Sequence[np.ndarray | None], outputs: int = 1, *, opset: int = 17, **attributes: Any
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node, whose inputs are all fed; None leaves an optional one out."""
    feeds = {f"x{i}": np.asarray(x) for i, x in enumerate(inputs) if x is not None}
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    made = [f"y{i}" for i in range(outputs)]
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in feeds.items()
    ]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, made, name="node", **attributes)],
        "single",
        infos,
        [helper.make_empty_tensor_value_info(name) for name in made],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_BY_OPSET.get(opset, 3 if opset < 7 else 10)
    )
    return model, feeds


def evaluate_single(op_type: str, inputs: Sequence[np.ndarray | None], outputs: int = 1, **given: Any) -> list[Any]:
    """Run one node with our kernel; the fallback is not allowed."""
    model, feeds = single(op_type, inputs, outputs, **given)
    evaluator = Evaluator(model)

    def refuse(self: Fallback, values: Any) -> None:
        raise AssertionError(f"{op_type} was left to onnx.reference")

    kept, Fallback.run = Fallback.run, refuse  # type: ignore[method-assign, assignment]
    try:
        return list(evaluator.run(feeds).values())
    finally:
        Fallback.run = kept  # type: ignore[method-assign]


def onnxruntime_single(op_type: str, inputs: Sequence[np.ndarray | None], outputs: int = 1, **given: Any) -> list[Any]:
    """Run one node with onnxruntime, one thread, optimisations off."""
    model, feeds = single(op_type, inputs, outputs, **given)
    return run(model.SerializeToString(), feeds)


def check(
    op_type: str,
    inputs: Sequence[np.ndarray | None],
    outputs: int = 1,
    *,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    **given: Any,
) -> None:
    """Assert that our kernel and onnxruntime agree: shape and type exactly, floats within the tolerance."""
    expected = onnxruntime_single(op_type, inputs, outputs, **given)
    got = evaluate_single(op_type, inputs, outputs, **given)
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        if ours.dtype.kind == "f":
            np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol)
        else:
            np.testing.assert_array_equal(ours, theirs)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Standard normal float32 numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
