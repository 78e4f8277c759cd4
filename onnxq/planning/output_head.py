"""Find the head of a model: the product that gives an output, and whose rounding error reaches it directly.

Tests: `tests/planning/test_output_head.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from onnxq.ir import Node
from onnxq.ir.operator_traits import Trait, operators_with
from onnxq.ops.forms.scheme import WEIGHT_BITS, Scheme, SchemeName

BETWEEN = operators_with(Trait.ELEMENTWISE) | {"Cast", "LogSoftmax", "Softmax"}


def is_head(node: Node) -> bool:
    """Tell whether a MatMul or Gemm gives an output of the model, elementwise operators between them at most.

    The outputs of a branch count as the outputs of its `If`.
    """
    if node.op_type not in ("MatMul", "Gemm") or node.domain:
        return False
    value = node.outputs[0]
    while value is not None:
        if value.is_output:
            branching = value.graph.owner
            if branching is None:
                return True
            if branching.op_type != "If" or branching.domain:
                return False
            value = branching.outputs[value.graph.outputs.index(value)]
            continue
        use = value.only_use
        if use is None or use.node.op_type not in BETWEEN or use.node.domain:
            return False
        value = use.node.outputs[0]
    return False


def with_head_bits(node: Node, scheme: Scheme) -> Scheme:
    """Return the scheme of a node with the bits of a head if it is one."""
    if not scheme.head_bits or scheme.name not in WEIGHT_BITS or not is_head(node):
        return scheme
    return replace(scheme, name=cast("SchemeName", f"weight-int{scheme.head_bits}"))
