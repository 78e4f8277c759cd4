"""Elementwise operators that together make one known function become its operator, whatever way it was spelled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from onnx import TensorProto

from onnxq.ir.graph import Node
from onnxq.ir.model import Model
from onnxq.ir.operator_traits import Trait, has
from onnxq.ir.pass_manager import Change, register_pass
from onnxq.ir.patch import Patch, named_after
from onnxq.ir.schemas import BROADCASTING
from onnxq.simplify.known_functions import NANOSECONDS, NEAR, KnownFunction, candidates, cost
from onnxq.simplify.ort_fusions import operators_left
from onnxq.simplify.regions.single_entry_regions import Subgraph, compute, node_positions, subgraphs_from
from onnxq.targets.assumed_shapes import count

LEAST_GAIN = 0.9  # of the time that the decomposed function takes
NODE = 500  # nanoseconds that one more node takes, however small its tensor
FUSE_WITH = ("Conv", "Gemm")  # what a Relu or Clip behind them is part of, in float and in 8 bit
CODED = ("Conv", "ConvTranspose")  # what they make is in codes where they compute in 8 bit

FINE = 2.0 ** -np.arange(7, 24)
FAR = 2.0 ** np.arange(4.5, 40)
GRID = np.unique(np.concatenate([np.arange(-20 * 64, 20 * 64 + 1) / 64, FINE, -FINE, FAR, -FAR]))
FEW = np.array([-1.0, 0.0, 1.0, NEAR, -NEAR, -20.5, 20.5, 2.5, -2.5, -1e6, 1e6])
RELATIVE, OF_X = 1e-6, 1.2e-7  # float32 rounds x and 1 + f(x) to 1.2e-7, however small f(x) is


@register_pass(order=130, opset=BROADCASTING)
def fuse_activations(model: Model) -> Iterator[Change]:
    """Describe the rewrites: the longest part from each value whose function is known and cheaper in another spelling.

    A part is recognised by its values, in float64, on `GRID`: within 1e-6 of the function, or of what float32 rounds.
    """
    for graph in model.graph.graphs():
        place, taken = node_positions(graph), set[Node]()
        made = [output for node in graph.nodes for output in node.makes]
        for value in (*graph.inputs, *made):
            if value.dtype != TensorProto.FLOAT or value.constant is not None:
                continue
            found = [part for part in subgraphs_from(value, place, _admits) if not taken.intersection(part.nodes)]
            part, known = recognised(found, model.opset)
            if part is None or known is None:
                continue
            taken.update(part.nodes)
            patch = Patch(graph, part.nodes[-1], f"it computes {known.name}")
            patch.replace(part.value, known.write(patch, value))
            named_after(patch, part.nodes[-1])
            yield Change(patch, known.note, known.opset)


def recognised(found: Sequence[Subgraph], opset: int) -> tuple[Subgraph, KnownFunction] | tuple[None, None]:
    """Return the largest of some parts of one entry that is a known function and costs more than that has to.

    Args:
        found: The parts, the smallest first.
        opset: Of the model.

    """
    if not found:
        return None, None
    try:
        few = compute(found[-1].nodes, {found[-1].entry: FEW}, opset)
        for part in reversed(found):
            if not _worth_it(part) or not _is_plain(few[part.value], FEW):
                continue
            known = [k for k in candidates(FEW, few[part.value]) if _agrees(FEW, few[part.value], k)]
            if not known:
                continue
            values = compute(part.nodes, {part.entry: GRID}, opset)[part.value]
            coded = part.entry.producer is not None and part.entry.producer.op_type in CODED
            left = operators_left(part, opset, codes=coded)
            known = [k for k in known if _pays(k, left, count(part.entry), coded) and _agrees(GRID, values, k)]
            if known:
                return part, min(known, key=lambda k: k.nanoseconds)
    except (KeyError, ValueError, TypeError, IndexError):  # an operator in a form that no kernel here takes
        pass
    return None, None


def _pays(known: KnownFunction, left: Sequence[str], elements: int, coded: bool) -> bool:
    """Whether a function takes less time than the operators that onnxruntime leaves of its spelling."""
    operators = known.behind_codes or known.operators if coded else known.operators
    saved = cost(left) * LEAST_GAIN - cost(operators)
    return saved > 0 and saved * elements > NODE * (len(operators) - len(left))


def _is_plain(values: object, points: np.ndarray) -> bool:
    return isinstance(values, np.ndarray) and values.shape == points.shape and values.dtype == np.float64


def _agrees(points: np.ndarray, values: np.ndarray, known: KnownFunction) -> bool:
    expected = known.on(points)
    allowed = RELATIVE * np.abs(expected) + OF_X * np.minimum(np.abs(points), 1)
    return bool((np.abs(values - expected) <= allowed).all())


def _admits(node: Node) -> bool:
    constants = node.constants
    return (
        has(node, Trait.ELEMENTWISE)
        and node.op_type in NANOSECONDS
        and all(tensor.size == 1 and tensor.dtype == TensorProto.FLOAT for tensor in constants)
    )


def _worth_it(part: Subgraph) -> bool:
    """Whether a part is more than a cheap operator that stands alone, and its constants leave the rank as it is."""
    ranks = [len(constant.shape) for node in part.nodes for constant in node.constants]
    shape = part.entry.shape
    if any(ranks) and (shape is None or max(ranks) > len(shape)):
        return False
    before = part.entry.producer
    return (
        len(part.nodes) > 1 or cost([part.nodes[0].op_type]) > 1 or (before is not None and before.op_type in FUSE_WITH)
    )
