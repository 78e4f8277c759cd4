"""How many rows the table has that an input of token ids picks from.

Tests: `tests/data/test_text_doubts.py`.
"""

from __future__ import annotations

from onnxq.ir import Model, Value

THROUGH = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten")  # what token ids pass


def table_rows(model: Model, name: str) -> int | None:
    """Return how many rows the smallest constant table has that an input picks from; None where none is found."""
    value = next((one for one in model.graph.inputs if one.name == name), None)
    waiting: list[Value] = [] if value is None else [value]
    found: list[int] = []
    while waiting:
        for use in waiting.pop().uses:
            table = use.node.inputs[0] if use.node.inputs else None
            if use.node.op_type in THROUGH and use.slot == 0:
                waiting += use.node.makes
            elif use.node.op_type == "Gather" and use.slot == 1 and table is not None and table.tensor is not None:
                rows = table.shape[0] if table.shape and not use.node.attribute("axis", 0) else None
                found += [rows] if isinstance(rows, int) else []
    return min(found, default=None)
