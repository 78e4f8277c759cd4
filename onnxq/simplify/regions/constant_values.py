"""Small values that do not depend on the data: constants, and arithmetic on them and on sizes that are known.

Tests: `tests/simplify/test_share_shape_computations.py`.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from onnxq.evaluator.schedule import bind
from onnxq.ir.graph import Value
from onnxq.ir.shape_inference.dims import product
from onnxq.ir.shape_inference.symbolic import Shapes
from onnxq.ops.kernels.arrays import Array
from onnxq.ops.kernels.registry import find_kernel

MOST_BYTES = 1 << 22  # of a constant that is looked at
LEAST_BYTES = 4  # of an element that is worth following
DEPTH = 8  # operators between a size or constant and what is made of it
ARITHMETIC = frozenset((
    "Add", "Cast", "Concat", "Div", "Gather", "Identity", "Max", "Min", "Mul", "Neg", "Pow", "Reciprocal", "ReduceProd",
    "Reshape", "Sqrt", "Squeeze", "Sub", "Unsqueeze",
))  # fmt: skip


def known_array(
    value: Value | None, shapes: Shapes, depth: int = DEPTH, operators: Collection[str] = ARITHMETIC
) -> Array | None:
    """Return the elements of a value that is the same at every run, such as the length of an axis as a float.

    Args:
        value: Any value of the graph.
        shapes: Shapes of the graph.
        depth: How many operators to follow back.
        operators: Which ones.

    Returns:
        The elements, or None where they are not known, too many, or not worth following so far.

    """
    if value is None:
        return None
    if value.constant is not None:
        return value.constant.numpy() if value.constant.nbytes <= MOST_BYTES else None
    numbers = shapes.numbers(value)
    if numbers is not None:
        return np.array(numbers, np.int64).reshape(() if shapes.of(value) == () else (-1,))
    node = value.producer
    if node is None or node.domain or depth == 0 or node.op_type not in operators or node.outputs[0] is not value:
        return None
    if product(shapes.of(value) or ()).number * LEAST_BYTES > MOST_BYTES:
        return None
    inputs = [known_array(source, shapes, depth - 1, operators) for source in node.inputs]
    kernel = find_kernel(node.op_type, "", shapes.opset)
    call = None if kernel is None else bind(kernel, node)
    if call is None or not inputs or any(array is None for array in inputs):
        return None
    try:
        with np.errstate(all="ignore"):
            return np.asarray(call(*inputs))
    except (ValueError, TypeError, IndexError, ArithmeticError):
        return None
