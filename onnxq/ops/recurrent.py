"""LSTM, GRU and RNN: https://onnx.ai/onnx/operators/onnx__LSTM.html, onnx__GRU.html, onnx__RNN.html.

The inputs of all steps are multiplied by W in one product; only what depends on the step before runs step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxq.errors import ModelError

from .activation import elu, hard_sigmoid, leaky_relu, relu, sigmoid, softplus, softsign, thresholded_relu
from .arrays import Array
from .registry import kernel

Activation = Callable[[Array], Array]

# Which of alpha and beta each function takes, and the defaults the specification gives them.
_PLAIN: dict[str, Activation] = {
    "relu": relu,
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "softsign": softsign,
    "softplus": softplus,
}
_WITH_ALPHA: dict[str, tuple[Callable[..., Array], float]] = {
    "elu": (elu, 1.0),
    "leakyrelu": (leaky_relu, 0.01),
    "thresholdedrelu": (thresholded_relu, 1.0),
}


def activations_of(
    names: Sequence[str], alphas: Sequence[float] | None, betas: Sequence[float] | None
) -> list[Activation]:
    """Make functions of the attributes `activations`, `activation_alpha` and `activation_beta`.

    The alphas and betas are handed out in order to the functions that take one.

    Raises:
        ModelError: A function does not exist.

    """
    left_alphas, left_betas = list(alphas or ()), list(betas or ())

    def take(values: list[float], default: float) -> float:
        return values.pop(0) if values else default

    found: list[Activation] = []
    for name in names:
        key = name.lower()
        if key in _PLAIN:
            found.append(_PLAIN[key])
        elif key in _WITH_ALPHA:
            function, default = _WITH_ALPHA[key]
            alpha = take(left_alphas, default)
            found.append(lambda x, f=function, a=alpha: f(x, alpha=a))  # type: ignore[misc]
        elif key == "hardsigmoid":
            alpha, beta = take(left_alphas, 0.2), take(left_betas, 0.5)
            found.append(lambda x, a=alpha, b=beta: hard_sigmoid(x, alpha=a, beta=b))  # type: ignore[misc]
        elif key in ("affine", "scaledtanh"):
            alpha, beta = take(left_alphas, 1.0), take(left_betas, 0.0 if key == "affine" else 1.0)
            if key == "affine":
                found.append(lambda x, a=alpha, b=beta: x * x.dtype.type(a) + x.dtype.type(b))  # type: ignore[misc]
            else:
                found.append(lambda x, a=alpha, b=beta: np.tanh(x * x.dtype.type(b)) * x.dtype.type(a))  # type: ignore[misc]
        else:
            raise ModelError(f"activation '{name}' does not exist", "Use one that ONNX defines.")
    return found


@dataclass(frozen=True)
class Layer:
    """What the directions of one recurrent operator have in common.

    Attributes:
        hidden: Length of the state.
        gates: Gates of the cell.
        directions: 1 or 2.
        lengths: Steps of each sample, or None when all have as many as X.
        reverse: For each direction whether it runs backwards.

    """

    hidden: int
    gates: int
    directions: int
    lengths: Array | None
    reverse: tuple[bool, ...]


def _layer(w: Array, r: Array, gates: int, direction: str, lengths: Array | None, steps: int) -> Layer:
    directions = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}.get(direction)
    if directions is None or len(directions) != w.shape[0]:
        raise ModelError(
            f"direction '{direction}' does not fit a weight of {w.shape[0]} directions", "Correct `direction`."
        )
    if lengths is not None and np.all(lengths == steps):
        lengths = None
    return Layer(r.shape[2], gates, len(directions), lengths, directions)


def _clipped(x: Array, limit: float | None) -> Array:
    return x if not limit else np.clip(x, x.dtype.type(-limit), x.dtype.type(limit))


def _order(layer: Layer, index: int, steps: int, batch: int) -> Array:
    """Give which step of each sample runs when: int64 [steps, batch]. Backwards begins at each sample's own end."""
    step = np.arange(steps)[:, None]
    if not layer.reverse[index]:
        return np.broadcast_to(step, (steps, batch))
    length = np.full(batch, steps) if layer.lengths is None else np.asarray(layer.lengths)
    return np.where(step < length, length - 1 - step, step)


def _run_direction(
    layer: Layer,
    index: int,
    projected: Array,
    states: list[Array],
    cell: Callable[[Array, list[Array]], list[Array]],
) -> tuple[Array, list[Array]]:
    """Run the cell over the steps of projected inputs [T, B, gates * hidden]; give all states and the last ones."""
    steps, batch = projected.shape[:2]
    order = _order(layer, index, steps, batch)
    samples = np.arange(batch)
    moved = projected if not layer.reverse[index] else projected[order, samples]
    outputs = np.zeros((steps, batch, layer.hidden), projected.dtype)
    for step in range(steps):
        found = cell(moved[step], states)
        if layer.lengths is not None:  # samples that have ended keep their state and give zeros
            alive = (step < layer.lengths)[:, None]
            outputs[step] = np.where(alive, found[0], 0)
            states = [np.where(alive, new, old) for new, old in zip(found, states, strict=True)]
        else:
            outputs[step] = found[0]
            states = found
    if layer.reverse[index]:
        turned = np.empty_like(outputs)
        turned[order, samples] = outputs
        outputs = turned
    return outputs, states


def _initial(state: Array | None, layer: Layer, batch: int, dtype: Any, layout: int) -> Array:
    if state is None:
        return np.zeros((layer.directions, batch, layer.hidden), dtype)
    return np.swapaxes(state, 0, 1) if layout else state


def _finish(outputs: list[Array], states: list[list[Array]], layout: int) -> tuple[Array, ...]:
    """Stack the directions: Y [T, D, B, H], or [B, T, D, H] with layout 1, and the last states [D, B, H]."""
    y = np.stack(outputs, axis=1)
    last = [np.stack(column) for column in zip(*states, strict=True)]
    if layout:
        return np.transpose(y, (2, 0, 1, 3)), *(np.swapaxes(state, 0, 1) for state in last)
    return y, *last


@kernel("LSTM")
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

    Args:
        x: [T, B, I], or [B, T, I] with `layout = 1`.
        w, r, b, p: [D, 4H, I], [D, 4H, H], [D, 8H] or None, [D, 3H] or None (peepholes i, o, f).
        sequence_lens: [B] or None.
        initial_h, initial_c: [D, B, H] or None.
        activation_alpha, activation_beta, activations, clip, direction, input_forget, layout: As ONNX defines them.
        hidden_size, output_sequence: What the shapes already say.

    Returns:
        Y [T, D, B, H], Y_h and Y_c [D, B, H]; the batch axis first with `layout = 1`.

    Raises:
        ModelError: The direction does not fit the weights, or an activation does not exist.

    """
    x = np.swapaxes(x, 0, 1) if layout else x
    layer = _layer(w, r, 4, direction, sequence_lens, x.shape[0])
    h, c = (_initial(s, layer, x.shape[1], x.dtype, layout) for s in (initial_h, initial_c))
    functions = activations_of(
        activations or ("Sigmoid", "Tanh", "Tanh") * layer.directions, activation_alpha, activation_beta
    )
    outputs, states = [], []
    for d in range(layer.directions):
        projected = _project(x, w[d], None if b is None else b[d], 4 * layer.hidden)
        cell = _lstm_cell(
            r[d], None if p is None else p[d], functions[3 * d : 3 * d + 3], clip, bool(input_forget)
        )
        y, last = _run_direction(layer, d, projected, [h[d], c[d]], cell)
        outputs.append(y)
        states.append(last)
    return _finish(outputs, states, layout)


def _project(x: Array, w: Array, b: Array | None, recurrent_from: int) -> Array:
    """X W' plus both biases, for all steps at once."""
    product = (x.reshape(-1, x.shape[-1]) @ w.T).reshape(*x.shape[:-1], w.shape[0])
    if b is not None:
        product += b[:recurrent_from] + b[recurrent_from:]
    return product


def _lstm_cell(
    r: Array, peepholes: Array | None, functions: Sequence[Activation], limit: float | None, coupled: bool
) -> Callable[[Array, list[Array]], list[Array]]:
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
        i = f(_clipped(i, limit))
        forget = 1 - i if coupled else f(_clipped(forget, limit))
        memory = forget * memory + i * g(_clipped(new, limit))
        o = f(_clipped(o if peepholes is None else o + po * memory, limit))
        return [o * h(memory), memory]

    return cell


@kernel("GRU")
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
    layer = _layer(w, r, 3, direction, sequence_lens, x.shape[0])
    h = _initial(initial_h, layer, x.shape[1], x.dtype, layout)
    functions = activations_of(activations or ("Sigmoid", "Tanh") * layer.directions, activation_alpha, activation_beta)
    outputs, states = [], []
    for d in range(layer.directions):
        size = layer.hidden
        bias = np.zeros(6 * size, x.dtype) if b is None else b[d]
        projected = (x.reshape(-1, x.shape[-1]) @ w[d].T).reshape(*x.shape[:-1], 3 * size) + bias[: 3 * size]
        cell = _gru_cell(r[d], bias[3 * size :], functions[2 * d : 2 * d + 2], clip, bool(linear_before_reset))
        y, last = _run_direction(layer, d, projected, [h[d]], cell)
        outputs.append(y)
        states.append(last)
    return _finish(outputs, states, layout)


def _gru_cell(
    r: Array, bias: Array, functions: Sequence[Activation], limit: float | None, linear: bool
) -> Callable[[Array, list[Array]], list[Array]]:
    f, g = functions
    size = r.shape[1]
    gate_weight = np.ascontiguousarray(r[: 2 * size].T)
    new_weight = np.ascontiguousarray(r[2 * size :].T)
    gate_bias, new_bias = bias[: 2 * size], bias[2 * size :]

    def cell(inputs: Array, states: list[Array]) -> list[Array]:
        hidden = states[0]
        gates = f(_clipped(inputs[:, : 2 * size] + hidden @ gate_weight + gate_bias, limit))
        update, reset = gates[:, :size], gates[:, size:]
        if linear:
            recurrent = reset * (hidden @ new_weight + new_bias)
        else:
            recurrent = (reset * hidden) @ new_weight + new_bias
        new = g(_clipped(inputs[:, 2 * size :] + recurrent, limit))
        return [(1 - update) * new + update * hidden]

    return cell


@kernel("RNN")
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
    layer = _layer(w, r, 1, direction, sequence_lens, x.shape[0])
    h = _initial(initial_h, layer, x.shape[1], x.dtype, layout)
    functions = activations_of(activations or ("Tanh",) * layer.directions, activation_alpha, activation_beta)
    outputs, states = [], []
    for d in range(layer.directions):
        projected = _project(x, w[d], None if b is None else b[d], layer.hidden)
        weight, function = np.ascontiguousarray(r[d].T), functions[d]

        def cell(
            inputs: Array, states: list[Array], weight: Array = weight, function: Activation = function
        ) -> list[Array]:
            return [function(_clipped(inputs + states[0] @ weight, clip))]

        y, last = _run_direction(layer, d, projected, [h[d]], cell)
        outputs.append(y)
        states.append(last)
    return _finish(outputs, states, layout)
