"""Clip in front of QuantizeLinear where the codes end before it does: it changes nothing.

onnxruntime drops such a Clip as well (1.31, `clip_quant_fusion.cc`), but only if no code stands for anything beyond its
bounds. A zero point is rounded, so in a range of exactly these bounds one end lies up to half a step beyond.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from onnxq.ir import Model, Node, Patch, Value
from onnxq.ir.pass_manager import register_pass
from onnxq.ops.forms.family import NodeView
from onnxq.ops.forms.integer_domain import clamp_bounds
from onnxq.ops.forms.scheme import Scheme
from onnxq.ops.quantized.linear import quantize_linear
from onnxq.optimize.qdq import scale_and_zero

# onnxruntime computes a Clip together with these
FUSED = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Add")
FURTHEST = np.array([-np.inf, np.inf], np.float32)


@register_pass(order=10)
def drop_clips(model: Model) -> Iterator[Patch]:
    """Let every QuantizeLinear read what a Clip reads, where its codes are the same.

    Args:
        model: A quantized model. Its outputs stay the same to the bit.

    """
    for node in model.graph.walk():
        source = node.inputs[0] if node.op_type == "Clip" and not node.domain else None
        result = node.outputs[0] if node.outputs else None
        if source is None or result is None or not _without_effect(node, source, result):
            continue
        patch = Patch(node.graph, node, f"drop {node.label}")
        for use in result.uses:
            patch.rewire(use.node, use.slot, source)
        yield patch


def _without_effect(node: Node, source: Value, result: Value) -> bool:
    maker = source.producer
    bounds = clamp_bounds(NodeView(node, Scheme(), 1))
    if bounds is None or source.dtype != TensorProto.FLOAT or result.is_output or not result.uses:
        return False
    if maker is not None and maker.op_type in FUSED and not maker.domain and len(source.uses) == 1:
        return False
    return all(use.slot == 0 and _ends_within(use.node, np.array(bounds, np.float32)) for use in result.uses)


def _ends_within(reader: Node, ends: np.ndarray) -> bool:
    """Whether a reader quantizes, and gives what lies beyond two numbers the codes that these get."""
    found = scale_and_zero(reader) if reader.op_type == "QuantizeLinear" else None
    if found is None:
        return False
    codes = [quantize_linear(each, *found) for each in (ends, FURTHEST)]
    return bool((codes[0] == codes[1]).all())
