"""com.microsoft DynamicQuantizeLSTM: an LSTM whose inputs and hidden states are quantized as they come.

Equations: https://onnx.ai/onnx/operators/onnx__LSTM.html; what is quantized when: ContribOperators.md of onnxruntime.

Tests: `tests/ops/test_quantized_contrib.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from onnxq.errors import ModelError
from onnxq.ir.graph import MICROSOFT
from onnxq.ops.kernels.registry import kernel
from onnxq.ops.quantized._types import FLOAT32, Array
from onnxq.ops.quantized.contrib_matmul import dynamic_quantize_mat_mul

NAME = "DynamicQuantizeLSTM"
Activation: TypeAlias = Callable[[Array], Array]

_ACTIVATIONS: dict[str, tuple[Callable[[Array, Any, Any], Array], float, float]] = {
    "sigmoid": (lambda x, _a, _b: 1 / (1 + np.exp(-x)), 0, 0),
    "tanh": (lambda x, _a, _b: np.tanh(x), 0, 0),
    "relu": (lambda x, _a, _b: np.maximum(x, 0), 0, 0),
    "affine": (lambda x, a, b: a * x + b, 1, 0),
    "leakyrelu": (lambda x, a, _b: np.where(x >= 0, x, a * x), 0.01, 0),
    "thresholdedrelu": (lambda x, a, _b: np.where(x >= a, x, 0), 1, 0),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), 1, 1),
    "hardsigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5),
    "elu": (lambda x, a, _b: np.where(x >= 0, x, a * np.expm1(x)), 1, 0),
    "softsign": (lambda x, _a, _b: x / (1 + np.abs(x)), 0, 0),
    "softplus": (lambda x, _a, _b: np.log1p(np.exp(x)), 0, 0),
}
"""Function of x, alpha and beta, and the defaults of both."""


@dataclass(frozen=True)
class _Direction:
    """The weights of one direction; gates stand in the order input, output, forget, cell."""

    w: tuple[Array, Array, Array]
    r: tuple[Array, Array, Array]
    bias: Array
    peephole: Array
    functions: tuple[Activation, Activation, Activation]
    clip: float
    input_forget: bool

    def step(self, gates: Array, h: Array, c: Array) -> tuple[Array, Array]:
        """Return the next hidden and cell state, each [batch, hidden], from x W^T of this step, [batch, 4 * hidden]."""
        gates = gates + dynamic_quantize_mat_mul(h, *self.r) + self.bias
        i, o, f, g = np.split(gates, 4, axis=-1)
        p_i, p_o, p_f = np.split(self.peephole, 3)
        inner, cell, outer = self.functions
        i = inner(self._clipped(i + p_i * c))
        f = 1 - i if self.input_forget else inner(self._clipped(f + p_f * c))
        c = np.asarray(f * c + i * cell(self._clipped(g)), FLOAT32)
        o = inner(self._clipped(o + p_o * c))
        return np.asarray(o * outer(c), FLOAT32), c

    def _clipped(self, x: Array) -> Array:
        return np.clip(x, -self.clip, self.clip) if self.clip else x


@kernel(NAME, domain=MICROSOFT)
def dynamic_quantize_lstm(
    X: Array,
    W: Array,
    R: Array,
    B: Array | None,
    sequence_lens: Array | None,
    initial_h: Array | None,
    initial_c: Array | None,
    P: Array | None,
    W_scale: Array,
    W_zero_point: Array,
    R_scale: Array,
    R_zero_point: Array,
    *,
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    activations: Sequence[str] = (),
    clip: float = 0.0,
    direction: str = "forward",
    hidden_size: int = 0,
    input_forget: int = 0,
) -> tuple[Array, Array, Array]:
    """Run an LSTM with 8-bit weights; all of X, and each hidden state, is quantized as by `dynamic_quantize_linear`.

    X is float32 [steps, batch, inputs]. W [directions, inputs, 4 * hidden] and R [directions, hidden, 4 * hidden] are
    uint8 or int8, with gates in the order input, output, forget, cell. Their scales and zero points are [directions],
    or [directions, 4 * hidden] for one per column. Optional are B [directions, 8 * hidden], P [directions, 3 * hidden],
    sequence_lens int32 [batch], initial_h and initial_c [directions, batch, hidden]; absent: zero, and `steps`.

    Attributes: as those of LSTM in ai.onnx. `activations` are three a direction: gates, cell and output. `clip` 0 is
        none; `hidden_size` 0 is taken from R. With `input_forget` the forget gate is one minus the input gate.

    Returns:
        Y [steps, directions, batch, hidden], Y_h and Y_c [directions, batch, hidden]; float32, zero beyond the end of a
        sequence.

    Raises:
        ModelError: Types, shapes or attributes do not fit.

    """
    x, w, r = np.asarray(X), np.asarray(W), np.asarray(R)
    reverse = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}.get(direction)
    if reverse is None:
        raise ModelError(f"{NAME}: direction {direction!r} is none of forward, reverse, bidirectional")
    count = len(reverse)
    hidden = _hidden_size(x, w, r, count, hidden_size)
    functions = _functions(activations, activation_alpha, activation_beta, count)
    state = (count, x.shape[1], hidden)
    h0, c0 = _optional("initial_h", initial_h, state), _optional("initial_c", initial_c, state)
    bias, peephole = _optional("B", B, (count, 8 * hidden)), _optional("P", P, (count, 3 * hidden))
    lengths = _lengths(sequence_lens, x.shape[0], x.shape[1])
    runs = []
    for d, backwards in enumerate(reverse):
        wide = (w[d], _parameter(W_scale, d, count), _parameter(W_zero_point, d, count))
        again = (r[d], _parameter(R_scale, d, count), _parameter(R_zero_point, d, count))
        both = bias[d, : 4 * hidden] + bias[d, 4 * hidden :]
        cell = _Direction(wide, again, both, peephole[d], functions[d], float(clip), bool(input_forget))
        runs.append(_run(x, cell, h0[d], c0[d], lengths, backwards))
    y, y_h, y_c = zip(*runs, strict=True)
    return np.stack(y, axis=1), np.stack(y_h), np.stack(y_c)


def _hidden_size(x: Array, w: Array, r: Array, count: int, given: int) -> int:
    if x.dtype != FLOAT32 or x.ndim != 3:
        raise ModelError(f"{NAME}: X is {x.dtype} {list(x.shape)}, but it is float32 [steps, batch, inputs]")
    hidden: int = r.shape[1] if r.ndim == 3 else 0
    if w.shape != (count, x.shape[2], 4 * hidden) or r.shape != (count, hidden, 4 * hidden) or given not in (0, hidden):
        raise ModelError(
            f"{NAME}: W of shape {list(w.shape)} and R of shape {list(r.shape)} do not fit {count} direction(s), "
            f"{x.shape[2]} inputs and hidden_size {given or hidden}"
        )
    return hidden


def _optional(label: str, value: Array | None, shape: tuple[int, ...]) -> Array:
    if value is None:
        return np.zeros(shape, FLOAT32)
    value = np.asarray(value)
    if value.shape != shape or value.dtype != FLOAT32:
        raise ModelError(f"{NAME}: {label} is {value.dtype} {list(value.shape)}, but it is float32 {list(shape)}")
    return value


def _lengths(value: Array | None, steps: int, batch: int) -> Array:
    if value is None:
        return np.full(batch, steps)
    lengths = np.asarray(value)
    if lengths.shape != (batch,) or (batch and not 0 <= lengths.min() <= lengths.max() <= steps):
        raise ModelError(f"{NAME}: sequence_lens {lengths.tolist()} are not {batch} lengths of at most {steps}")
    return lengths


def _parameter(value: Array, number: int, count: int) -> Array:
    value = np.asarray(value)
    if value.ndim not in (1, 2) or value.shape[0] != count:
        raise ModelError(f"{NAME}: a scale or zero point has shape {list(value.shape)} for {count} direction(s)")
    return np.asarray(value[number])


def _functions(
    names: Sequence[str], alphas: Sequence[float], betas: Sequence[float], count: int
) -> list[tuple[Activation, Activation, Activation]]:
    names = list(names) or ["Sigmoid", "Tanh", "Tanh"] * count
    if len(names) != 3 * count:
        raise ModelError(f"{NAME}: {len(names)} activations are not three for each of {count} direction(s)")
    alpha, beta = iter(alphas), iter(betas)
    made = [_function(name, alpha, beta) for name in names]
    return [(made[i], made[i + 1], made[i + 2]) for i in range(0, len(made), 3)]


def _function(name: str, alphas: Iterator[float], betas: Iterator[float]) -> Activation:
    key = name.lower()
    if key not in _ACTIVATIONS:
        raise ModelError(f"{NAME}: activation {name!r} is not known")
    formula, alpha, beta = _ACTIVATIONS[key]
    if alpha:
        alpha = next(alphas, alpha)
    if beta or key == "affine":
        beta = next(betas, beta)
    a, b = np.float64(np.float32(alpha)), np.float64(np.float32(beta))
    # In float64, rounded once: float32's exp and tanh are others on every processor
    return lambda x: np.asarray(formula(x.astype(np.float64), a, b), FLOAT32)


def _run(x: Array, cell: _Direction, h: Array, c: Array, lengths: Array, backwards: bool) -> tuple[Array, Array, Array]:
    (steps, batch, inputs), hidden = x.shape, h.shape[-1]
    y = np.zeros((steps, batch, hidden), FLOAT32)
    order = np.arange(steps)[:, None] * np.ones(batch, np.int64)
    if backwards:  # each sequence is reversed within its own length
        order = np.where(order < lengths, lengths - 1 - order, order)
    columns = np.arange(batch)
    h, c = h.copy(), c.copy()
    with np.errstate(all="ignore"):
        gates = dynamic_quantize_mat_mul(x.reshape(steps * batch, inputs), *cell.w).reshape(steps, batch, 4 * hidden)
        for step in range(int(lengths.max(initial=0))):
            at = order[step]
            next_h, next_c = cell.step(gates[at, columns], h, c)
            alive = (step < lengths)[:, None]
            h, c = np.where(alive, next_h, h), np.where(alive, next_c, c)
            y[at, columns] = np.where(alive, next_h, 0)
    return y, h, c
