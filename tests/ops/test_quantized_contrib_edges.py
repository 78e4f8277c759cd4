"""What the com.microsoft kernels refuse, and the options that their main tests leave out."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from quantized_support import differing, run_kernel, run_onnxruntime

from onnxq import ops
from onnxq.errors import ModelError

F = np.float32
MS = "com.microsoft"
U, S = np.uint8, np.int8
M23, M34 = np.zeros((2, 3), U), np.zeros((3, 4), U)
X3 = np.zeros((1, 2, 5), U)
ONE, Z = F(1), U(0)


def pool(x=X3, zero=Z, **attributes):
    return ops.q_linear_average_pool(x, ONE, zero, ONE, zero, **({"kernel_shape": [2]} | attributes))


def gather(data=None, indices=None, scales=None, zeros=None, **attributes):
    data = np.zeros((4, 32), U).astype(ml_dtypes.uint4) if data is None else data
    indices = np.zeros(2, np.int64) if indices is None else indices
    scales = np.ones((4, 2), F) if scales is None else scales
    return ops.gather_block_quantized(data, indices, scales, zeros, **({"block_size": 16} | attributes))


def n_bits(a=None, b=None, scales=None, zeros=None, g_idx=None, bias=None, **attributes):
    a = np.zeros((1, 32), F) if a is None else a
    b = np.zeros((3, 2, 8), U) if b is None else b
    scales = np.ones((3, 2), F) if scales is None else scales
    return ops.mat_mul_n_bits(a, b, scales, zeros, g_idx, bias, **({"K": 32, "N": 3, "block_size": 16} | attributes))


def lstm(x=None, w=None, scale=None, lengths=None, h=None, **attributes):
    x = np.zeros((4, 2, 3), F) if x is None else x
    w = np.zeros((1, 3, 20), U) if w is None else w
    scale = np.ones(1, F) if scale is None else scale
    inputs = [x, w, np.zeros((1, 5, 20), U), None, lengths, h, None, None, scale, np.zeros(1, U), np.ones(1, F)]
    return ops.dynamic_quantize_lstm(*inputs, np.zeros(1, U), **attributes)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.q_linear_add(M23, ONE, Z, M23.view(S), ONE, S(0), ONE, Z), "A is uint8 and B int8"),
        (lambda: ops.q_linear_add(M23, ONE, Z, M34, ONE, Z, ONE, Z), "do not broadcast"),
        (lambda: ops.q_linear_add(M23, np.ones(2, F), Z, M23, ONE, Z, ONE, Z), "A_scale has shape"),
        (lambda: ops.q_linear_mul(M23, ONE, S(0), M23, ONE, Z, ONE, Z), "A_zero_point is int8 and its tensor uint8"),
        (
            lambda: ops.q_linear_mul(M23.astype(F), ONE, Z, M23.astype(F), ONE, Z, ONE),
            "type float32, not uint8",
        ),
        (lambda: ops.q_linear_sigmoid(M23, None, Z, ONE, Z), "X_scale is required"),
        (lambda: ops.q_linear_softmax(M23, ONE, Z, ONE, Z, axis=2, opset=13), r"axis 2 is outside \[-2, 1\]"),
        (lambda: ops.q_linear_concat(ONE, Z, M23, ONE, axis=0), "come in threes"),
        (lambda: ops.q_linear_concat(ONE, Z, M23, ONE, Z, M34, ONE, Z, axis=0), "do not fit along axis 0"),
        (lambda: ops.q_linear_concat(ONE, S(0), M23, ONE, Z, axis=0), "an input is uint8 and the output int8"),
        (lambda: ops.q_linear_where(M23 > 0, M23, ONE, Z, M34, ONE, Z, ONE, Z), "do not broadcast"),
        (lambda: pool(kernel_shape=[2, 2]), "does not fit a tensor of shape"),
        (lambda: pool(kernel_shape=[9]), "does not fit into"),
        (lambda: pool(auto_pad="SAME"), "auto_pad"),
        (lambda: pool(pads=[1]), "pads"),
        (lambda: pool(strides=[0]), "strides"),
        (lambda: ops.q_linear_global_average_pool(M23, ONE, Z, ONE, Z), "no spatial axis"),
        (lambda: ops.q_gemm(X3, ONE, Z, M34, ONE, Z), "not matrices"),
        (lambda: ops.q_gemm(M23, ONE, Z, M34, ONE, Z, None, ONE), "go together"),
        (lambda: ops.q_gemm(M23, ONE, Z, M34, ONE, Z, np.zeros(3, np.int32)), "not int32 that fits"),
        (lambda: ops.q_gemm(M23, ONE, Z, M34, ONE, Z, np.zeros(4, F)), "C is float32"),
        (lambda: ops.q_gemm(M23, ONE, Z, M34, np.ones(3, F), Z), "nor its columns"),
        (lambda: ops.mat_mul_integer_to_float(M23, M34, np.float16(1), ONE), "a_scale has type float16"),
        (lambda: ops.mat_mul_integer_to_float(M23, M34, ONE, ONE, None, None, np.zeros(3, F)), "bias is float32"),
        (lambda: ops.dynamic_quantize_mat_mul(M23, M34, ONE), "float32 only"),
        (lambda: n_bits(bits=3), "bits = 3"),
        (lambda: n_bits(block_size=24), "block_size = 24"),
        (lambda: n_bits(weight_prepacked=1), "weight_prepacked = 1"),
        (lambda: n_bits(accuracy_level=5), "accuracy_level = 5"),
        (lambda: n_bits(a=np.zeros((1, 31), F)), "floating tensor"),
        (lambda: n_bits(b=np.zeros((3, 2, 7), U)), "B is uint8"),
        (lambda: n_bits(scales=np.ones((3, 1), F)), "scales is float32"),
        (lambda: n_bits(zeros=np.zeros((3, 2), U)), "zero_points is uint8"),
        (lambda: n_bits(g_idx=np.full(32, 2, np.int32)), "g_idx does not name one of 2 blocks"),
        (lambda: n_bits(bias=np.zeros(2, F)), "bias is float32"),
        (lambda: gather(data=np.zeros((4, 32), np.int32)), "data has type int32"),
        (lambda: gather(bits=3), "bits = 3"),
        (lambda: gather(block_size=8), "block_size = 8"),
        (lambda: gather(block_size=0), "block_size = 0"),
        (lambda: gather(indices=np.zeros(2, F)), "indices float32"),
        (lambda: gather(scales=np.ones((4, 3), F)), r"have the shape \[4, 2\]"),
        (lambda: gather(scales=np.ones((1, 2), F)), r"have the shape \[4, 2\]"),
        (lambda: gather(zeros=np.zeros((4, 2), U)), "does not go with zero points of type uint8"),
        (lambda: gather(data=np.zeros((4, 16), U), gather_axis=1, quantize_axis=0), "gathered along axis 0"),
        (lambda: gather(gather_axis=2), "axis 2 is outside"),
        (lambda: lstm(direction="up"), "direction 'up'"),
        (lambda: lstm(x=np.zeros((4, 2), F)), r"X is float32 \[4, 2\]"),
        (lambda: lstm(w=np.zeros((1, 3, 16), U)), "do not fit"),
        (lambda: lstm(hidden_size=6), "hidden_size 6"),
        (lambda: lstm(lengths=np.array([1, 9])), r"sequence_lens \[1, 9\]"),
        (lambda: lstm(h=np.zeros((1, 2, 4), F)), "initial_h is float32"),
        (lambda: lstm(scale=np.ones(2, F)), "a scale or zero point has shape"),
        (lambda: lstm(activations=["Tanh"]), "1 activations are not three"),
        (lambda: lstm(activations=["Tanh", "Tanh", "Sine"]), "activation 'Sine'"),
        (lambda: ops.microsoft_quantize_linear(M23.astype(F), np.float16(1)), "both are float32, or both float16"),
        (lambda: ops.microsoft_quantize_linear(M23.astype(F), ONE, np.int32(0)), "the zero point has type int32"),
        (lambda: ops.microsoft_dequantize_linear(M23.astype(F), ONE), "x is float32"),
        (lambda: ops.q_linear_conv(X3, ONE, Z, X3, ONE, Z, ONE, Z, np.zeros(1, F)), "B is float32"),
        (lambda: ops.q_linear_mat_mul(M23, np.float64(1), Z, M34, ONE, Z, ONE, Z), "a_scale has type float64"),
        (lambda: ops.q_linear_mat_mul(M23, np.ones(2, F), Z, M34, ONE, Z, ONE, Z), "a_scale has shape"),
        (lambda: ops.q_linear_mat_mul(M23, ONE, Z, M34, ONE, Z, np.ones(4, F), Z), "y_scale has shape"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(call, message):
    with pytest.raises(ModelError, match=message):
        call()


def test_the_calls_above_work_when_they_fit():
    assert pool().shape == (1, 2, 4)
    assert gather().shape == (2, 32)
    assert n_bits().shape == (1, 3)
    assert [v.shape for v in lstm()] == [(4, 1, 2, 5), (1, 2, 5), (1, 2, 5)]


@pytest.mark.parametrize("dtype", [U, S, np.uint16, np.int16, np.int32])
@pytest.mark.parametrize("real", [F, np.float16])
@pytest.mark.parametrize("axis", [None, 1, -1])
def test_microsoft_linear_operators(dtype, real, axis):
    rng = np.random.default_rng(40)
    attributes = {} if axis is None else {"axis": axis}
    size = 7 if axis == -1 else 5
    scale = rng.uniform(0.01, 0.2, size).astype(real)
    zero = np.zeros(size, dtype) if dtype == np.int32 else rng.integers(0, 100, size).astype(dtype)
    x = (rng.standard_normal((3, 5, 7)) * 9).astype(real)
    if dtype != np.int32:
        theirs = run_onnxruntime("QuantizeLinear", [x, scale, zero], [dtype], domain=MS, **attributes)[0]
        mine = run_kernel("QuantizeLinear", [x, scale, zero], domain=MS, **attributes)[0]
        assert differing(mine, theirs) == 0
    q = rng.integers(-(2**20), 2**20, (3, 5, 7)).astype(dtype)
    theirs = run_onnxruntime("DequantizeLinear", [q, scale, zero], [real], domain=MS, **attributes)[0]
    with np.errstate(over="ignore"):
        mine = run_kernel("DequantizeLinear", [q, scale, zero], domain=MS, **attributes)[0]
    assert differing(mine, theirs) == 0


def lstm_settings():
    yield {"activations": ["HardSigmoid", "Softsign", "Relu"], "activation_alpha": [0.3], "activation_beta": [0.4]}
    yield {"activations": ["Sigmoid", "ScaledTanh", "Tanh"], "activation_alpha": [0.7], "activation_beta": [0.6]}
    yield {"activations": ["Sigmoid", "LeakyRelu", "Elu"], "activation_alpha": [0.2, 0.5]}
    yield {"activations": ["Sigmoid", "Affine", "Tanh"], "activation_alpha": [0.7], "activation_beta": [0.1]}
    yield {"activations": ["Sigmoid", "ThresholdedRelu", "Softplus"], "activation_alpha": [0.2]}
    yield {"input_forget": 1}
    yield {"clip": 0.4}


@pytest.mark.parametrize("attributes", list(lstm_settings()), ids=lambda a: "-".join(a.get("activations", a)))
def test_options_of_the_lstm(attributes):
    """Tolerance 2e-3: as in test_quantized_contrib.py."""
    rng = np.random.default_rng(41)
    inputs = [
        *(rng.standard_normal((5, 3, 8)).astype(F), rng.integers(-128, 128, (1, 8, 24)).astype(S)),
        *(rng.integers(-128, 128, (1, 6, 24)).astype(S), rng.standard_normal((1, 48)).astype(F) * F(0.1)),
        *([None] * 4),
        *(np.full(1, 0.003, F), np.zeros(1, S), np.full(1, 0.003, F), np.zeros(1, S)),
    ]
    mine = run_kernel("DynamicQuantizeLSTM", inputs, domain=MS, hidden_size=6, **attributes)
    theirs = run_onnxruntime("DynamicQuantizeLSTM", inputs, [F] * 3, domain=MS, hidden_size=6, **attributes)
    plain = run_kernel("DynamicQuantizeLSTM", inputs, domain=MS, hidden_size=6)
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-3)
    assert np.abs(mine[0] - plain[0]).max() > 0.02


def test_group_index_of_n_bits_names_the_block():
    """Features in reverse, each with the block that it had."""
    rng = np.random.default_rng(42)
    a = rng.standard_normal((2, 32)).astype(F)
    q = rng.integers(0, 16, (3, 32)).astype(U)
    scales = rng.uniform(0.1, 1, (3, 2)).astype(F)

    def packed(values):
        return (values[:, ::2] | (values[:, 1::2] << 4)).reshape(3, 2, 8)

    straight = n_bits(a, packed(q), scales)
    group = (np.arange(32) // 16)[::-1].astype(np.int32)
    turned = n_bits(a[:, ::-1].copy(), packed(q[:, ::-1]), scales, None, group)
    np.testing.assert_allclose(turned, straight, rtol=1e-5)
    assert np.abs(n_bits(a[:, ::-1].copy(), packed(q[:, ::-1]), scales) - straight).max() > 0.1


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn])
def test_gather_from_a_floating_table_with_one_scale(dtype):
    data = np.array([[0.5, 1, -2, 4], [3, -1, 0, 6]], dtype)
    y = gather(data, np.array([[1], [0]]), np.array([[0.5]], F), block_size=0)
    np.testing.assert_array_equal(y, [[[1.5, -0.5, 0, 3]], [[0.25, 0.5, -1, 2]]])


def test_gather_of_two_bit_rows():
    """Low bits first; without zero points 2 ** (bits - 1) is taken off."""
    data = np.tile(np.array([[0b11100100], [0b00011011]], U), (1, 4))
    y = gather(data, np.array([0, 1]), np.ones((2, 1), F), bits=2)
    assert y[:, :4].tolist() == [[-2, -1, 0, 1], [1, 0, -1, -2]]
