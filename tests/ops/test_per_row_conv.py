"""Conv along one axis as an integer product of windows: geometry, exact values, and what is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers import ALL, NONE, F, build, floats, node, quantize_in_memory, recipe_of, sqnr, typed
from integer_products import FULL, Product, exact_product, quantize_matrix
from onnx import reference
from saturating_product import product_here

from onnxq.evaluator import Evaluator
from onnxq.ops.forms.per_row import LEAST
from onnxq.ops.quantized import host_arithmetic
from onnxq.planning.planner import make_plan

ROW = {"activation_granularity": "row"}
C, M = 6, 5


def made_of(nodes, shape, weights, **settings):
    return quantize_in_memory(build(nodes, {"x": shape}, ["y"], weights), **ROW, **FULL, **settings)


def window_product(x, w, bias, stride, dilation, before, behind, product: Product = product_here):
    """What the form gives for x `[B, C, L]` and w `[M, C, k]`: a loop over windows, each with its own scale.

    A window is a row of a matrix, with its channels inside and positions outside, and 128 for zero.
    """
    codes, scale = quantize_matrix(w, (1, 2))
    matrix = codes.transpose(2, 1, 0).reshape(-1, len(w))
    padded = np.pad(x, ((0, 0), (0, 0), (before, behind)))
    reach = (w.shape[2] - 1) * dilation
    starts = range(0, padded.shape[2] - reach, stride)
    out = np.empty((len(x), len(w), len(starts)), F)
    for b, (at, start) in itertools.product(range(len(x)), enumerate(starts)):
        window = padded[b, :, start : start + reach + 1 : dilation]
        largest = np.maximum(np.abs(window).max(), LEAST)
        q = np.clip(np.rint(window * (F(127) / largest)), -128, 127).astype(np.int64)
        total = product(q.T.reshape(1, -1) + 128, 128, matrix)[0].astype(F)
        out[b, :, at] = total * (scale.reshape(-1) / F(127)) * largest
        if bias is not None:
            out[b, :, at] += bias
    return out


GEOMETRIES = [(k, s, d, p) for k in (1, 2, 5) for s in (1, 2) for d in (1, 3) for p in ((0, 0), (2, 1))]


@pytest.mark.parametrize(("kernel", "stride", "dilation", "pads"), GEOMETRIES)
@pytest.mark.parametrize("biased", [False, True])
def test_conv_of_one_axis_to_the_bit(kernel, stride, dilation, pads, biased):
    w, bias = floats(M, C, kernel, seed=1), floats(M, seed=2) if biased else None
    x = floats(2, C, 17) * np.exp2(np.arange(17, dtype=F) % 5)
    attributes = {"strides": [stride], "dilations": [dilation], "pads": list(pads)}
    nodes = [node("Conv", "x w c" if biased else "x w", "y", **attributes)]
    made = made_of(nodes, [2, C, None], {"w": w} | ({"c": bias} if biased else {}))
    expected = window_product(x, w, bias, stride, dilation, *pads)
    np.testing.assert_array_equal(made.run({"x": x})[0], expected, strict=True)
    np.testing.assert_allclose(made.run({"x": x}, ALL)[0], expected, rtol=1e-5, atol=1e-5)
    evaluator = Evaluator(made.proto, host_arithmetic())
    np.testing.assert_array_equal(evaluator.run({"x": x})["y"], expected, strict=True)
    exact = window_product(x, w, bias, stride, dilation, *pads, product=exact_product)
    assert sqnr(made.float_run({"x": x})[0], exact) > 30
    assert made.ops["MatMulInteger"] == 1


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("rank", [2, 3])
def test_conv_of_more_dimensions_along_one(axis, rank):
    if axis >= rank:
        pytest.skip("there is no such axis")
    kernel, pads = [1] * rank, [0] * 2 * rank
    kernel[axis], pads[axis], pads[axis + rank] = 3, 1, 1
    w, x = floats(M, C, *kernel, seed=1), floats(2, C, *range(4, 4 + rank))
    made = made_of([node("Conv", "x w", "y", pads=pads)], list(x.shape), {"w": w})
    moved = np.moveaxis(x, axis + 2, -1)
    lines = np.moveaxis(moved.reshape(2, C, -1, x.shape[axis + 2]), 2, 1).reshape(-1, C, x.shape[axis + 2])
    flat = window_product(lines, w.reshape(M, C, 3), None, 1, 1, 1, 1)
    back = np.moveaxis(flat.reshape(2, -1, M, x.shape[axis + 2]), 1, 2).reshape(2, M, *moved.shape[2:])
    np.testing.assert_array_equal(made.run({"x": x})[0], np.moveaxis(back, -1, axis + 2), strict=True)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("kernel", [3, 4])
def test_automatic_padding(mode, kernel):
    w, x = floats(M, C, kernel, seed=1), floats(1, C, 11)
    nodes = [node("Conv", "x w", "y", auto_pad=mode)]
    made = made_of(nodes, [1, C, None], {"w": w})
    total = 0 if mode == "VALID" else kernel - 1
    pads = (total - total // 2, total // 2) if mode == "SAME_LOWER" else (total // 2, total - total // 2)
    np.testing.assert_array_equal(made.run({"x": x})[0], window_product(x, w, None, 1, 1, *pads))
    (expected,) = reference.ReferenceEvaluator(made.source).run(None, {"x": x})
    assert sqnr(expected, window_product(x, w, None, 1, 1, *pads, product=exact_product)) > 30


def test_windows_do_not_know_of_one_another():
    w = floats(M, C, 3, seed=1)
    made = made_of([node("Conv", "x w", "y")], [None, C, None], {"w": w})
    x = floats(3, C, 9) * np.exp2(np.array([-12, 0, 12], F))[:, None, None]
    x[1, :, 8] *= 1000
    (y,) = made.run({"x": x})
    for one in range(3):
        np.testing.assert_array_equal(made.run({"x": x[one : one + 1]})[0][0], y[one])
    np.testing.assert_array_equal(made.run({"x": x[1:2, :, :8]})[0][0], y[1, :, :6])


def test_no_samples_at_all():
    made = made_of([node("Conv", "x w", "y", pads=[1, 1])], [None, C, None], {"w": floats(M, C, 3, seed=1)})
    for level in (NONE, ALL):
        assert made.run({"x": np.zeros((0, C, 9), F)}, level)[0].shape == (0, M, 9)


def test_zeros_give_the_bias():
    bias = floats(M, seed=2)
    made = made_of([node("Conv", "x w c", "y")], [1, C, 9], {"w": floats(M, C, 3), "c": bias})
    np.testing.assert_array_equal(made.run({"x": np.zeros((1, C, 9), F)})[0], np.broadcast_to(bias[:, None], (1, M, 7)))


def test_a_computed_bias_and_an_input_that_is_never_negative():
    nodes = [node("Relu", "x", "r"), node("Neg", "c", "b"), node("Conv", "r w b", "y")]
    proto = build(nodes, {"x": [1, C, 9], "c": [M]}, ["y"], {"w": floats(M, C, 3)})
    made = quantize_in_memory(proto, **ROW)
    assert made.sqnr({"x": floats(1, C, 9), "c": floats(M)}) > 30
    assert made.ops["Abs"] == 0


@pytest.mark.parametrize(
    ("weight", "attributes", "reason"),
    [
        ((4, 3, 3), {"group": 2}, "with a scale for every window it has no form for groups"),
        ((4, 6, 3, 3), {}, "with a scale for every window its kernel has to be along one axis"),
        ((4, 6, 1, 1), {"strides": [2, 2]}, "with a scale for every window its kernel has to be along one axis"),
        (
            (4, 6, 3),
            {"strides": [2], "auto_pad": "SAME_UPPER"},
            "with a scale for every window it has no form for auto_pad = SAME_UPPER and strides",
        ),
    ],
)
def test_what_has_no_windows_along_one_axis_stays_float(weight, attributes, reason):
    shape = [1, 6, *[9] * (len(weight) - 2)]
    model = typed(build([node("Conv", "x w", "y", **attributes)], {"x": shape}, ["y"], {"w": floats(*weight)}))
    plan = make_plan(model, recipe_of("dynamic-int8", **ROW), with_data=False)
    assert [decision.reason for decision in plan.decisions] == [reason]
