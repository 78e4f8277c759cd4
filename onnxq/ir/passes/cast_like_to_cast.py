"""CastLike becomes Cast where the type is known: PyTorch writes the zeros of a bias so, constants from then on.

Tests: `tests/ir/test_fold.py`.
"""

from __future__ import annotations

from onnx import TensorProto

from onnxq.ir.graph import Value
from onnxq.ir.match import Match, op, var
from onnxq.ir.patch import Patch
from onnxq.ir.pattern_pass import pattern_pass

# Rounding and saturation are the same in all versions of both operators
PLAIN = frozenset((TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16))
PLAIN |= frozenset((TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL))
LIKE = var("like", lambda value: value.dtype in PLAIN, "of a known type that all versions cast to alike")


@pattern_pass(
    op("CastLike", var("data"), LIKE),
    order=80,  # before widening, which leaves stated types alone, and before constants are folded
    because="the type that it casts to is known",
    note="rewrote {} CastLike as Cast",
    keeps_name=False,
    operators=("CastLike",),
    types=True,
)
def cast_like_to_cast(patch: Patch, found: Match) -> Value:
    """Cast to the type that the other input has."""
    return patch.op("Cast", found["data"], to=found["like"].dtype)
