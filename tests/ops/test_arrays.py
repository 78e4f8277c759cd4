"""16-bit floats in kernels: sums in float32, as onnxruntime computes them on CPUs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from float_support import check, evaluate_single, normal, onnxruntime_single

from onnxq.ops.kernels.arrays import in_float32

LARGE = np.full((1, 2, 96, 96), 12, np.float16)
LONG = np.full((2, 8), 300, np.float16)


@pytest.mark.parametrize(
    ("op_type", "x", "attributes"),
    [
        ("GlobalAveragePool", LARGE, {}),
        ("AveragePool", LARGE, {"kernel_shape": [96, 96]}),
        ("LpPool", LARGE, {"kernel_shape": [96, 96]}),
        ("GlobalLpPool", LARGE, {}),
        ("LpNormalization", LONG, {}),
        ("LRN", LONG[..., None, None], {"size": 3}),
        ("ReduceL2", LONG, {"axes": [1], "opset": 13}),
        ("ReduceSumSquare", LONG / np.float16(8), {"axes": [1], "opset": 13}),
        ("ReduceLogSum", LONG * np.float16(100), {"axes": [1], "opset": 13}),
        ("CumSum", None, {}),
    ],
)
def test_sums_of_16_bits_neither_overflow_nor_lose_bits(op_type: str, x: Any, attributes: dict[str, Any]) -> None:
    inputs = [x] if x is not None else [np.ones((1, 5000), np.float16), np.array(1, np.int64)]
    wide = [each.astype(np.float32) if each.dtype == np.float16 else each for each in inputs]
    # of float32: onnxruntime's own sums of float16 on Armv8.2 stop growing, and make 3.6 the mean of many twelves
    (expected,) = onnxruntime_single(op_type, wide, **attributes)
    (found,) = evaluate_single(op_type, inputs, **attributes)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_means_of_several_and_of_each_map() -> None:
    check("Mean", [np.full((1, 4), 60000, np.float16)] * 3)
    x = (np.arange(2 * 64 * 64).reshape(1, 2, 64, 64) % 37).astype(np.float16)
    check("InstanceNormalization", [x, np.ones(2, np.float16), np.zeros(2, np.float16)], rtol=2e-3, atol=1e-3)
    channel = [normal(2, seed=i).astype(np.float16) for i in range(3)]
    check("BatchNormalization", [x, *channel, np.full(2, 1e-4, np.float16)], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_of_float16(op_type: str) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type]
    x, w, r = normal(5, 2, 8), normal(1, gates * 4, 8, seed=1), normal(1, gates * 4, 4, seed=2)
    narrow = [np.float16(each) for each in (x, w, r)]
    found = evaluate_single(op_type, narrow, 2, hidden_size=4)
    exact = evaluate_single(op_type, [np.float32(each) for each in narrow], 2, hidden_size=4)
    for ours, expected in zip(found, exact, strict=True):
        assert np.array_equal(ours, expected.astype(np.float16))


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_only_floats_of_16_bits_are_computed_in_float32(kind: Any) -> None:
    seen: list[Any] = []

    @in_float32
    def kernel(*inputs: Any, scale: int = 2) -> Any:
        seen.append([None if x is None else x.dtype for x in inputs])
        return inputs[0] * np.float32(scale), np.arange(3)

    made, places = kernel(np.ones(2, kind), None, np.arange(3, dtype=np.int16), scale=3)
    assert seen == [[np.float32, None, np.int16]]
    assert (made.dtype, made.tolist(), places.dtype) == (kind, [3, 3], np.int64)
    kernel(np.ones(2), np.ones(2, kind))
    assert seen[1] == [np.float64, kind]
