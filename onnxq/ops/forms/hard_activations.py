"""HardSigmoid and HardSwish between quantized neighbours, for onnxruntime: a sum of codes that saturates, a product.

onnxruntime has no integer kernel for either, but HardSigmoid, `alpha x + beta` clamped to 0 and 1, is a QLinearAdd. The
codes of x, read with alpha times their scale, are `alpha x`. beta is a code too. Codes from 0 to 1 saturate where
HardSigmoid clamps. HardSwish, which is x times such a HardSigmoid, is a QLinearMul more.
"""

from __future__ import annotations

import math

import numpy as np

from onnxq.ir import Node, Value
from onnxq.ops.forms.family import NodeView, NotQuantizable, QuantizedForm, Rewriter, register_plan, register_rewrite
from onnxq.targets.target import load_target

TOP = 255  # greatest code of uint8, in steps of 1 / TOP the only one that is 1
SLOPE, MIDDLE = 1 / 6, 0.5  # of the HardSigmoid in a HardSwish: https://onnx.ai/onnx/operators/onnx__HardSwish.html


@register_plan("HardSigmoid", when="static-int8")
def plan_hard_sigmoid(site: NodeView) -> QuantizedForm:
    """Accept a HardSigmoid that rises from 0 to 1 and has a value of its own at 0."""
    alpha, beta = _line(site)
    if not (0 < alpha < math.inf and 0 <= beta <= 1):
        raise NotQuantizable("its int8 form needs alpha above 0 and beta from 0 to 1")
    return _form(site, "computes in int8, as a saturating sum")


@register_plan("HardSwish", when="static-int8")
def plan_hard_swish(site: NodeView) -> QuantizedForm:
    """Accept a HardSwish."""
    return _form(site, "computes in int8, as a saturating sum and a product")


def _form(site: NodeView, sentence: str) -> QuantizedForm:
    site.float_input(0)
    if not load_target(site.scheme.target).ramps_as_sums:
        raise NotQuantizable("its int8 form is for onnxruntime only")
    if site.scheme.activations != "uint8":
        raise NotQuantizable(f"its int8 form needs uint8 activations, not {site.scheme.activations}")
    opset = site.scheme.pair_opset(activation=True)
    return QuantizedForm(sentence, activations=(0,), output=True, passive=True, opset=opset)


def _line(site: NodeView) -> tuple[float, float]:
    return float(site.node.attribute("alpha", 0.2)), float(site.node.attribute("beta", 0.5))


@register_rewrite("HardSigmoid", when="static-int8")
def rewrite_hard_sigmoid(site: NodeView, patch: Rewriter) -> None:
    """Write the sum; it is clamped where its codes end, for no range of a HardSigmoid goes beyond 0 and 1."""
    patch.replace(site.output, _sum(site, patch, *_line(site)))


@register_rewrite("HardSwish", when="static-int8")
def rewrite_hard_swish(site: NodeView, patch: Rewriter) -> None:
    """Write the sum, codes of it from 0 to 1, and the product."""
    domain, name = site.scheme.domain_name, site.output.name
    scale = patch.constant(np.array(1 / TOP, np.float32), "ramp_scale")
    zero = patch.constant(np.array(0, np.uint8), "ramp_zero_point")
    total = _sum(site, patch, SLOPE, MIDDLE)
    (codes,) = patch.node("QuantizeLinear", [total, scale, zero], outputs=[f"{name}_ramp_quantized"], domain=domain)
    reads = [codes, scale, zero]
    (ramp,) = patch.node("DequantizeLinear", reads, outputs=[f"{name}_ramp_dequantized"], domain=domain)
    patch.replace(site.output, patch.op("Mul", patch.dequantized(site.value(0)), ramp, hint=name))


def _sum(site: NodeView, patch: Rewriter, alpha: float, beta: float) -> Value:
    """Write `alpha x + beta`, both read from codes."""
    rising = patch.scaled(site.value(0), alpha)
    code, scale = np.array(TOP if beta else 0, np.uint8), np.array(beta / TOP if beta else 1, np.float32)
    shift = patch.linear_weight(code, scale, 0, "ramp_shift")
    return patch.op("Add", rising, shift, hint=f"{site.output.name}_ramp")


def is_rising(pair: Node) -> bool:
    """Whether a DequantizeLinear with another scale than its codes is `alpha x` in such a sum alone."""
    made = pair.outputs[0]
    return made is not None and bool(made.uses) and all(_shifts(use.node, 1 - use.slot) for use in made.uses)


def _shifts(node: Node, slot: int) -> bool:
    """Whether a node is a sum, and adds one constant code at an input."""
    shift = node.inputs[slot] if node.op_type == "Add" and not node.domain else None
    pair = shift.producer if shift is not None else None
    code = pair.inputs[0] if pair is not None and pair.op_type == "DequantizeLinear" else None
    return code is not None and code.constant is not None and code.constant.size == 1
