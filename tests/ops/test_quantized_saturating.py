"""Integer products as x86 processors without VNNI compute them: against brute force, and against onnxruntime."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from as_processor import available, environment
from helpers import build, node
from quantized_support import run_kernel
from saturating_cases import OPERATORS, codes, counts, geometry, zero
from saturating_product import saturating_convolution, saturating_product, with_zero_points

from onnxq import evaluate
from onnxq.evaluator import Evaluator
from onnxq.ops.quantized import integer_arithmetic, mat_mul_integer, saturating
from onnxq.targets.host import host_saturates

U8, S8 = np.uint8, np.int8
ALL = np.stack(np.meshgrid(np.arange(-128, 128), np.arange(-128, 128))).reshape(2, -1).astype(S8)
SEED = range(40)


def saturated(a, b, za=None, zb=None):
    with integer_arithmetic("saturating"):
        return mat_mul_integer(a, b, za, zb)


@pytest.mark.parametrize("highest", [(255, 255), (254, 255), (200, 130), (129, 129), (128, 255), (128, 128), (255, 0)])
def test_every_pair_of_weights_saturates_where_it_should(highest):
    """All 65,536 pairs, with the largest codes and below; 128 is the largest code that cannot saturate."""
    rng = np.random.default_rng(sum(highest))
    a = np.array([highest, *rng.integers(0, np.array(highest) + 1, (4, 2))], U8)
    total = saturated(a, ALL)
    np.testing.assert_array_equal(total, saturating_product(a, ALL))
    assert (total != mat_mul_integer(a, ALL)).any() == (max(highest) > 128 and min(highest) > 0)


def test_more_columns_than_16_bits_count():
    b = np.concatenate([ALL, ALL[:, :5000]], axis=1)
    a = np.array([[255, 254], [201, 255]], U8)
    np.testing.assert_array_equal(saturated(a, b), saturating_product(a, b))


@pytest.mark.parametrize("seed", SEED)
def test_a_product_is_what_brute_force_gives(seed, monkeypatch):
    """In blocks of the usual sizes, and in such small ones that weights, pairs and rows take many."""
    if seed % 2:
        for name, size in (("SLAB", 64), ("CHUNK", 100), ("SUMS", 300)):
            monkeypatch.setattr(saturating, name, size)
    rng = np.random.default_rng(seed)
    m, k, n = rng.integers(1, 90), rng.integers(0, 80), rng.integers(1, 60)
    a, b = codes(rng, (m, k), U8), codes(rng, (k, n), S8)
    za, zb = zero(rng, U8), zero(rng, S8, n if seed % 3 else ())
    expected = with_zero_points(a, b, saturating_product(a, b), int(za), zb)
    np.testing.assert_array_equal(saturated(a, b, za, zb), expected)


@pytest.mark.parametrize(("order", "shape"), [("C", (3, 5, 33)), ("F", (5, 33)), ("C", (33,))])
def test_batches_rows_and_transposed_matrices(order, shape):
    rng = np.random.default_rng(5)
    a = rng.integers(0, 256, shape).astype(U8)
    b = np.asarray(rng.integers(-128, 128, (33, 6)).astype(S8), order=order)
    expected = saturating_product(a.reshape(-1, 33), b).reshape(*shape[:-1], 6)
    np.testing.assert_array_equal(saturated(a, b), expected)


def test_each_matrix_of_a_batch_has_its_own_weights():
    rng = np.random.default_rng(6)
    a, b = rng.integers(0, 256, (2, 4, 9)).astype(U8), rng.integers(-128, 128, (2, 9, 6)).astype(S8)
    np.testing.assert_array_equal(saturated(a, b), [saturating_product(*pair) for pair in zip(a, b, strict=True)])


@pytest.mark.parametrize(("a_type", "b_type"), [(U8, U8), (S8, S8), (S8, U8)])
def test_other_types_are_exact(a_type, b_type):
    rng = np.random.default_rng(7)
    a, b = (codes(rng, (40, 40), dtype) for dtype in (a_type, b_type))
    np.testing.assert_array_equal(saturated(a, b), a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.parametrize("seed", SEED)
def test_a_convolution_is_what_brute_force_gives(seed, monkeypatch):
    if seed % 2:
        monkeypatch.setattr("onnxq.ops.quantized.saturating_conv.BLOCK", 500)
    rng = np.random.default_rng(100 + seed)
    x_shape, w_shape, attributes = geometry(rng)
    x, w, xz, wz = codes(rng, x_shape, U8), codes(rng, w_shape, S8), zero(rng, U8), zero(rng, S8)
    one = np.float32(1)
    scale = np.float32(512)
    inputs = [x, one, xz, w, one, wz, scale, U8(128), None]
    found = run_kernel("QLinearConv", inputs, version=10, arithmetic="saturating", **attributes)[0]
    total = saturating_convolution(x, w, int(xz), int(wz), attributes, filters_left=False)
    if w_shape[1] == 1 and w_shape[0] == attributes["group"]:
        exact = run_kernel("QLinearConv", inputs, version=10, arithmetic="exact", **attributes)[0]
        np.testing.assert_array_equal(found, exact, "a depthwise kernel adds in 32 bits")
    else:
        expected = np.clip(np.rint(total.astype(np.float32) / scale) + 128, 0, 255).astype(U8)
        np.testing.assert_array_equal(found.reshape(expected.shape), expected)


@pytest.mark.parametrize("seed", SEED)
def test_a_conv_integer_is_what_brute_force_gives(seed):
    rng = np.random.default_rng(200 + seed)
    x_shape, w_shape, attributes = geometry(rng)
    x, w, xz, wz = codes(rng, x_shape, S8), codes(rng, w_shape, U8), zero(rng, S8), zero(rng, U8)
    found = run_kernel("ConvInteger", [x, w, xz, wz], version=10, arithmetic="saturating", **attributes)[0]
    expected = saturating_convolution(x, w, int(xz), int(wz), attributes, filters_left=True)
    np.testing.assert_array_equal(found.reshape(expected.shape), expected)


def test_filters_of_int8_in_a_conv_integer_are_exact():
    """Where onnxruntime takes them for the left matrix, no kernel multiplies them through 16 bits."""
    rng = np.random.default_rng(8)
    inputs = [codes(rng, (1, 8, 9, 9), U8), codes(rng, (8, 8, 3, 3), S8)]
    one, other = (run_kernel("ConvInteger", inputs, version=10, arithmetic=kind)[0] for kind in ("saturating", "exact"))
    np.testing.assert_array_equal(one, other)


def test_arithmetic_is_exact_outside_of_the_block():
    a, b = np.full((1, 2), 255, U8), np.full((2, 1), 127, S8)
    assert mat_mul_integer(a, b).item() == 255 * 254
    with integer_arithmetic("saturating"):
        assert mat_mul_integer(a, b).item() == 32767
        with integer_arithmetic("exact"):
            assert mat_mul_integer(a, b).item() == 255 * 254
        assert mat_mul_integer(a, -b - 1).item() == -32768
    assert mat_mul_integer(a, b).item() == 255 * 254


def test_an_evaluator_computes_as_it_is_told_in_bodies_too():
    body = onnx.helper.make_graph(
        [node("MatMulInteger", "x w", "b")],
        "body",
        [],
        [onnx.helper.make_tensor_value_info("b", onnx.TensorProto.INT32, [1, 1])],
    )
    nodes = [node("MatMulInteger", "x w", "y"), node("If", "c", "z", then_branch=body, else_branch=body)]
    weights = {"w": np.full((2, 1), 127, S8), "c": np.array(True)}
    made = build(nodes, {"x": [1, 2]}, {"y": onnx.TensorProto.INT32, "z": onnx.TensorProto.INT32}, weights)
    made.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    feeds = {"x": np.full((1, 2), 255, U8)}
    assert [value.item() for value in evaluate(made, feeds).values()] == [255 * 254] * 2
    assert [value.item() for value in Evaluator(made, "saturating").run(feeds).values()] == [32767] * 2


@pytest.mark.parametrize(
    "outputs", [pytest.param(4_000, id="32K"), pytest.param(1_250_000, id="10M", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("family", ["native"] if host_saturates() else ["avx2", "avx512"])
def test_a_processor_that_saturates_gives_the_same(family, outputs, capsys):
    """So many outputs of each of eight operators; here, or on this processor masked as one without VNNI."""
    if family == "native":
        found = dict(counts(outputs))
    elif available(family):
        command = [sys.executable, str(Path(__file__).parents[1] / "support" / "saturating_cases.py"), str(outputs)]
        done = subprocess.run(
            command,
            env={**environment(family), "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            check=True,
        )
        found = json.loads(done.stdout)
    else:
        pytest.skip("this processor is exact, and cannot be masked as one that saturates")
    assert list(found) == list(OPERATORS)
    for compared, differ, differ_from_exact in found.values():
        assert compared >= outputs
        assert differ == 0
        assert differ_from_exact > compared / 1000, "what never saturates shows nothing"
    if outputs > 1_000_000:
        with capsys.disabled():
            print(f"\n{family}:", {name: f"{all_:,}, {differ} differ" for name, (all_, differ, _) in found.items()})
