"""Queries, keys and values of one attention as one product with weights in blocks.

Products of one token take a few microseconds each, and every one rounds the same activations to 8 bits again. Columns
are computed apart, so that no bit changes. GroupQueryAttention reads all three from one value as well. For Attention of
ONNX, which has rotations in front, a Split takes them apart again.

Tests: `tests/optimize/test_join_projections.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxq.ir.graph import MICROSOFT, Node, Value
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import Patch

SHARED = ("K", "bits", "block_size", "accuracy_level")
CODES, SCALES, ZERO_POINTS = 1, 2, 3


@register_pass(order=190, timed=True, domain=MICROSOFT, operators=("MatMulNBits",))
def join_projections(model: Model) -> Iterator[Patch]:
    """Describe the joined product of each attention; weights of large models stay where they are mapped."""
    if not model.residency.copies:
        return
    for node in model.graph.nodes:
        if (node.domain, node.op_type) == (MICROSOFT, "GroupQueryAttention"):
            alone = all(value is not None and value.only_use is not None for value in node.inputs[:3])
            products = _products(node, list(node.inputs[:3])) if alone else []
            if products:
                yield _packed(node, products)
        elif (node.domain, node.op_type) == ("", "Attention"):
            products = _products(node, [_unrotated(value) for value in node.inputs[:3]])
            if products:
                yield _split(node, products)


def _unrotated(value: Value | None) -> Value | None:
    """Return what a RotaryEmbedding rotates, or else the value itself."""
    node = None if value is None else value.producer
    return node.inputs[0] if node is not None and node.op_type == "RotaryEmbedding" and not node.domain else value


def _products(attention: Node, values: list[Value | None]) -> list[Node]:
    """Return the products that make queries, keys and values of one value; none where one is something else."""
    found = []
    for value in values:
        node = None if value is None or value.is_output else value.producer
        if (
            node is None
            or node.op_type != "MatMulNBits"
            or node.domain != MICROSOFT
            or node.graph is not attention.graph
        ):
            return []
        if any(read is not None for read in node.inputs[ZERO_POINTS + 1 :]):  # a bias, or another order of rows
            return []
        if node.constant(CODES) is None:
            return []
        found.append(node)
    first = found[0]
    alike = all(
        node.inputs[0] is first.inputs[0]
        and [node.attribute(name) for name in SHARED] == [first.attribute(name) for name in SHARED]
        and (node.constant(ZERO_POINTS) is None) == (first.constant(ZERO_POINTS) is None)
        and _shape(node.inputs[SCALES]) is not None
        for node in found
    )
    ranks = {len(shape) for node in found if (shape := _shape(node.inputs[SCALES])) is not None}
    return found if alike and len(set(found)) == 3 and len(ranks) == 1 else []


def _shape(value: Value | None) -> tuple[int, ...] | None:
    """Return the shape of scales, which may be stored in float16 and cast."""
    node = None if value is None else value.producer
    if node is not None and node.op_type == "Cast" and not node.domain:
        value = node.inputs[0]
    return None if value is None or value.constant is None else tuple(value.constant.shape)


def _packed(attention: Node, products: list[Node]) -> Patch:
    """Let an attention read one product."""
    patch = Patch(attention.graph, products[0], "queries, keys and values are one product")
    patch.rewire(attention, 0, _joined(patch, products))
    for slot in (1, 2):
        patch.rewire(attention, slot, None)
    for node in products:
        patch.remove(node)
    return patch


def _split(attention: Node, products: list[Node]) -> Patch:
    """Take one product apart in front of an attention."""
    patch = Patch(attention.graph, products[0], "queries, keys and values are one product")
    joined = _joined(patch, products)
    sizes = patch.constant(np.array([node.attribute("N") for node in products], np.int64), "projected_sizes")
    outputs = [value for node in products if (value := node.outputs[0]) is not None]
    parts = patch.node("Split", [joined, sizes], outputs=[value.name for value in outputs], axis=-1)
    for value, part in zip(outputs, parts, strict=True):
        patch.replace(value, part)
    return patch


def _joined(patch: Patch, products: list[Node]) -> Value:
    """Put the rows of three weights below each other; scales may be cast from float16."""
    first = products[0]
    made: list[Value | None] = [first.inputs[0]]
    for slot in range(CODES, len(first.inputs)):
        parts = [value for node in products if (value := node.input(slot)) is not None]
        hint = f"{parts[0].name}_joined" if parts else ""
        if not parts:
            made.append(None)
        elif all(value.constant is not None for value in parts):
            arrays = [value.constant.numpy() for value in parts if value.constant is not None]
            made.append(patch.constant(np.concatenate(arrays), hint))
        else:  # onnxruntime folds it when it loads the model
            made.append(patch.op("Concat", *parts, axis=0, hint=hint))
    output = first.outputs[0]
    assert output is not None
    attributes = first.attributes()
    attributes["N"] = sum(int(node.attribute("N")) for node in products)
    return patch.node(
        "MatMulNBits", made, outputs=[f"{output.name}_joined"], name=first.name, domain=MICROSOFT, **attributes
    )[0]
