"""SiLU, `x Sigmoid(x)`, between quantized neighbours, for onnxruntime: in float, from codes to codes.

On codes it would be a table for the Sigmoid and then a product, each of them rounded: 0.41 nanoseconds for an element.
QuickGelu, which onnxruntime makes of the two in a float model, and a conversion on either side take 0.27. So the Mul
reads codes and gives codes, and the Sigmoid stays as it is; `optimize/quick_gelu.py` writes both as QuickGelu.
"""

from __future__ import annotations

import numpy as np

from onnxq.ir import Node
from onnxq.ir.graph import MICROSOFT
from onnxq.ops.forms.family import NodeView, NotQuantizable, QuantizedForm, Rewriter
from onnxq.ops.kernels.activation import sigmoid
from onnxq.ops.kernels.arrays import Array
from onnxq.ops.kernels.registry import kernel
from onnxq.targets.target import load_target


@kernel("QuickGelu", domain=MICROSOFT)
def quick_gelu(x: Array, *, alpha: float = 1.702) -> Array:
    """X Sigmoid(alpha x)."""
    return np.asarray(x * sigmoid(x * x.dtype.type(alpha)))


def silu_slot(node: Node) -> int | None:
    """Return the input of a Mul of which the other one is the Sigmoid, made for it alone; None for other nodes."""
    if node.op_type != "Mul" or node.domain:
        return None
    for slot in (0, 1):
        read, gate = node.inputs[slot], node.inputs[1 - slot]
        maker = gate.sole_maker(node) if gate is not None else None
        if maker is not None and maker.op_type == "Sigmoid" and maker.inputs[0] is read:
            return slot
    return None


def gated_by(node: Node) -> Node | None:
    """Return the Mul that makes a SiLU of a Sigmoid and of what that reads; None for other nodes."""
    made = node.outputs[0] if node.op_type == "Sigmoid" and not node.domain else None
    use = made.only_use if made is not None else None
    return use.node if use is not None and silu_slot(use.node) is not None else None


def plan_silu(site: NodeView) -> QuantizedForm | None:
    """Accept the Mul of a SiLU, and decline its Sigmoid; None for all other nodes and targets."""
    if not _computes_floats(site):
        return None
    if gated_by(site.node) is not None:
        raise NotQuantizable("the Mul after it computes both")
    slot = silu_slot(site.node)
    if slot is None:
        return None
    site.float_input(slot)
    opset = site.scheme.pair_opset(activation=True)
    sentence = "computes SiLU in float, from codes to codes"
    return QuantizedForm(sentence, activations=(slot,), output=True, passive=True, opset=opset)


def rewrite_silu(site: NodeView, patch: Rewriter) -> bool:
    """Let the Mul of a SiLU read codes, and its Sigmoid as it does; False where it is none."""
    slot = silu_slot(site.node) if _computes_floats(site) else None
    if slot is not None:
        read = site.value(slot)
        pair = patch.dequantized(read)
        for node in [use.node for use in read.uses] if pair is not read else []:
            if node is site.node or gated_by(node) is site.node:
                patch.rewire(node, slot if node is site.node else 0, pair)
    return slot is not None


def _computes_floats(site: NodeView) -> bool:
    """Whether kernel times say that floats are faster: they are of one runtime, and of its fast type of codes."""
    return load_target(site.scheme.target).timed and site.scheme.activations == "uint8"
