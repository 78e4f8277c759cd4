"""Which convolutions must stay out of 8 bit because onnxruntime breaks a node behind them.

An integer Conv works channels last. onnxruntime puts Transposes around it and moves them on through the nodes behind,
and of some of these it then permutes the wrong numbers (1.31.1, `transpose_optimizer`): the pads of a Pad with `axes`,
the sizes and scales of a Resize with `axes`, the same inside CenterCropPad; and cubic Resize knows channels first only.
The model is right, and neither loads nor runs. An AveragePool between a DequantizeLinear and a QuantizeLinear becomes
QLinearAveragePool, which has no dilation, and counts padding in another way where the last window hangs over.
"""

from __future__ import annotations

from collections.abc import Iterable

from onnxq.ir import Graph, Node, Value

# They fix the layout of what they give, whatever comes in: no Transpose is moved through them.
BARRIERS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm", "Reshape", "Flatten", "Shape", "Size"})


def layout_sensitive(node: Node) -> bool:
    """Whether onnxruntime breaks a node when what it reads comes from a convolution in 8 bit."""
    if node.domain:
        return False
    if node.op_type == "Resize":
        return node.attribute("axes") is not None or node.attribute("mode", "nearest") == "cubic"
    if node.op_type == "Pad":
        return len(node.inputs) > 3 and node.inputs[3] is not None
    if node.op_type == "AveragePool":
        overhanging = node.attribute("ceil_mode", 0) and node.attribute("count_include_pad", 0)
        return bool(node.attribute("dilations") is not None or overhanging)
    return node.op_type == "CenterCropPad"


def endangering(graph: Graph, candidates: Iterable[Node]) -> dict[Node, str]:
    """Find the convolutions among `candidates` from whose output onnxruntime reaches a node that it breaks.

    Returns:
        For each of them the sentence that says so.

    """
    culprits: dict[Value, Node] = {}
    wanted = set(candidates)
    found: dict[Node, str] = {}
    for node in reversed(graph.nodes):
        culprit = next((culprits[value] for value in node.outputs if value in culprits), None)
        if culprit is not None and node in wanted and node.op_type == "Conv":
            found[node] = f"onnxruntime breaks {culprit.label} ({culprit.op_type}) behind an 8-bit Conv"
        if layout_sensitive(node):
            culprit = node
        if culprit is not None and (culprit is node or node.op_type not in BARRIERS):
            culprits.update((value, culprit) for value in node.inputs if value is not None)
    return found
