"""BatchNormalization of the rows of a product becomes part of its weight and of a bias.

PyTorch's normalises a matrix, so networks flatten what a Linear makes of a sequence and put it back afterwards, as
LeViT does 48 times. A BatchNormalization behind a Gemm is folded earlier, by `ir/passes/fold_batchnorm.py`.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from onnxq.ir.graph import Value
from onnxq.ir.match import Match, NoMatch, const, op, var
from onnxq.ir.passes.fold_batchnorm import scale_and_shift
from onnxq.ir.patch import Patch
from onnxq.ir.pattern_pass import pattern_pass
from onnxq.ir.tensor import ArrayTensor, Tensor


def _is_matrix(tensor: Tensor) -> bool:
    return tensor.dtype == TensorProto.FLOAT and len(tensor.shape) == 2


WEIGHT = const(name="weight", fits=_is_matrix, says="a matrix of float32", once=True)
ROWS = op("MatMul", var("x"), WEIGHT, once=True, name="rows")
FLAT = op(("Flatten", "Reshape"), ROWS, ..., once=True, name="flat")


@pattern_pass(
    op("BatchNormalization", FLAT, var(), var(), var(), var()),
    order=190,
    because="it scales the columns of the product, and adds to them",
    note="folded {} BatchNormalization of rows into the product before",
    keeps_name=False,
)
def fold_batchnorm_into_matmul(patch: Patch, found: Match) -> Value:
    """Scale the columns of the weight, and add the rest as a bias."""
    weight, rows, flat = found["weight"], found["rows"], found["flat"]
    before, after = rows.shape or (), flat.shape or ()
    if len(after) != 2 or len(before) < 2 or not before[-1] == after[-1] == found.tensor("weight").shape[1]:
        raise NoMatch("columns of the product do not stay columns of a matrix")
    factors = scale_and_shift(found.root)
    if factors is None or any(found.root.outputs[1:]):
        raise NoMatch("it is not of the form for inference, with constants")
    scaled, shift = (found.array("weight").astype(np.float64) * factors[0]).astype(np.float32), factors[1]
    if not np.isfinite(scaled).all() or not np.isfinite(shift).all():
        raise NoMatch("what comes out is not finite in float32")
    matrix = patch.constant(ArrayTensor(scaled), f"{weight.name}_scaled")
    made = patch.op("MatMul", found["x"], matrix, hint=f"{rows.name}_scaled")
    bias = patch.constant(ArrayTensor(shift.astype(np.float32)), f"{weight.name}_bias")
    patch.rewire(found.node("flat"), 0, patch.op("Add", made, bias, hint=f"{rows.name}_normalised"))
    patch.rename(flat, f"{flat.name}_normalised")  # it is another tensor than before
    return flat
