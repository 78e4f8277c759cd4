"""Steps of LSTM, GRU and RNN: activation functions by name, directions, samples of different length.

Tests: `tests/ops/test_recurrent.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from onnxq.errors import ModelError
from onnxq.ops.kernels.activation import (
    elu,
    hard_sigmoid,
    leaky_relu,
    relu,
    sigmoid,
    softplus,
    softsign,
    thresholded_relu,
)
from onnxq.ops.kernels.arrays import Array

Activation = Callable[[Array], Array]
Cell = Callable[[Array, list[Array]], list[Array]]
"""One step: from what the inputs add to the gates and the states before it, the states behind it."""

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
class RecurrentLayer:
    """The properties that all directions of one recurrent operator share.

    Attributes:
        hidden: Length of the state.
        directions: 1 or 2.
        lengths: Steps of each sample, or None when all have as many as X.
        reverse: For each direction whether it runs backwards.

    """

    hidden: int
    directions: int
    lengths: Array | None
    reverse: tuple[bool, ...]


def make_layer(w: Array, r: Array, direction: str, lengths: Array | None, steps: int) -> RecurrentLayer:
    """Read a layer off its weights W [D, gates * H, I] and R [D, gates * H, H] and its attributes."""
    directions = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}.get(direction)
    if directions is None or len(directions) != w.shape[0]:
        raise ModelError(
            f"direction '{direction}' does not fit a weight of {w.shape[0]} directions", "Correct `direction`."
        )
    if lengths is not None and np.all(lengths == steps):
        lengths = None
    return RecurrentLayer(r.shape[2], len(directions), lengths, directions)


def clipped(x: Array, limit: float | None) -> Array:
    """Limit X to [-limit, limit]; no limit when None or 0."""
    return x if not limit else np.clip(x, x.dtype.type(-limit), x.dtype.type(limit))


def _order(layer: RecurrentLayer, index: int, steps: int, batch: int) -> Array:
    """Return which step of each sample runs when: int64 [steps, batch]. Backwards begins at each sample's own end."""
    step = np.arange(steps)[:, None]
    if not layer.reverse[index]:
        return np.broadcast_to(step, (steps, batch))
    length = np.full(batch, steps) if layer.lengths is None else np.asarray(layer.lengths)
    return np.where(step < length, length - 1 - step, step)


def run_direction(
    layer: RecurrentLayer,
    index: int,
    projected: Array,
    states: list[Array],
    cell: Cell,
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
