"""A quantized model in the form that a runtime computes fastest, every node by itself the same to the bit.

It comes last: what is filled up or folded has no counterpart in the float model any more, which trials compare it with.
"""

from __future__ import annotations

from dataclasses import replace

from onnxq.ir import Model
from onnxq.ir.pass_manager import OPTIMIZE, find_passes, run_passes
from onnxq.simplify import convert
from onnxq.targets.target import load_target

ATTENTION = ("group_query_attention", "cached_attention")


def softmax_in_attention(model: Model, target: str) -> set[str]:
    """Return the outputs of Softmax that attention is going to hold, once the weights of products are in blocks.

    Args:
        model: A float model.
        target: Name of the runtime.

    """
    passes = [replace(each, operators=("Softmax",)) for each in find_passes(OPTIMIZE) if each.name in ATTENTION]
    made = run_passes(model.copy(), passes, target=load_target(target), convert=convert).model
    return _softmax(model) - _softmax(made)


def _softmax(model: Model) -> set[str]:
    return {node.outputs[0].name for node in model.graph.nodes if node.op_type == "Softmax" and node.outputs[0]}


def optimize_for_target(model: Model, target: str) -> Model:
    """Change a quantized model for a target, most of all where its kernels are known.

    Args:
        model: A quantized model; it is changed.
        target: Name of the runtime.

    Returns:
        The same model, or another where the operator set had to be raised.

    """
    return run_passes(model, find_passes(OPTIMIZE), target=load_target(target), convert=convert).model
