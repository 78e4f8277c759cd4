"""LSTM, GRU and RNN: https://onnx.ai/onnx/operators/onnx__LSTM.html, onnx__GRU.html, onnx__RNN.html.

The inputs of all steps are multiplied by W in one product; only what depends on the step before runs step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onnxq.ops.kernels.arrays import Array, in_float32
from onnxq.ops.kernels.recurrent_steps import (
    Activation,
    Cell,
    RecurrentLayer,
    activations_of,
    clipped,
    make_layer,
    run_direction,
)
from onnxq.ops.kernels.registry import kernel


def _initial(state: Array | None, layer: RecurrentLayer, batch: int, dtype: Any, layout: int) -> Array:
    if state is None:
        return np.zeros((layer.directions, batch, layer.hidden), dtype)
    return np.swapaxes(state, 0, 1) if layout else state


def _run(
    layer: RecurrentLayer,
    projected: Callable[[int], Array],
    states: Sequence[Array],
    cell: Callable[[int], Cell],
    layout: int,
) -> tuple[Array, ...]:
    """Run every direction and stack them.

    Y is [T, D, B, H], or [B, T, D, H] with layout 1, and the last states are [D, B, H].

    Args:
        layer: Shape and directions.
        projected: Gives what the inputs of all steps add to the gates, for one direction.
        states: The states to start from, each [D, B, H].
        cell: Gives the step of one direction.
        layout: 1: the batch axis comes first in what is returned.

    """
    runs = [
        run_direction(layer, d, projected(d), [state[d] for state in states], cell(d)) for d in range(layer.directions)
    ]
    y = np.stack([output for output, _ in runs], axis=1)
    last = [np.stack(column) for column in zip(*(ends for _, ends in runs), strict=True)]
    if layout:
        return np.transpose(y, (2, 0, 1, 3)), *(np.swapaxes(state, 0, 1) for state in last)
    return y, *last


@kernel("LSTM")
@in_float32
def lstm(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    p: Array | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
    output_sequence: int = 0,
) -> tuple[Array, ...]:
    """Long short-term memory; gates in the order i, o, f, c.

    X is [T, B, I], W [D, 4H, I] and R [D, 4H, H]. Optional are B [D, 8H], sequence_lens [B], initial_h and initial_c
    [D, B, H], and P [D, 3H], the peepholes i, o, f. Gives Y [T, D, B, H], Y_h and Y_c [D, B, H] in the type of X. With
    `layout = 1` the batch axis comes first in all of them. Attributes are as ONNX defines them; `hidden_size` and
    `output_sequence` say what the shapes already do.

    Raises:
        ModelError: The direction does not fit the weights, or an activation does not exist.

    """
    x = np.swapaxes(x, 0, 1) if layout else x
    layer = make_layer(w, r, direction, sequence_lens, x.shape[0])
    states = [_initial(s, layer, x.shape[1], x.dtype, layout) for s in (initial_h, initial_c)]
    functions = activations_of(
        activations or ("Sigmoid", "Tanh", "Tanh") * layer.directions, activation_alpha, activation_beta
    )

    def cell(d: int) -> Cell:
        return _lstm_cell(r[d], None if p is None else p[d], functions[3 * d : 3 * d + 3], clip, bool(input_forget))

    return _run(layer, lambda d: _project(x, w[d], b, d), states, cell, layout)


def _project(x: Array, w: Array, b: Array | None, direction: int) -> Array:
    """X W' plus both biases, for all steps at once."""
    product = _times(x, w)
    if b is not None:
        product += np.add(*np.split(b[direction], 2))
    return product


def _times(x: Array, w: Array) -> Array:
    return (x.reshape(-1, x.shape[-1]) @ w.T).reshape(*x.shape[:-1], w.shape[0])


def _lstm_cell(
    r: Array, peepholes: Array | None, functions: Sequence[Activation], limit: float | None, coupled: bool
) -> Cell:
    weight = np.ascontiguousarray(r.T)
    f, g, h = functions
    size = r.shape[1]
    zero = np.zeros(3 * size, r.dtype) if peepholes is None else peepholes
    pi, po, pf = np.split(zero, 3)

    def cell(inputs: Array, states: list[Array]) -> list[Array]:
        hidden, memory = states
        gates = inputs + hidden @ weight
        i, o, forget, new = (gates[:, k * size : (k + 1) * size] for k in range(4))
        if peepholes is not None:
            i, forget = i + pi * memory, forget + pf * memory
        i = f(clipped(i, limit))
        forget = 1 - i if coupled else f(clipped(forget, limit))
        memory = forget * memory + i * g(clipped(new, limit))
        o = f(clipped(o if peepholes is None else o + po * memory, limit))
        return [o * h(memory), memory]

    return cell


@kernel("GRU")
@in_float32
def gru(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
    output_sequence: int = 0,
) -> tuple[Array, ...]:
    """Gated recurrent unit; gates in the order z, r, h. Shapes as for `lstm` with 3 gates: w [D, 3H, I], b [D, 6H]."""
    x = np.swapaxes(x, 0, 1) if layout else x
    layer = make_layer(w, r, direction, sequence_lens, x.shape[0])
    h = _initial(initial_h, layer, x.shape[1], x.dtype, layout)
    functions = activations_of(activations or ("Sigmoid", "Tanh") * layer.directions, activation_alpha, activation_beta)
    size = layer.hidden
    bias = np.zeros((layer.directions, 6 * size), x.dtype) if b is None else b

    def cell(d: int) -> Cell:
        return _gru_cell(r[d], bias[d, 3 * size :], functions[2 * d : 2 * d + 2], clip, bool(linear_before_reset))

    return _run(layer, lambda d: _times(x, w[d]) + bias[d, : 3 * size], [h], cell, layout)


def _gru_cell(r: Array, bias: Array, functions: Sequence[Activation], limit: float | None, linear: bool) -> Cell:
    f, g = functions
    size = r.shape[1]
    gate_weight = np.ascontiguousarray(r[: 2 * size].T)
    new_weight = np.ascontiguousarray(r[2 * size :].T)
    gate_bias, new_bias = bias[: 2 * size], bias[2 * size :]

    def cell(inputs: Array, states: list[Array]) -> list[Array]:
        hidden = states[0]
        gates = f(clipped(inputs[:, : 2 * size] + hidden @ gate_weight + gate_bias, limit))
        update, reset = gates[:, :size], gates[:, size:]
        if linear:
            recurrent = reset * (hidden @ new_weight + new_bias)
        else:
            recurrent = (reset * hidden) @ new_weight + new_bias
        new = g(clipped(inputs[:, 2 * size :] + recurrent, limit))
        return [(1 - update) * new + update * hidden]

    return cell


@kernel("RNN")
@in_float32
def rnn(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    output_sequence: int = 0,
) -> tuple[Array, ...]:
    """Plain recurrent network: f(X W' + H R' + biases). Shapes as for `lstm` with one gate: w [D, H, I], b [D, 2H]."""
    x = np.swapaxes(x, 0, 1) if layout else x
    layer = make_layer(w, r, direction, sequence_lens, x.shape[0])
    h = _initial(initial_h, layer, x.shape[1], x.dtype, layout)
    functions = activations_of(activations or ("Tanh",) * layer.directions, activation_alpha, activation_beta)
    return _run(layer, lambda d: _project(x, w[d], b, d), [h], lambda d: _rnn_cell(r[d], functions[d], clip), layout)


def _rnn_cell(r: Array, function: Activation, limit: float | None) -> Cell:
    weight = np.ascontiguousarray(r.T)

    def cell(inputs: Array, states: list[Array]) -> list[Array]:
        return [function(clipped(inputs + states[0] @ weight, limit))]

    return cell
