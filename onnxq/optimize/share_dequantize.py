"""One conversion to float for all convolutions that read the same codes in float.

onnxruntime gives every reader of a DequantizeLinear one of its own when it loads a model (1.31,
`ensure_unique_dq_for_node_unit.cc`). A float Conv behind each of them changes the layout once more. On the feature maps
of a face detector both happened twice, for 4 % of its time. It does not look behind a Max, which only copies if it has
a single input.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnxq.ir import Graph, Model, Node, Patch, Value
from onnxq.ir.pass_manager import register_pass
from onnxq.optimize.integer_conv import integer_conv


@register_pass(order=60, timed=True, operators=("Conv",))
def share_conversions(model: Model) -> Iterator[Patch]:
    """Let convolutions in float read what they have in common behind a copy.

    Args:
        model: A quantized model. Its results stay the same.

    """
    for graph in model.graph.graphs():
        yield from _patches(graph)


def _patches(graph: Graph) -> list[Patch]:
    patches = []
    for pair in graph.nodes:
        value = pair.outputs[0] if pair.op_type == "DequantizeLinear" and not pair.domain else None
        convs = _float_convs(value) if value is not None else []
        if value is None or len(convs) < 2:
            continue
        patch = Patch(graph, convs[0], f"share {value.name} among convolutions")
        copy = patch.op("Max", value, hint=f"{value.name}_shared")
        for conv in convs:
            patch.rewire(conv, 0, copy)
        patches.append(patch)
    return patches


def _float_convs(value: Value) -> list[Node]:
    """Return the convolutions in the value's own scope that read it as their activation, and compute in float."""
    reads = [use.node for use in value.uses if use.slot == 0 and use.node.graph is value.graph]
    return [node for node in reads if node.op_type == "Conv" and not node.domain and integer_conv(node) is None]
