"""Find nodes that must stay out of 8 bit because onnxruntime would break or slow down a later node.

An integer Conv works channels last. onnxruntime puts Transposes around it and moves them on through the nodes behind.
It then permutes some attributes wrongly (1.31.1, `transpose_optimizer`): pads of a Pad with `axes`, and sizes and
scales of a Resize with `axes`. The same holds inside CenterCropPad. Cubic Resize has channels first only. The model is
right, and neither loads nor runs. An AveragePool between a DequantizeLinear and a QuantizeLinear becomes
QLinearAveragePool. That has no dilation, and counts padding differently in an overhanging window. A product before a
QuantizeLinear of the model is fused with it even if that has many scales, which QLinearMatMul refuses. It is fused even
if the product makes the scale.
"""

from __future__ import annotations

from collections.abc import Iterable

from onnxq.ir import Graph, Node, Value
from onnxq.ops.forms.integer_domain import CLAMPS, MOVERS
from onnxq.optimize.qdq import one_scale
from onnxq.planning.decision import Plan
from onnxq.targets.target import load_target

SCALING = ("QuantizeLinear", "DequantizeLinear")
WEIGHTED = ("Conv", "ConvTranspose", "Gemm")
PASSED = (*MOVERS, "MaxPool")  # what onnxruntime moves pairs through
# They fix the layout of what they give, whatever comes in: no Transpose is moved through them.
BARRIERS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm", "Reshape", "Flatten", "Shape", "Size"})


def layout_sensitive(node: Node) -> bool:
    """Whether onnxruntime breaks a node when what it reads comes from a convolution in 8 bit."""
    if node.domain:
        return False
    if node.op_type == "Resize":
        return node.attribute("axes") is not None or node.attribute("mode", "nearest") == "cubic"
    if node.op_type == "Pad":
        return node.input(3) is not None
    if node.op_type == "AveragePool":
        overhanging = node.attribute("ceil_mode", 0) and node.attribute("count_include_pad", 0)
        return bool(node.attribute("dilations") is not None or overhanging)
    return node.op_type == "CenterCropPad"


def breaks_runtime(graph: Graph, candidates: Iterable[Node]) -> dict[Node, str]:
    """Find those among `candidates` from whose output onnxruntime reaches a node that it breaks.

    Returns:
        For each of them the sentence that says so.

    """
    culprits: dict[Value, Node] = {}
    wanted = set(candidates)
    found: dict[Node, str] = {}
    for node in reversed(graph.nodes):
        culprit = next((culprits[value] for value in node.outputs if value in culprits), None)
        if node in wanted and _feeds_many_scales(node):
            found[node] = "the model quantizes its output by more than one scale, or by it"
        elif node in wanted and culprit is not None and node.op_type == "Conv":
            found[node] = f"onnxruntime breaks {culprit.label} ({culprit.op_type}) behind an 8-bit Conv"
        if layout_sensitive(node):
            culprit = node
        if culprit is not None and (culprit is node or node.op_type not in BARRIERS):
            culprits.update((value, culprit) for value in node.reads)
    return found


def _feeds_many_scales(node: Node) -> bool:
    """Whether the model's own Q/DQ nodes read an output with many scales, or as their scale or zero point."""
    uses = [use for value in node.makes for use in value.uses if use.node.op_type in SCALING]
    return any(use.slot or not one_scale(use.node) for use in uses)


def computed_in_codes(value: Value, plan: Plan, target: str) -> bool:
    """Whether a target would compute in 8 bit what a value is made by and the plan leaves float."""
    if not load_target(target).moves_pairs:
        return False
    return pool_to_keep_float(value, plan) is not None or product_to_keep_float(value, plan) is not None


def pool_to_keep_float(value: Value, plan: Plan) -> Node | None:
    """Find the float pool that onnxruntime would compute in 8 bit because a value is quantized, and take longer for.

    It moves a QuantizeLinear in front of a MaxPool without other readers (1.31, `qdq_propagation.cc`), also across
    nodes that move values. It then pools codes, without a fast kernel unless a QLinearConv has made them. A network of
    a millisecond became twice as slow. An AveragePool between DequantizeLinear and QuantizeLinear becomes
    QLinearAveragePool, which takes ten times as long as in float. It sees nothing beyond a Max, be it one of a single
    input, which only copies.
    """
    pool = value.producer
    while pool is not None and _passes(pool, MOVERS):
        pool = _alone_before(pool)
    if pool is None or not _passes(pool, ("MaxPool", "AveragePool")) or pool in plan.outputs:
        return None
    if pool.op_type == "AveragePool":
        return pool if _moved_from_codes(pool.inputs[0], plan) else None
    maker = pool.inputs[0].producer if pool.inputs[0] is not None else None
    return None if maker is not None and plan.absorbed.get(maker, maker) in plan.outputs else pool


def product_to_keep_float(value: Value, plan: Plan) -> Node | None:
    """Find the float product whose weight onnxruntime would quantize because a value is quantized.

    It does so where a product reads what a DequantizeLinear gives and only a QuantizeLinear reads the result (1.31,
    `weight_bias_quantization.cc`). It does so across nodes that it moves the two through, too: in 8 bit with one scale
    for the whole weight. Excluded nodes, or nodes that lost too much, would then compute in int8.
    """
    node = value.producer
    while node is not None and _passes(node, (*PASSED, *CLAMPS)) and node not in plan.outputs:
        node = _alone_before(node)
    if node is None or not _passes(node, WEIGHTED) or node in plan.outputs or node in plan.in_integers:
        return None
    if node.constant(1) is None:
        return None
    return node if _moved_from_codes(node.inputs[0], plan) else None


def _moved_from_codes(source: Value | None, plan: Plan) -> bool:
    """Whether a value is read through a Q/DQ pair, or moved from one that is."""
    while source is not None and source not in plan.paired and source.producer and _passes(source.producer, PASSED):
        source = source.producer.inputs[0]
    return source in plan.paired


def _passes(node: Node, operators: Iterable[str]) -> bool:
    return node.op_type in operators and not node.domain


def _alone_before(node: Node) -> Node | None:
    """Return the maker of a node's first input, if that has no other reader."""
    read = node.inputs[0]
    return read.producer if read is not None and len(read.uses) == 1 else None
