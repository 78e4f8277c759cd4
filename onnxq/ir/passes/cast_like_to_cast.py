"""CastLike becomes Cast where the type is known: PyTorch writes the zeros of a bias so, constants from then on.

Tests: `tests/ir/test_passes.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from onnxq.ir.graph import Node
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import Patch
from onnxq.ir.shape_inference.types import infer_types

# Of these, rounding and saturation are the same in all versions of both operators
PLAIN = frozenset((TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16))
PLAIN |= frozenset((TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL))


@register_pass(order=80, note="stated the type of {} CastLike")
def state_types(model: Model) -> Iterator[Patch]:
    """Describe the Cast nodes; before widening, which leaves stated types alone, and before constants are folded."""
    found = [node for node in model.graph.walk() if _is_cast_like(node)]
    if found:
        infer_types(model)
    for node in found:
        data, like, output = node.inputs[0], node.inputs[1], node.outputs[0]
        if data is None or like is None or output is None or like.dtype not in PLAIN:
            continue
        patch = Patch(node.graph, node, "the type that it casts to is known")
        patch.replace(output, patch.op("Cast", data, to=like.dtype))
        yield patch


def _is_cast_like(node: Node) -> bool:
    return node.op_type == "CastLike" and not node.domain and len(node.inputs) == 2 and len(node.outputs) == 1
