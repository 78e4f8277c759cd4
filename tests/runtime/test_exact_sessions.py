"""Sessions that judge compute products of integers exactly, on processors whose kernels saturate, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from as_processor import available, environment
from onnx import parser

from onnxq import evaluate
from onnxq.runtime.session import open_session, run_session

HEAD = '<ir_version: 9, opset_import: ["": 17, "com.microsoft": 1]>'
QDQ = """
    g (float[{shape}] x) => (float[{out}] y)
    <float s = {{1.0}}, uint8 z = {{0}}, float t = {{{step}}}, float v = {{1.0}}, int8 o = {{0}}>
    {{ xq = QuantizeLinear (x, s, z) xd = DequantizeLinear (xq, s, z) wd = DequantizeLinear (w, v, o)
      p = {product} (xd, wd) yq = QuantizeLinear (p, t, z) y = DequantizeLinear (yq, t, z) }}
"""
MATRIX = {"shape": "4, 64", "out": "4, 8", "step": "6000.0"}
INTEGER = "g (uint8[4, 64] a) => (int32[4, 8] y) { y = MatMulInteger (a, w) }"
TO_FLOAT = """
    g (uint8[4, 64] a) => (float[4, 8] y) <float s = {0.5}, uint8 z = {0}>
    { y = com.microsoft.MatMulIntegerToFloat (a, w, s, s, z) }
"""
DYNAMIC = (
    "g (float[4, 64] x) => (float[4, 8] y) <float s = {0.5}> { y = com.microsoft.DynamicQuantizeMatMul (x, w, s) }"
)
CASES = {
    "QLinearConv": QDQ.format(shape="1, 64, 5, 5", out="1, 8, 3, 3", step="50000.0", product="Conv"),
    "QLinearMatMul": QDQ.format(**MATRIX, product="MatMul"),
    "QGemm": QDQ.format(**MATRIX, product="Gemm"),
    "MatMulInteger": INTEGER,
    "MatMulIntegerToFloat": TO_FLOAT,
    "DynamicQuantizeMatMul": DYNAMIC,
}


def loud(operator: str) -> onnx.ModelProto:
    """Make a model whose weight has the greatest codes: two products of them and of 255 leave 16 bits."""
    made = parser.parse_model(HEAD + CASES[operator])
    shape = (8, 64, 3, 3) if operator == "QLinearConv" else (64, 8)
    codes = np.where(np.arange(np.prod(shape)).reshape(shape) % 7 == 0, -127, 127).astype(np.int8)
    made.graph.initializer.append(onnx.numpy_helper.from_array(codes, "w"))
    return made


def differences(operator: str, *, exact: bool) -> int:
    """Count outputs that differ from exact arithmetic."""
    model = loud(operator)
    given = model.graph.input[0]
    shape = [d.dim_value for d in given.type.tensor_type.shape.dim]
    x = np.full(shape, 255)
    x.reshape(-1)[::5] = 250
    feeds = {given.name: x.astype(np.uint8 if given.name == "a" else np.float32)}
    expected = evaluate(model, feeds)["y"]
    got = run_session(open_session(model.SerializeToString(), threads=1, exact=exact), None, feeds)[0]
    return int(np.count_nonzero(np.abs(got.astype(float) - expected) > 1e-6 * np.abs(expected).max()))


@pytest.mark.parametrize("operator", CASES)
def test_products_are_exact(operator: str) -> None:
    assert differences(operator, exact=True) == 0


@pytest.mark.skipif(
    not available("avx2") or "MASK_CPUID" in os.environ, reason="this machine cannot trap CPUID, or does already"
)
def test_products_are_exact_where_plain_sessions_saturate() -> None:
    code = "import test_exact_sessions as t; print(*(t.differences(o, exact=e) for o in t.CASES for e in (0, 1)))"
    made = environment("avx2")
    made["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run([sys.executable, "-c", code], env=made, capture_output=True, text=True, check=True)
    counts = [int(word) for word in done.stdout.split()]
    assert all(counts[::2]), "plain sessions saturate"
    assert not any(counts[1::2])
