"""Layers that are faster in another form in 8 bit, and slower in float: found by one plan, kept if the next agrees.

Tests: `tests/lowering/test_pointwise_conv.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from onnxq.ir import Model, Node, Patch, commit, infer_types
from onnxq.lowering.conv_transpose import MODE_OPSET, as_conv, subpixels
from onnxq.lowering.pointwise_conv import as_product, pointwise
from onnxq.planning.decision import Plan, node_key

LAYERS = ("Conv", "MatMul")


@dataclass(frozen=True)
class LayerReplacement:
    """The replacement of a layer: the node that computes it now, and the name of its result."""

    layer: Node
    made: str


@dataclass(frozen=True)
class Substitution:
    """Another form of some layers.

    Attributes:
        says: What was done, for the report, with the number in place of `{}`.
        find: Lists the nodes of the main graph that it may be faster for, by a plan of how they are.
        write: Describes what takes the place of one of them, and of what stands behind it.
        read_in_8_bit: Whether a reader needs codes of the result.

    """

    says: str
    find: Callable[[Plan, Model], Iterable[Node]]
    write: Callable[[Node], Patch]
    read_in_8_bit: bool

    def written(self, model: Model, wanted: Collection[str]) -> tuple[Model, dict[str, LayerReplacement]]:
        """Write some so in a copy of a model, types inferred; nodes are named by `node_key`."""
        changed = model.copy()
        infer_types(changed)
        patches = {node_key(node): self.write(node) for node in changed.graph.nodes if node_key(node) in wanted}
        layers = {
            key: LayerReplacement(next(n for n in patch.nodes if n.op_type in LAYERS), patch.replaced[0][0].name)
            for key, patch in patches.items()
        }
        commit(patches.values())
        infer_types(changed)
        return changed, layers

    def worth_it(self, plan: Plan, layers: Mapping[str, LayerReplacement]) -> set[str]:
        """Say which of those that are written so work in 8 bit now, and give what is wanted in 8 bit."""
        integer = [decision.node for decision in plan.decisions if decision.scheme == "static-int8"]
        keys = {node_key(node) for node in integer}
        reads = {value.name for node in integer for value in node.reads}
        return {
            key
            for key, one in layers.items()
            if node_key(one.layer) in keys and (one.made in reads or not self.read_in_8_bit)
        }


FORMS = (
    # Its codes would go back to float at once elsewhere: a decoder of a VAE lost 11 dB for a quarter of the time
    Substitution(
        "rewrote {} ConvTranspose as Conv and DepthToSpace, which have int8 kernels",
        lambda plan, model: subpixels(model.graph, plan.costs) if model.opset >= MODE_OPSET else (),
        as_conv,
        read_in_8_bit=True,
    ),
    Substitution(
        "rewrote {} Conv before a Transpose as MatMul, whose int8 kernel writes floats",
        lambda plan, model: (node for node in pointwise(plan) if node.graph is model.graph),
        as_product,
        read_in_8_bit=False,
    ),
)
