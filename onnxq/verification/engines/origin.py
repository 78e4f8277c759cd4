"""Find the node that NaN or infinity of an output comes from.

Tests: `tests/verification/test_engines.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxq.evaluator import Evaluator
from onnxq.ir import Node, Value
from onnxq.runtime.session import SessionError
from onnxq.verification.engines.tensors import InnerTensors
from onnxq.verification.error_stats import arrays


def origin_of(evaluator: Evaluator, feeds: Mapping[str, np.ndarray], output: str) -> str:
    """Say which node makes the NaN of an output first, or its infinity where there is no NaN.

    A mask holds infinity for good reasons, so that a node counts only if what it makes reaches the output.

    Args:
        evaluator: The model.
        feeds: The sample.
        output: The name of the output.

    Returns:
        Words to put behind the name of the output; nothing where it does not show without optimisations.

    """
    for wrong in (np.isnan, np.isinf):
        try:
            made = _followed(evaluator, feeds, wrong).get(output)
        except SessionError:
            return ""
        if made is not None:
            node, tensor = made
            return f", first behind {node.operator} node {node.display_name} (tensor '{tensor}')"
    return ""


def _followed(evaluator: Evaluator, feeds: Mapping[str, np.ndarray], wrong: Any) -> dict[str, tuple[Node, str]]:
    """Return for each tensor that holds such numbers the node that they come from, and what that makes."""
    theirs = InnerTensors(evaluator, feeds)
    found: dict[Value, tuple[Node, str]] = {}
    for index, step in enumerate(evaluator.steps):
        before = next((found[read] for read in step.node.reads if read in found), None)
        shown = theirs.of(index)
        for value in step.node.outputs:
            if value is not None and value in shown and holds(shown[value], wrong):
                found[value] = before or (step.node, value.name)
    return {value.name: made for value, made in found.items()}


def holds(value: Any, wrong: Any) -> bool:
    """Whether floats among arrays, sequences and maps of them are wrong somewhere."""
    return any(array.dtype.kind == "f" and bool(np.any(wrong(array))) for array in arrays(value))
