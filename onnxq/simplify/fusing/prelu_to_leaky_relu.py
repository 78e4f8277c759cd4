"""A PRelu with one slope for all channels is a LeakyRelu, which has a kernel in 8 bit."""

from __future__ import annotations

from collections.abc import Iterator

from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import Patch, named_after


@register_pass(order=160, note="wrote {} PRelu with one slope as LeakyRelu")
def one_slope(model: Model) -> Iterator[Patch]:
    """Describe one change for each PRelu whose slope is one constant number."""
    for graph in model.graph.graphs():
        for node in graph.nodes:
            if node.op_type != "PRelu" or node.domain or len(node.inputs) != 2:
                continue
            (x, slope), made = node.inputs, node.outputs[0]
            constant = slope.constant if slope is not None else None
            ranks = [None if value is None or value.shape is None else len(value.shape) for value in (x, slope)]
            if x is None or made is None or constant is None or constant.size != 1 or None in ranks:
                continue
            if max(ranks, key=lambda rank: rank or 0) == ranks[0]:  # else the result has further axes
                patch = Patch(graph, node, "it has one slope")
                alpha = float(constant.numpy().reshape(-1)[0])
                patch.replace(made, patch.op("LeakyRelu", x, hint=made.name, alpha=alpha))
                named_after(patch, node)
                yield patch
