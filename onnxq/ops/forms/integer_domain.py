"""Operators without weights that stay in 8 bit between quantized neighbours, and those that absorb into one.

The list is what onnxruntime's CPU provider has integer kernels for when it finds Q/DQ pairs around the operator:
`onnxruntime/core/optimizer/qdq_transformer/selectors_actions/qdq_selector_action_transformer.cc`.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto

from onnxq.ops.forms.family import NodeView, NotQuantizable, QuantizedForm, Rewriter, register_plan, register_rewrite
from onnxq.ops.forms.silu import plan_silu, rewrite_silu
from onnxq.targets.target import load_target

# They only move values: onnxruntime drops the pairs around them when both sides have one scale.
MOVERS = ("DepthToSpace", "Flatten", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze")
TAKING = ("Slice", "Split")  # those of them whose outputs are a part of the input: it may go further than they do
# QLinearAdd, QLinearMul, QLinearConcat, QLinearGlobalAveragePool, QLinearLeakyRelu, QLinearSigmoid; an AveragePool is
# apart, in `average_pool.py`
ONE_INPUT = ("GlobalAveragePool", "LeakyRelu", "Sigmoid")
TWO_INPUTS = ("Add", "Mul")
# Clamps that the saturation of QuantizeLinear does as well, or a Clip of codes where others read what they clamp.
CLAMPS = ("Relu", "Clip")
CLIP_OF_CODES = 12  # the operator set from which on Clip takes 8 bit
SHUFFLE = [0, 2, 1, 3, 4]  # exchanges groups of channels and what is in them, in front of places that stay


@register_plan("MaxPool", *MOVERS, when="static-int8")
def plan_mover(site: NodeView) -> QuantizedForm:
    """Accept an operator whose outputs are inputs in another place."""
    site.float_input(0)
    if site.node.op_type == "MaxPool" and site.opset < 12:
        raise NotQuantizable("MaxPool works on 8 bit from opset 12 on")
    if len(site.node.outputs) > 1 and site.node.op_type != "Split":
        raise NotQuantizable("it has several outputs")
    if site.node.op_type == "Transpose" and list(site.node.attribute("perm") or ()) == SHUFFLE:
        raise NotQuantizable("it shuffles channels, and onnxruntime moves int8 channels one by one")
    unread = [value for value in site.node.outputs if value is None or not (value.uses or value.is_output)]
    if site.node.op_type == "Split" and unread:
        raise NotQuantizable("one of its outputs is not read, and onnxruntime then splits floats")
    return _keeping_scale(site, "moves 8-bit values")


@register_plan(*CLAMPS, when="static-int8")
def plan_clamp(site: NodeView) -> QuantizedForm:
    """Accept a Relu or Clip of what others read as well, or of what was moved: its codes are clamped by themselves."""
    source = site.float_input(0)
    maker = source.producer
    moved = maker is not None and not maker.domain and maker.op_type in ("MaxPool", *MOVERS)
    if not (moved or source.is_output or len(source.uses) > 1):
        raise NotQuantizable("neighbours are float")
    if clamp_bounds(site) is None:
        raise NotQuantizable("its bounds are computed, or zero is not between them")
    if not load_target(site.scheme.target).timed or site.scheme.activations not in ("uint8", "int8"):
        raise NotQuantizable("its int8 form is for onnxruntime only")
    if site.opset < CLIP_OF_CODES:
        raise NotQuantizable(f"Clip works on 8 bit from opset {CLIP_OF_CODES} on")
    return _keeping_scale(site, "clamps 8-bit values")


@register_plan("Resize", when="static-int8")
def plan_resize(site: NodeView) -> QuantizedForm:
    """Accept nearest-neighbour resizing, which only repeats values."""
    site.float_input(0)
    if site.node.attribute("mode", "nearest") != "nearest":
        raise NotQuantizable("interpolation rounds in 8 bit and saves no time")
    if site.node.attribute("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise NotQuantizable("it extrapolates to a value outside of the input's range")
    return _keeping_scale(site, "repeats 8-bit values")


@register_plan(*ONE_INPUT, *TWO_INPUTS, when="static-int8")
def plan_elementwise(site: NodeView) -> QuantizedForm:
    """Accept an operator with an integer kernel of its own, and a SiLU."""
    silu = plan_silu(site)
    if silu is not None:
        return silu
    slots = tuple(range(2 if site.node.op_type in TWO_INPUTS else 1))
    _activations(site, slots)
    return QuantizedForm(
        "computes in 8 bit", activations=slots, output=True, passive=True, opset=site.scheme.pair_opset(activation=True)
    )


@register_plan("Concat", when="static-int8")
def plan_concat(site: NodeView) -> QuantizedForm:
    """Accept a concatenation of activations."""
    slots = tuple(range(len(site.node.inputs)))
    _activations(site, slots)
    return QuantizedForm(
        "joins 8-bit values",
        activations=slots,
        output=True,
        passive=True,
        opset=site.scheme.pair_opset(activation=True),
    )


def _keeping_scale(site: NodeView, reason: str) -> QuantizedForm:
    """Describe an operator whose output has the scale of its first input."""
    opset = site.scheme.pair_opset(activation=True)
    return QuantizedForm(reason, activations=(0,), output=True, passive=True, same_scale=True, opset=opset)


def _activations(site: NodeView, slots: Sequence[int]) -> None:
    """Refuse where an input is anything else than a float32 activation."""
    constant = [slot for slot in slots if len(slots) > 1 and site.value(slot).tensor is not None]
    for slot in slots:
        if slot not in constant:
            site.float_input(slot)
    if constant:
        raise NotQuantizable("one of its inputs is a constant")


@register_rewrite("MaxPool", "Resize", "Concat", *MOVERS, *CLAMPS, *ONE_INPUT, *TWO_INPUTS, when="static-int8")
def rewrite_passive(site: NodeView, patch: Rewriter) -> None:
    """Read the inputs through Q/DQ pairs, most of which their makers have already; the output gets its own."""
    if rewrite_silu(site, patch):
        return
    for slot, value in enumerate(site.node.inputs):
        if value is not None and value.tensor is None and (slot == 0 or site.node.op_type in (*TWO_INPUTS, "Concat")):
            pair = patch.dequantized(value)
            if pair is not value:
                patch.rewire(site.node, slot, pair)


def clamp_bounds(site: NodeView) -> tuple[float, float] | None:
    """Return the constant bounds of a Relu or Clip, or None where they are computed or exclude zero.

    A range that excludes zero cannot be the saturation of a quantized tensor, whose range includes it.
    """
    node = site.node
    if node.op_type == "Relu":
        return 0.0, float("inf")
    low, high = node.attribute("min", float("-inf")), node.attribute("max", float("inf"))
    for slot in (1, 2):
        if site.input(slot) is None:
            continue
        tensor = site.constant(slot)
        if tensor is None or tensor.dtype != TensorProto.FLOAT:
            return None
        bound = float(tensor.numpy().reshape(()))
        low, high = (bound, high) if slot == 1 else (low, bound)
    return (low, high) if low <= 0.0 <= high and low < high else None
