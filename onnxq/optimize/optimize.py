"""A quantized model in the form that a runtime computes fastest, every node by itself the same to the bit.

It comes last: what is filled up or folded has no counterpart in the float model any more, which trials compare it with.
"""

from __future__ import annotations

from onnxq.ir import Model
from onnxq.ir.pass_manager import OPTIMIZE, find_passes, run_passes
from onnxq.simplify import convert
from onnxq.targets.target import load_target


def optimize_for_target(model: Model, target: str) -> Model:
    """Change a quantized model for a target, most of all where its kernels are known.

    Args:
        model: A quantized model; it is changed.
        target: Name of the runtime.

    Returns:
        The same model, or another where the operator set had to be raised.

    """
    return run_passes(model, find_passes(OPTIMIZE), target=load_target(target), convert=convert).model
