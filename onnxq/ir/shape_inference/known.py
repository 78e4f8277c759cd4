"""Questions that rules of operators may ask about shapes; `symbolic.Shapes` answers it.

Tests: `tests/ir/test_symbolic.py`.
"""

from __future__ import annotations

from typing import Protocol

from onnxq.ir.graph import Node, Value
from onnxq.ir.shape_inference.dims import Shape


class KnownShapes(Protocol):
    """Shapes and small integer contents that are known so far."""

    opset: int

    def of(self, value: Value | None) -> Shape | None:
        """Return a shape; None where the rank is unknown."""

    def content(self, value: Value | None) -> Shape | None:
        """Return the elements of an integer vector or scalar, as far as they are followed."""

    def numbers(self, value: Value | None) -> list[int] | None:
        """Return the elements of an integer constant."""

    def axes(self, node: Node, slot: int = 1) -> list[int] | None:
        """Return axes stated as an input or as an attribute; None where neither is known."""
