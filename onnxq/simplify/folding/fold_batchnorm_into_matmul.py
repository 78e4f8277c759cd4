"""BatchNormalization of the rows of a product becomes part of its weight and of a bias.

PyTorch's normalises a matrix, so networks flatten what a Linear makes of a sequence and put it back afterwards, as
LeViT does 48 times. Behind a Gemm, it is folded before anything is simplified (`ir/passes/fold_batchnorm.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from onnxq.ir.graph import Node
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.passes.fold_batchnorm import scale_and_shift
from onnxq.ir.patch import Patch
from onnxq.ir.tensor import ArrayTensor


@register_pass(order=190, note="made {} BatchNormalization of rows part of the product before")
def row_norms(model: Model) -> Iterator[Patch]:
    """Describe one change for each BatchNormalization of the rows of a product with a constant matrix."""
    for graph in model.graph.graphs():
        for node in graph.nodes:
            product = _product(node) if node.op_type == "BatchNormalization" and not node.domain else None
            patch = _folded(node, product) if product is not None else None
            if patch is not None:
                yield patch


def _product(norm: Node) -> Node | None:
    """Give the MatMul whose rows are normalised; None where somebody else reads them or columns do not stay columns."""
    flat = norm.inputs[0]
    shaped = flat.sole_maker(norm) if flat is not None else None
    rows = shaped.inputs[0] if shaped is not None and shaped.op_type in ("Flatten", "Reshape") else None
    product = rows.sole_maker(norm) if rows is not None else None
    if flat is None or rows is None or product is None or product.op_type != "MatMul":
        return None
    before, after = rows.shape or (), flat.shape or ()
    return product if len(after) == 2 and len(before) > 1 and before[-1] == after[-1] == _columns(product) else None


def _columns(product: Node) -> int | None:
    """Give the number of columns of a weight that is a constant of this product alone."""
    weight = product.inputs[1]
    tensor = weight.constant if weight is not None and len(weight.uses) == 1 else None
    known = tensor is not None and tensor.dtype == TensorProto.FLOAT and len(tensor.shape) == 2
    return tensor.shape[1] if tensor is not None and known else None


def _folded(norm: Node, product: Node) -> Patch | None:
    found = scale_and_shift(norm) if len(norm.inputs) == 5 and not any(norm.outputs[1:]) else None
    weight, rows, flat, output = product.inputs[1], product.outputs[0], norm.inputs[0], norm.outputs[0]
    if found is None or weight is None or weight.constant is None or rows is None or flat is None or output is None:
        return None
    scale, shift = found
    scaled = (weight.constant.numpy().astype(np.float64) * scale).astype(np.float32)
    if not np.isfinite(scaled).all() or not np.isfinite(shift).all():
        return None
    patch = Patch(norm.graph, norm, "it scales the columns of the product, and adds to them")
    matrix = patch.constant(ArrayTensor(scaled), f"{weight.name}_scaled")
    made = patch.op("MatMul", product.inputs[0], matrix, hint=f"{rows.name}_scaled")
    bias = patch.constant(ArrayTensor(shift.astype(np.float32)), f"{weight.name}_bias")
    shaped = rows.consumers()[0]
    patch.rewire(shaped, 0, patch.op("Add", made, bias, hint=f"{rows.name}_normalised"))
    patch.replace(output, flat)
    patch.rename(flat, f"{flat.name}_normalised")  # it is another tensor than before
    return patch
