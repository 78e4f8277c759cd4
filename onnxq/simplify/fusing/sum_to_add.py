"""A Sum of two is an Add, which has a kernel in 8 bit. Caffe2 and Keras write residual additions as Sum."""

from __future__ import annotations

from onnxq.ir.graph import Value
from onnxq.ir.match import Match, NoMatch, op, var
from onnxq.ir.patch import Patch
from onnxq.ir.pattern_pass import pattern_pass
from onnxq.simplify.fusing.block_skip_layer_norm import only_normalized


@pattern_pass(
    op("Sum", var("x"), var("y")),
    order=15,
    because="it adds two values",
    note="rewrote {} Sum of two values as Add",
)
def sum_to_add(patch: Patch, found: Match) -> Value:
    """Return Add of both, unless `block_skip_layer_norm` would write it as Sum again."""
    if only_normalized(found.result):
        raise NoMatch("one LayerNormalization alone reads it")
    return patch.op("Add", found["x"], found["y"], hint=found.result.name)
