"""A PRelu with one slope for all channels is a LeakyRelu, which has a kernel in 8 bit."""

from __future__ import annotations

from onnxq.ir.graph import Value
from onnxq.ir.match import Match, NoMatch, const, op, var
from onnxq.ir.patch import Patch
from onnxq.ir.pattern_pass import pattern_pass

X = var("x", lambda value: value.shape is not None, "a tensor of known rank")


@pattern_pass(
    op("PRelu", X, const(name="slope", size=1)),
    order=160,
    because="it has one slope",
    note="rewrote {} PRelu with one slope as LeakyRelu",
)
def prelu_to_leaky_relu(patch: Patch, found: Match) -> Value:
    """Return LeakyRelu with that slope, unless the slope has more axes: then the result has, too."""
    if len(found.tensor("slope").shape) > len(found["x"].shape or ()):
        raise NoMatch("its slope has more axes than what it reads")
    alpha = float(found.array("slope").reshape(()))
    return patch.op("LeakyRelu", found["x"], hint=found.result.name, alpha=alpha)
