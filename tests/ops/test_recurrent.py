"""LSTM, GRU and RNN against onnxruntime."""

import numpy as np
import pytest
from float_support import check, evaluate_single, normal

from onnxq.errors import ModelError

T, B, WIDTH, H = 5, 3, 4, 6


def weights(gates, directions, seed=0):
    return [
        normal(directions, gates * H, WIDTH, seed=seed) * 0.5,
        normal(directions, gates * H, H, seed=seed + 1) * 0.5,
        normal(directions, 2 * gates * H, seed=seed + 2) * 0.5,
    ]


LENGTHS = np.array([5, 2, 3], np.int32)
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("lengths", [None, LENGTHS])
@pytest.mark.parametrize("op_type", GATES)
def test_directions_and_lengths_agree_with_onnxruntime(op_type, lengths, direction):
    directions = 2 if direction == "bidirectional" else 1
    start = [normal(directions, B, H, seed=7), normal(directions, B, H, seed=8)][: 2 if op_type == "LSTM" else 1]
    outputs = 3 if op_type == "LSTM" else 2
    inputs = [normal(T, B, WIDTH), *weights(GATES[op_type], directions), lengths, *start]
    check(op_type, inputs, outputs, hidden_size=H, direction=direction, atol=1e-5)


@pytest.mark.parametrize("op_type", GATES)
def test_without_bias_and_start_agrees_with_onnxruntime(op_type):
    w, r, _ = weights(GATES[op_type], 1)
    check(op_type, [normal(T, B, WIDTH), w, r], 2, hidden_size=H, atol=1e-5)


def test_peepholes_clipping_and_coupled_gates_agree_with_onnxruntime():
    inputs = [normal(T, B, WIDTH), *weights(4, 1), None, None, None, normal(1, 3 * H, seed=5)]
    check("LSTM", inputs, 3, hidden_size=H, clip=0.5, atol=1e-5)
    check("LSTM", inputs[:4], 3, hidden_size=H, input_forget=1, atol=1e-5)


@pytest.mark.parametrize("linear", [0, 1])
def test_both_forms_of_gru_agree_with_onnxruntime(linear):
    check("GRU", [normal(T, B, WIDTH), *weights(3, 1)], 2, hidden_size=H, linear_before_reset=linear, atol=1e-5)


@pytest.mark.parametrize(
    ("names", "alpha", "beta"),
    [
        (["HardSigmoid", "Softsign", "Tanh"], [0.3], [0.4]),
        (["Sigmoid", "LeakyRelu", "Affine"], [0.2, 0.5], [0.1]),
        (["Sigmoid", "Elu", "ScaledTanh"], [0.7, 1.2], [0.8]),
    ],
)
def test_other_activations_agree_with_onnxruntime(names, alpha, beta):
    inputs = [normal(T, B, WIDTH), *weights(4, 1)]
    check("LSTM", inputs, 3, hidden_size=H, activations=names, activation_alpha=alpha, activation_beta=beta, atol=1e-5)


@pytest.mark.parametrize("op_type", GATES)
def test_the_batch_axis_can_come_first(op_type):
    x, parts, outputs = normal(T, B, WIDTH), weights(GATES[op_type], 2), 3 if op_type == "LSTM" else 2
    given = {"hidden_size": H, "direction": "bidirectional"}
    plain = evaluate_single(op_type, [x, *parts], outputs, **given)
    turned = evaluate_single(op_type, [x.swapaxes(0, 1), *parts], outputs, layout=1, **given)
    assert np.array_equal(turned[0], plain[0].transpose(2, 0, 1, 3))
    for ours, theirs in zip(turned[1:], plain[1:], strict=True):
        assert np.array_equal(ours, theirs.swapaxes(0, 1))


def test_a_mistaken_direction_or_activation_is_refused():
    inputs = [normal(T, B, WIDTH), *weights(1, 1)]
    with pytest.raises(ModelError, match="direction 'bidirectional' does not fit a weight of 1 directions"):
        evaluate_single("RNN", inputs, hidden_size=H, direction="bidirectional")
    with pytest.raises(ModelError, match="activation 'Swoosh' does not exist"):
        evaluate_single("RNN", inputs, hidden_size=H, activations=["Swoosh"])
