"""MatMul, Gemm, Einsum and running sums against onnxruntime."""

import numpy as np
import pytest
from float_support import check, evaluate_single, normal


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (4, 5)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((2, 3, 4), (4, 5)),
        ((2, 1, 3, 4), (5, 4, 6)),
        ((4,), (4,)),
        ((2, 3, 0), (0, 5)),
    ],
)
def test_matmul_agrees_with_onnxruntime(a, b):
    check("MatMul", [normal(*a), normal(*b, seed=1)])
    check("MatMul", [normal(*a).astype(np.float64), normal(*b, seed=1).astype(np.float64)])


def test_matmul_of_transposed_and_integer_matrices():
    integers = np.arange(12, dtype=np.int32).reshape(3, 4)
    check("MatMul", [integers, integers.T.copy()])
    (y,) = evaluate_single("MatMul", [np.full((1, 4096), 0.1, np.float16), np.ones((4096, 1), np.float16)])
    assert y.dtype == np.float16
    assert abs(float(y[0, 0]) - 409.6) < 0.5  # summed in float32: in float16 the sum stalls at 256


@pytest.mark.parametrize("c", [None, (3, 5), (5,), (3, 1), (1,), ()])
@pytest.mark.parametrize(("trans_a", "trans_b"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_gemm_agrees_with_onnxruntime(trans_a, trans_b, c):
    a = normal(*((4, 3) if trans_a else (3, 4)))
    b = normal(*((5, 4) if trans_b else (4, 5)), seed=1)
    inputs = [a, b] if c is None else [a, b, normal(*c, seed=2)]
    check("Gemm", inputs, opset=13, transA=trans_a, transB=trans_b, alpha=0.5, beta=2.0)
    check("Gemm", inputs, opset=13, transA=trans_a, transB=trans_b)


def test_gemm_before_7():
    a, c = normal(3, 4), normal(5)
    (y,) = evaluate_single("Gemm", [a, normal(4, 5, seed=1), c], opset=6, broadcast=1)
    np.testing.assert_allclose(y, a @ normal(4, 5, seed=1) + c, rtol=1e-6)


def test_gemm_leaves_its_inputs_alone():
    c = np.zeros((3, 5), np.float32)
    evaluate_single("Gemm", [normal(3, 4), normal(4, 5), c])
    assert not c.any()


@pytest.mark.parametrize("equation", ["ij,jk->ik", "bij , bjk -> bik", "...i,...i->...", "ii->i"])
def test_einsum_agrees_with_onnxruntime(equation):
    shapes = {
        "ij,jk->ik": [(3, 4), (4, 5)],
        "bij , bjk -> bik": [(2, 3, 4), (2, 4, 5)],
        "...i,...i->...": [(2, 3), (2, 3)],
    }
    check("Einsum", [normal(*shape) for shape in shapes.get(equation, [(3, 3)])], equation=equation)


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_running_sums_agree_with_onnxruntime(axis, exclusive, reverse):
    check("CumSum", [normal(3, 4, 5), np.array(axis, np.int32)], exclusive=exclusive, reverse=reverse)


def test_determinants_agree_with_onnxruntime():
    check("Det", [normal(2, 3, 3)], atol=1e-5)
