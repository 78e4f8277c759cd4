"""Merge the two constant scales of an integer product; the place of one is taken by a 1 that all products share.

onnxruntime looks for a Mul of two scales, and would fold it if both were constants. But one of them comes from a
DequantizeLinear, which it copies for each product that reads it (1.31, `ensure_unique_dq_for_node_unit.cc`). One
DequantizeLinear of 1 is enough for a whole graph, behind a Max, which is not copied: 1.4 % of the time of a MiniLM. The
products are the same to the bit, since the scales were multiplied first before, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from onnxq.ir import Graph, Model, Node, Patch, Tensor, Value
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.schemas import MAX_BROADCASTS

FEWEST = 2  # products of a graph from which on there is anything to share


class Scales(NamedTuple):
    """A Mul of two constant scales, what to name their product, and the product."""

    node: Node
    name: str
    total: np.ndarray


@register_pass(order=20, opset=MAX_BROADCASTS, timed=True)
def join_scales(model: Model) -> Iterator[Patch]:
    """Multiply both scales of integer products beforehand.

    Args:
        model: A quantized model. Its results stay the same.

    """
    for graph in model.graph.graphs():
        products = _products(graph)
        if len(products) >= FEWEST:
            yield from _patches(graph, products)


def _products(graph: Graph) -> list[Scales]:
    """List the Muls of two constant scales that integer products are multiplied by."""
    found = []
    for node in graph.nodes:
        if node.op_type != "Mul" or node.domain or not _scales_a_product(node):
            continue
        numbers = [number for value in node.inputs if (number := _number(value)) is not None]
        kept = [value for value in node.reads if value.constant is not None]
        constant = kept[0].constant if kept else None
        if len(numbers) != 1 or len(kept) != 1 or constant is None or constant.dtype != TensorProto.FLOAT:
            continue
        total = np.asarray(numbers[0] * constant.numpy(), np.float32)
        if (np.abs(total) >= np.finfo(np.float32).tiny).all():  # what is smaller, a processor may take for zero
            found.append(Scales(node, f"{kept[0].name}_total", total))
    return found


def _number(value: Value | None) -> np.float32 | None:
    """Return the constant that comes out of a DequantizeLinear of 1."""
    maker = value.producer if value is not None else None
    if maker is None or maker.op_type != "DequantizeLinear" or maker.domain or len(maker.inputs) != 2:
        return None
    code, scale = (_scalar(source) for source in maker.inputs)
    return (
        np.float32(scale.numpy().reshape(())) if code is not None and scale is not None and code.numpy() == 1 else None
    )


def _scalar(value: Value | None) -> Tensor | None:
    tensor = value.constant if value is not None else None
    return tensor if tensor is not None and tensor.shape == () else None


def _scales_a_product(node: Node) -> bool:
    """Whether the Mul behind a MatMulInteger and its Cast is the only reader of a Mul of scales."""
    result = node.outputs[0]
    use = result.only_use if result is not None else None
    if use is None:
        return False
    after = use.node
    cast = next((v.producer for v in after.reads if v is not result), None)
    total = cast.inputs[0] if cast is not None and cast.op_type == "Cast" else None
    return (
        after.op_type == "Mul"
        and not after.domain
        and total is not None
        and total.producer is not None
        and total.producer.op_type == "MatMulInteger"
    )


def _patches(graph: Graph, products: list[Scales]) -> list[Patch]:
    patches: list[Patch] = []
    unit: Value | None = None
    for node, name, total in products:
        patch = Patch(graph, node, f"multiply both scales of {node.label}")
        if unit is None:
            one = patch.constant(np.array(1, np.float32), "unit_scale")
            code = patch.constant(np.array(1, np.int32), "unit_code")
            unit = patch.op("Max", patch.op("DequantizeLinear", code, one, hint="unit_read"), hint="unit")
        patch.rewire(node, 0, unit)
        patch.rewire(node, 1, patch.constant(total, name))
        patches.append(patch)
    return patches
