"""Predicted latency of a finished plan on a family of processors: kernels, conversions, the rest.

The times that decide a plan compare forms of a node. These are of whole models: float nodes count, and so does
onnxruntime's overhead of a node and of a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from onnx import TensorProto

from onnxq.ir import Graph, Node, Value
from onnxq.ir.operator_traits import Trait, operators_with
from onnxq.ops.forms.silu import gated_by
from onnxq.planning.alternatives import BLOCKS_OF_FLOAT
from onnxq.planning.cost_model import GATES, node_times, stacked_product
from onnxq.planning.decision import Decision, Plan
from onnxq.planning.row_costs import row_time
from onnxq.targets import Costs, load_costs
from onnxq.targets.assumed_shapes import count

RUN = 6000.0  # nanoseconds of a run from Python, however small the model
FREE = operators_with(Trait.IN_ORDER) | {"Constant", "Dropout", "Shape"}
REDUCING = ("Reduce", "Arg", "Global")
IN_BLOCKS = ("Add", "AveragePool", "Concat", "GlobalAveragePool", "MaxPool", "Relu", "Clip", "Sigmoid", "HardSwish")
MOVED = 0.08  # nanoseconds an element of what a table does not know
MINIMUM = 0.05  # and of finding the least and the greatest of a tensor


def predicted_latency(plan: Plan, family: str) -> float:
    """Return the predicted latency of a plan by that of float on a family of processors.

    Args:
        plan: A finished plan, before it is carried out, which changes its nodes.
        family: A target whose kernel times are known.

    """
    return latencies_on(family, [plan])[0]


def latencies_on(family: str, plans: Sequence[Plan]) -> list[float]:
    """Return the same for several plans of one model, whose nodes in float are looked at once."""
    in_float, taken = times_on(family, plans)
    return [time / in_float for time in taken]


def times_on(family: str, plans: Sequence[Plan]) -> tuple[float, list[float]]:
    """Return the nanoseconds of a run on a family: in float, and by each of several plans of one model."""
    costs = load_costs(family).with_shapes(plans[0].costs.shapes)
    before = _float_times(plans[0], costs)
    in_float = RUN + math.fsum(before) + sum(_blocks(graph, frozenset(), costs) for graph in _graphs(plans[0]))
    return in_float, [_planned_time(plan, costs, before) for plan in plans]


def planned_time(plan: Plan, costs: Costs) -> float:
    """Return the nanoseconds of a run of a plan by some kernel times: of nodes in float, and of all layouts, too."""
    return _planned_time(plan, costs, _float_times(plan, costs))


def _float_times(plan: Plan, costs: Costs) -> list[float]:
    return [float_node_time(decision.node, costs) for decision in plan.decisions]


def _planned_time(plan: Plan, costs: Costs, in_float: Sequence[float]) -> float:
    times = [_planned(decision, plan, before, costs) for decision, before in zip(plan.decisions, in_float, strict=True)]
    layouts = sum(_blocks(graph, plan.in_integers, costs) for graph in _graphs(plan))
    return RUN + math.fsum(times) + layouts + _Pairs(plan, costs).time()


def float_node_time(node: Node, costs: Costs) -> float:
    """Return the nanoseconds of a node in float, what onnxruntime takes for a node included.

    Nodes that no table knows take what moving their elements takes.
    """
    output = next(iter(node.makes), None)
    if output is None or node.op_type in FREE or _computed_at_load(node):
        return 0.0
    start, elements = costs.borders["node"], count(output, costs.shapes)
    if gated_by(node) is not None or node.bodies or output.dtype != TensorProto.FLOAT:
        return start if elements < 1024 else start + MOVED * elements
    if _priced(node):
        taken = node_times(node, costs)[0]
        return taken + start if taken else 0.0
    if node.op_type in ("MatMul", "Gemm"):
        return start + stacked_product(node, costs)
    table: Mapping[str, float] = costs.table["floats"]
    read = next((count(value, costs.shapes) for value in node.reads), elements)
    if node.op_type.startswith(REDUCING):
        return start + table["ReduceMean"] * read * costs.scale
    if node.op_type in table and node.op_type not in costs.table["elementwise"]:
        return start + table[node.op_type] * elements * costs.scale
    if node.op_type in costs.table["elementwise"]:
        return start + node_times(node, costs)[0]
    return start + MOVED * elements * costs.scale


def _computed_at_load(node: Node) -> bool:
    return bool(node.inputs) and all(value is None or value.constant is not None for value in node.inputs)


def _priced(node: Node) -> bool:
    """Whether tables know a kernel of a weight for a node."""
    weight = node.input(1)
    if node.op_type in ("Conv", "MatMul", "Gemm", *GATES):
        return weight is not None and weight.tensor is not None
    return node.op_type in ("Relu", "Clip")


def _planned(decision: Decision, plan: Plan, in_float: float, costs: Costs) -> float:
    """Return the time of a node as planned, conversions between Q/DQ pairs left out."""
    node, settings = decision.node, decision.settings
    if node in plan.absorbed or _added_in_integers(node, plan):
        return 0.0
    if decision.scheme == "static-int8" and in_float:
        return costs.borders["node"] + node_times(node, costs)[1]
    if decision.scheme == "dynamic-int8":
        rows = row_time(node, costs) if settings is not None and settings.activation_granularity == "row" else None
        taken = rows if rows is not None else node_times(node, costs)[1]
        read = next((value for value in node.inputs[:2] if value is not None and value.tensor is None), None)
        elements = count(read, costs.shapes) if read is not None and node.op_type not in GATES else 0
        return costs.borders["node"] + taken + costs.moved("QuantizeLinear", elements) + MINIMUM * elements
    if decision.scheme == "weight-int8" and settings is not None and settings.block_size:
        return in_float * BLOCKS_OF_FLOAT
    return in_float


def _added_in_integers(node: Node, plan: Plan) -> bool:
    """Whether an Add is the bias of a product in 8 bit, which onnxruntime computes with it."""
    if node.op_type != "Add" or node.domain:
        return False
    makers = [value.producer for value in node.reads if value.constant is None]
    maker = makers[0] if len(makers) == 1 else None
    return maker is not None and maker.op_type in ("MatMul", "Gemm") and maker in plan.in_integers


def _graphs(plan: Plan) -> list[Graph]:
    return list(dict.fromkeys(decision.node.graph for decision in plan.decisions))


def _blocks(graph: Graph, in_integers: frozenset[Node], costs: Costs) -> float:
    """Return the time of the changes of layout around Convs in float: what they read, and what others read of them.

    onnxruntime changes the layout of a value once, however many nodes read it. An operator works in blocks where all
    that it reads is in blocks. One part of a Concat in 8 bit has all others put in order, and the result put back.
    """
    inside, changed = set[Value](), dict[Value, None]()
    for node in graph.nodes:
        if node.domain or not node.outputs or node.outputs[0] is None or node in in_integers:
            continue
        reads = [value for value in node.reads if value.constant is None]
        conv = node.op_type == "Conv"
        follows = node.op_type in IN_BLOCKS and bool(reads) and all(value in inside for value in reads)
        if conv or follows:
            inside.add(node.outputs[0])
        if conv and reads and reads[0] not in inside and _channels(node) >= 8:
            changed[reads[0]] = None
        if not conv and not follows:
            changed.update(dict.fromkeys(value for value in reads if value in inside))
    for node in in_integers:
        changed.update(dict.fromkeys(value for value in node.reads if value in inside))
    return math.fsum(costs.reorder(count(value, costs.shapes)) + costs.borders["node"] for value in changed)


def _channels(conv: Node) -> int:
    weight = conv.input(1)
    shape = weight.shape if weight is not None else None
    return shape[1] * int(conv.attribute("group", 1)) if shape and isinstance(shape[1], int) else 0


class _Pairs:
    """The conversions of a plan: where makers and readers of a value are not on the same side."""

    def __init__(self, plan: Plan, costs: Costs) -> None:
        self.plan, self.costs = plan, costs
        self.forms = {d.node: d.form for d in plan.decisions if d.scheme == "static-int8"}

    def time(self) -> float:
        """Return the time of all conversions, and of the changes of layout at them."""
        return math.fsum(self._of(value) for value in self._values())

    def _values(self) -> Iterator[Value]:
        for graph in _graphs(self.plan):
            yield from (value for value in graph.values.values() if value.tensor is None)

    def _of(self, value: Value) -> float:
        made = self._gives_codes(value.producer)
        readers = [use.node for use in value.uses if self._reads_codes(use.node, use.slot)]
        if not made and not readers:
            return 0.0
        costs, elements = self.costs, count(value, self.costs.shapes)
        others = [use.node for use in value.uses if use.node not in self.plan.absorbed]
        others = [node for node in others if node not in readers and node.op_type not in ("Shape", "Size")]
        laid_out = costs.moved("Transpose", elements) + costs.borders["node"]
        if made:
            floats = len(others) + value.is_output
            layout = laid_out if floats and _works_on_maps(value.producer) else 0.0
            return floats * costs.reading(elements) + layout
        layout = laid_out if any(map(_works_on_maps, readers)) else 0.0
        return costs.moved("QuantizeLinear", elements) + costs.borders["node"] + layout

    def _reads_codes(self, node: Node, slot: int) -> bool:
        form = self.forms.get(node)
        return form is not None and slot in form.activations

    def _gives_codes(self, node: Node | None) -> bool:
        return node is not None and (node in self.plan.outputs or node in self.plan.absorbed)


def _works_on_maps(node: Node | None) -> bool:
    """Whether a node computes channels last in 8 bit: a Conv, or what goes over maps of one."""
    value = node.inputs[0] if node is not None and node.inputs else None
    return value is not None and value.shape is not None and len(value.shape) > 3 and node is not None
