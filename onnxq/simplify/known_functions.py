"""Functions of one number that onnxruntime has a fast kernel for, and the costs of their spellings.

Tests: `tests/simplify/test_fuse_activations.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from onnxq.ir.graph import Value
from onnxq.ir.patch import Patch
from onnxq.ops.kernels.activation import gelu, softplus

Pointwise = Callable[[np.ndarray], np.ndarray]
Write = Callable[[Patch, Value], Value]

GELU_OPSET = 20
NEAR = 2.0**-10  # a point to read slopes off
LEAST_WIDTH = 1e-3  # of the bounds of a Clip: what hardly varies is within the tolerance of many functions
SATURATED = 30.0  # exp of twice that is far beyond what float32 adds 2 to, and far below its end

# Nanoseconds an element in onnxruntime 1.31.1, x86-64, one thread, 512 x 512; `tests/bench/bench_simplify.py`
# measures them. Pow by other exponents than 2 and 3 takes 9.6, Softplus 11.6: neither is vectorised.
NANOSECONDS = {
    "Abs": 0.13, "Add": 0.12, "Clip": 0.16, "Div": 0.23, "Elu": 1.80, "Erf": 0.38, "Exp": 0.14, "Gelu": 0.49,
    "FastGelu": 0.45, "Greater": 0.28, "GreaterOrEqual": 0.28, "HardSigmoid": 0.18, "HardSwish": 0.36, "Identity": 0.0,
    "LeakyRelu": 0.26, "Less": 0.28, "LessOrEqual": 0.28, "Log": 1.72, "Max": 0.17, "Min": 0.17, "Mish": 11.9,
    "Mul": 0.12, "Neg": 0.11, "Not": 0.1, "Pow": 0.48, "QuickGelu": 0.16, "Reciprocal": 0.19, "Relu": 0.12,
    "Selu": 1.82, "Sigmoid": 0.28, "Sign": 1.07, "Softplus": 11.55, "Softsign": 0.2, "Sqrt": 0.33, "Sub": 0.12,
    "Tanh": 0.26, "Where": 0.28,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class KnownFunction:
    """A function and how to write it.

    Attributes:
        name: What to call it in a note.
        function: In float64.
        operators: What onnxruntime makes of what is written.
        write: Writes that.
        opset: First operator set that has the operators.
        behind_codes: What it makes of that behind a DequantizeLinear, if something else.

    """

    name: str
    function: Pointwise
    operators: tuple[str, ...]
    write: Write
    opset: int = 6
    behind_codes: tuple[str, ...] = ()
    _kept: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict, repr=False)

    @property
    def nanoseconds(self) -> float:
        """Return its cost in ns for an element."""
        return cost(self.operators)

    @property
    def note(self) -> str:
        """Return the sentence for the report."""
        made = "one operator" if len(self.operators) == 1 else f"{len(self.operators)} operators"
        return f"fused {{}} decomposed {self.name} as {made}"

    def on(self, points: np.ndarray) -> np.ndarray:
        """Return the function on some points, computed once for each array."""
        if id(points) not in self._kept:
            with np.errstate(all="ignore"):
                self._kept[id(points)] = (points, self.function(points))
        return self._kept[id(points)][1]


def cost(operators: Sequence[str]) -> float:
    """Estimate nanoseconds an element; 0 where an operator is not known, so that nothing is gained by leaving it."""
    known = [NANOSECONDS.get(name) for name in operators]
    return 0.0 if None in known else math.fsum(time for time in known if time is not None)


def candidates(points: np.ndarray, values: np.ndarray) -> Iterator[KnownFunction]:
    """Return the functions that could be meant, their parameters read off some values.

    Args:
        points: Float64, with 0, ±1, ±`NEAR` and points far out among them.
        values: What the decomposed function makes of them.

    """
    yield from FIXED
    at = {point: float(values[np.flatnonzero(points == point)[0]]) for point in (-1.0, 0.0, 1.0, NEAR, -NEAR)}
    if 0 < -at[-1.0] < 1:
        alpha = float(np.float32(-at[-1.0]))
        yield KnownFunction("LeakyRelu", partial(_leaky, alpha), ("LeakyRelu",), _operator("LeakyRelu", alpha=alpha))
    with np.errstate(over="ignore"):  # a mask of the least float32 goes beyond it, and is no Clip
        low, high = float(np.float32(values.min())), float(np.float32(values.max()))
    if math.isfinite(low) and math.isfinite(high) and high - low > LEAST_WIDTH * max(abs(low), abs(high)):
        yield KnownFunction(
            "Clip", partial(np.clip, a_min=low, a_max=high), ("Clip",), partial(_write_clip, low, high), 11
        )
    slope, start = max(at[NEAR] - at[0.0], at[0.0] - at[-NEAR]) / NEAR, at[0.0]  # one side may be cut off
    if 0 < slope < 1 and 0 < start < 1:
        alpha, beta = float(np.float32(slope)), float(np.float32(start))
        ramp = partial(_ramp, alpha, beta)
        yield KnownFunction("HardSigmoid", ramp, ("HardSigmoid",), _operator("HardSigmoid", alpha=alpha, beta=beta))
    if 0.5 < at[1.0] < 1:
        factor = float(np.float32(math.log(at[1.0] / (1 - at[1.0]))))
        yield KnownFunction("SiLU", partial(_silu, factor), ("Mul", "Sigmoid", "Mul"), partial(_write_silu, factor))


def _leaky(alpha: float, x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, alpha * x, x)


def _ramp(alpha: float, beta: float, x: np.ndarray) -> np.ndarray:
    return np.asarray(np.clip(alpha * x + beta, 0, 1))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def _silu(factor: float, x: np.ndarray) -> np.ndarray:
    return np.asarray(x * _sigmoid(factor * x))


def _operator(op_type: str, **attributes: Any) -> Write:
    def write(patch: Patch, x: Value) -> Value:
        return patch.op(op_type, x, **attributes)

    return write


def _number(patch: Patch, number: float, hint: str) -> Value:
    return patch.constant(np.asarray(number, np.float32), hint)


def _write_clip(low: float, high: float, patch: Patch, x: Value) -> Value:
    return patch.op("Clip", x, _number(patch, low, "low"), _number(patch, high, "high"))


def _write_hard_swish(patch: Patch, x: Value) -> Value:
    return patch.op("Mul", x, patch.op("HardSigmoid", x, alpha=1 / 6, beta=0.5))


def _write_silu(factor: float, patch: Patch, x: Value) -> Value:
    scaled = x if factor == 1 else patch.op("Mul", x, _number(patch, factor, "factor"))
    return patch.op("Mul", x, patch.op("Sigmoid", scaled))


def _write_mish(patch: Patch, x: Value) -> Value:
    """Write x tanh(log(1 + e)) with e = exp(x) as x n / (n + 2), n = e (e + 2)."""
    two = _number(patch, 2, "two")
    power = patch.op("Exp", patch.op("Min", x, _number(patch, SATURATED, "saturated")))
    numerator = patch.op("Mul", power, patch.op("Add", power, two))
    return patch.op("Mul", x, patch.op("Div", numerator, patch.op("Add", numerator, two)))


def _write_softplus(patch: Patch, x: Value) -> Value:
    """Write max(x, 0) + log(1 + u) with u = exp(-|x|); what 1 + u rounds off is put back: log w - ((w - 1) - u) / w."""
    one = _number(patch, 1, "one")
    power = patch.op("Exp", patch.op("Neg", patch.op("Abs", x)))
    more = patch.op("Add", power, one)
    lost = patch.op("Div", patch.op("Sub", patch.op("Sub", more, one), power), more)
    positive = patch.op("Max", x, _number(patch, 0, "zero"))
    return patch.op("Add", positive, patch.op("Sub", patch.op("Log", more), lost))


def _gelu(approximate: str) -> KnownFunction:
    form = "Gelu by tanh" if approximate == "tanh" else "Gelu"
    write = _operator("Gelu", approximate=approximate)
    return KnownFunction(form, partial(gelu, approximate=approximate), ("Gelu",), write, GELU_OPSET)


FIXED = (
    _gelu("tanh"),
    _gelu("none"),
    KnownFunction("Relu", partial(np.maximum, 0), ("Relu",), _operator("Relu")),
    KnownFunction("Sigmoid", _sigmoid, ("Sigmoid",), _operator("Sigmoid")),
    KnownFunction("Tanh", np.tanh, ("Tanh",), _operator("Tanh")),
    KnownFunction("Softsign", lambda x: x / (1 + np.abs(x)), ("Softsign",), _operator("Softsign")),
    KnownFunction("HardSwish", lambda x: x * _ramp(1 / 6, 0.5, x), ("HardSigmoid", "Mul"), _write_hard_swish),
    KnownFunction(
        "SiLU", partial(_silu, 1.0), ("QuickGelu",), partial(_write_silu, 1.0), behind_codes=("Sigmoid", "Mul")
    ),
    KnownFunction(
        "Mish",
        lambda x: x * np.tanh(softplus(x)),
        ("Min", "Exp", "Add", "Mul", "Add", "Div", "Mul"),
        _write_mish,
        8,
    ),
    KnownFunction(
        "Softplus",
        softplus,
        ("Abs", "Neg", "Exp", "Add", "Sub", "Sub", "Div", "Max", "Log", "Sub", "Add"),
        _write_softplus,
        8,
    ),
)
