"""Hazards that the plan of one node implies, before anything is written.

Tests: `tests/hazards/test_hazards.py`.
"""

from __future__ import annotations

from onnxq.hazards.finders import is_plain
from onnxq.hazards.table import Fact, Hazard, load_hazards
from onnxq.ir import Node
from onnxq.ops.forms.scheme import Scheme


def planned_hazards(node: Node, scheme: Scheme | None) -> tuple[Hazard, ...]:
    """Return the rows about a float product whose weight is to be stored; none for other nodes and schemes.

    Args:
        node: Of the float model.
        scheme: What it gets in full; None where it stays as it is.

    """
    if scheme is None or not scheme.name.startswith("weight-") or node.domain or node.op_type not in ("MatMul", "Gemm"):
        return ()
    weight = node.input(1)
    if weight is None or weight.constant is None or len(weight.constant.shape) != 2:
        return ()
    bits, block = scheme.weight_bits, scheme.block_size
    facts: dict[str, Fact]
    if scheme.form == "matmulnbits":
        finder, level = "matmulnbits", scheme.accuracy_level
        facts = {
            "bits": bits,
            "block_size": block,
            "level": level,
            "zero_points": "uint8" if scheme.zero_points else "none",
            "g_idx": False,
            "parameters": "stored",
        }
    elif scheme.form == "qdq" and is_plain(node):
        finder = "weight_only_product"
        facts = {"operator": node.op_type, "bits": bits, "block_size": block, "shared": weight.only_use is None}
        facts["bare"] = False
    else:
        return ()
    return tuple(row for row in load_hazards() if row.finder == finder and row.holds(facts))
