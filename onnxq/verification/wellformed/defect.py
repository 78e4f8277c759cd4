"""One thing that is wrong with a model.

Tests: `tests/verification/test_wellformed.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnxq.ir import Node, Value


@dataclass(frozen=True)
class Defect:
    """One thing that is wrong with a model.

    Attributes:
        node: Label of the node concerned; empty where it is about a tensor or the whole model.
        tensor: Name of the tensor concerned; empty where there is none.
        sentence: What is wrong, with the names in it.
        is_error: Whether the model cannot mean what it says. Otherwise it runs, but somebody should look at it.

    """

    node: str
    tensor: str
    sentence: str
    is_error: bool = True


def at(node: Node, value: Value | None, sentence: str, *, is_error: bool = True) -> Defect:
    """Describe a defect of a node; the sentence follows its name."""
    return Defect(node.label, value.name if value else "", f"{node.operator} '{node.label}' {sentence}", is_error)
