"""Find layers of a quantized model that could saturate on an x86 without VNNI."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxq.ir import Model, Node, Value
from onnxq.ops.forms.saturating_pairs import inner_rows, saturating_pairs

# Operators on codes: where the weights are. Sources: the specifications of ONNX and onnxruntime's ContribOperators.md.
# ConvInteger takes its filters for the left matrix, and of int8 times anything all kernels are exact
WEIGHT_SLOTS = {
    "MatMulInteger": (1,),
    "QLinearConv": (3,),
    "QLinearMatMul": (3,),
    "QGemm": (3,),
    "MatMulIntegerToFloat": (1,),
    "DynamicQuantizeMatMul": (1,),
    "DynamicQuantizeLSTM": (1, 2),
    "QAttention": (1,),
}
FUSED = ("MatMul", "Gemm", "Conv")


@dataclass(frozen=True)
class LayerSaturation:
    """How much of a layer's weights could saturate.

    Attributes:
        node: Its name, or its first output where it has none.
        op_type: Its operator.
        pairs: How many pairs of neighbouring weights could exceed 16 bits, at the largest activations.
        total: How many pairs there are.

    """

    node: str
    op_type: str
    pairs: int
    total: int


def read_saturation(model: Model) -> tuple[LayerSaturation, ...]:
    """List the layers with int8 weights of which a pair could saturate, in graph order.

    Args:
        model: A quantized model: with operators on codes, or Q/DQ pairs around float ones.

    """
    found = []
    for node in model.graph.walk():
        weights = _weights(node)
        pairs = sum(map(saturating_pairs, weights))
        if pairs:
            total = sum(rows.shape[0] * (rows.shape[1] // 2) * rows.shape[2] for rows in weights)
            found.append(LayerSaturation(node.display_name, node.op_type, pairs, total))
    return tuple(found)


def _weights(node: Node) -> list[np.ndarray]:
    """Return the int8 weights of integer products, as `inner_rows`; none of other nodes, and no others."""
    slots = WEIGHT_SLOTS.get(node.op_type)
    weights = [_behind_pair(node)] if slots is None else [node.input(slot) for slot in slots]
    transposed = node.op_type in ("Gemm", "QGemm") and bool(node.attribute("transB", 0))
    found = []
    for weight in weights:
        codes = None if weight is None or weight.constant is None else weight.constant.numpy()
        if codes is not None and codes.dtype == np.int8:
            rows = inner_rows(node.op_type, codes, transposed=transposed, group=node.attribute("group", 1))
            found += [] if rows is None else [rows]
    return found


def _behind_pair(node: Node) -> Value | None:
    """Return the codes of a weight where both inputs of a float operator are dequantized."""
    if node.domain or node.op_type not in FUSED or len(node.inputs) < 2:
        return None
    makers = [None if value is None else value.producer for value in node.inputs[:2]]
    if any(maker is None or maker.op_type != "DequantizeLinear" for maker in makers):
        return None
    assert makers[1] is not None
    return makers[1].inputs[0]
