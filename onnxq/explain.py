"""All there is to say about single nodes: what was decided, by which rule, on what grounds, and what it costs."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from onnxq.comparison import LayerComparison
from onnxq.errors import ModelError
from onnxq.ir import Model, Node, Value, load
from onnxq.observer import Observer, Silent
from onnxq.ops.family import Decline, dtype_name
from onnxq.ops.scheme import Scheme
from onnxq.pipeline import carry_out, planned
from onnxq.quant.plan import Decision, form_of, schemes_to_try
from onnxq.quant.region import count, node_times
from onnxq.report import Activation, NodeReport, activations, record_dict
from onnxq.report.activations import node_name
from onnxq.steps import Prepared, choose_qparams, layers_to_measure, measure, open_data, prepare, reached, uncollected
from onnxq.targets import load_costs


@dataclass(frozen=True)
class Wire:
    """One input or output of a node.

    Attributes:
        tensor: Its name; None where an optional input is left out.
        kind: Element type and shape, such as `float32[n, 3]`.
        origin: For what no node makes or reads: `constant`, `input of the graph`, `output of the graph`; else empty.
        nodes: The node that makes an input, or those that read an output, with what they become.

    """

    tensor: str | None
    kind: str
    origin: str
    nodes: tuple[NodeReport, ...]


@dataclass(frozen=True)
class Attempt:
    """A scheme that was tried for a node.

    Attributes:
        scheme: Its name.
        accepted: Whether the node can have it.
        sentence: What the node would become, or why it cannot.

    """

    scheme: str
    accepted: bool
    sentence: str


@dataclass(frozen=True)
class Times:
    """What the tables of kernel times say of a node, in microseconds; `auto` weighs them along the graph.

    Attributes:
        in_float: The node in float.
        in_integers: The node in 8 bit.
        conversion_in: Bringing its first input into 8 bit, paid where the maker of that is float.
        conversion_out: Bringing its output back to float, paid where a reader is float.
        guessed: Whether dimensions that the model leaves open were guessed.

    """

    in_float: float
    in_integers: float
    conversion_in: float
    conversion_out: float
    guessed: bool


@dataclass(frozen=True)
class Explanation:
    """What there is to say about one node.

    Attributes:
        node: Its name, operator, what it becomes, and why.
        rule: The rule of the recipe that decided about it.
        asked: The scheme which that rule asks for.
        attempts: What was tried, in order.
        times: Kernel times, where they had a say.
        inputs: What it reads.
        outputs: What it gives.
        activations: What was measured of the activations that it holds in codes; empty without data.
        layers: The errors of its outputs; empty without data.

    """

    node: NodeReport
    rule: str
    asked: str
    attempts: tuple[Attempt, ...]
    times: Times | None
    inputs: tuple[Wire, ...]
    outputs: tuple[Wire, ...]
    activations: tuple[Activation, ...] = ()
    layers: tuple[LayerComparison, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Give plain data for JSON: numbers that are not finite are null."""
        return {
            **asdict(self.node),
            "rule": self.rule,
            "asked": self.asked,
            "attempts": [asdict(attempt) for attempt in self.attempts],
            "times": None if self.times is None else asdict(self.times),
            "inputs": [asdict(wire) for wire in self.inputs],
            "outputs": [asdict(wire) for wire in self.outputs],
            "activations": [record_dict(activation) for activation in self.activations],
            "layers": [record_dict(layer) for layer in self.layers],
        }


def explain(
    model: str | Path,
    pattern: str,
    recipe: str | Path = "auto",
    *,
    data: Sequence[str | Path] = (),
    stats: str | Path | None = None,
    exclude: Sequence[str] = (),
    only: Sequence[str] = (),
    sample_limit: int | None = None,
    observer: Observer | None = None,
) -> tuple[Explanation, ...]:
    """Explain the nodes that a pattern names; nothing is written.

    Args:
        model: Path of a float ONNX model.
        pattern: Name of a node, name of a tensor that a node makes, or a glob over names of nodes.
        recipe: As for `quantize`.
        data: Calibration data: the model is quantized in memory, and the errors of the nodes' outputs are measured.
        stats: Statistics of an earlier calibration: enough for ranges, without errors.
        exclude: Globs of nodes to leave float.
        only: Globs of nodes to quantize.
        sample_limit: Use no more samples.
        observer: Told about each step.

    Raises:
        ModelError: No node fits the pattern; the hint names one that is called nearly so.
        OnnxqError: As for `quantize`.

    """
    watch = observer or Silent()
    with uncollected():
        watch.step("load")
        source = load(model)
        before = _names(source)
        watch.step("plan")
        ready = prepare(source, recipe, with_data=bool(data) or stats is not None, exclude=exclude, only=only)
        given = open_data(ready.model, data, None, sample_limit)
        found = _explained(ready, chosen(ready, pattern, before), with_data=bool(data) or stats is not None)
        if (given is None and stats is None) or not ready.plan.quantized():
            return tuple(found)
        if given is None:
            watch.step("calibrate")
            measured = measure(ready, layers_to_measure(ready.plan), None, stats, watch)
            ready = reached(ready, measured)
            ranges = activations(ready.plan, choose_qparams(ready.plan, measured), measured)
            return tuple(_with_figures(one, ranges, ()) for one in found)
        report = carry_out(ready, given, stats, watch, detailed=True).report
    layers = report.comparison.layers if report.comparison is not None else ()
    return tuple(_with_figures(one, report.activations, layers) for one in found)


def chosen(ready: Prepared, pattern: str, before: Iterable[str] = ()) -> list[Decision]:
    """Find the decisions about the nodes that a pattern names: an exact name first, then a tensor, then a glob.

    Args:
        ready: A plan.
        pattern: See `explain`.
        before: Names of nodes and tensors of the model as it was read, to tell what normalising took away.

    Raises:
        ModelError: There is none.

    """
    decisions = ready.plan.decisions
    made = [{value.name for value in decision.node.outputs if value is not None} for decision in decisions]
    found = (
        [d for d in decisions if node_name(d.node) == pattern]
        or [d for d, tensors in zip(decisions, made, strict=True) if pattern in tensors]
        or [d for d in decisions if fnmatchcase(node_name(d.node), pattern)]
    )
    if found:
        return found
    if pattern in set(before):
        raise ModelError(
            f"'{pattern}' is gone before anything is quantized: {'; '.join(ready.notes) or 'nobody reads it'}",
            "Ask for the node that took it in; `onnxq plan` lists all of them.",
        )
    known = dict.fromkeys([*(node_name(d.node) for d in decisions), *sorted(set().union(*made))])
    near = difflib.get_close_matches(pattern, known, n=3, cutoff=0.5)
    listed = " or ".join(f"'{name}'" for name in near)
    raise ModelError(
        f"no node of {ready.path} is called '{pattern}' or makes a tensor of that name",
        f"Did you mean {listed}?" if near else "`onnxq plan` lists all nodes.",
    )


def _names(model: Model) -> set[str]:
    nodes = list(model.graph.walk())
    return {node.name for node in nodes} | {value.name for node in nodes for value in node.outputs if value} - {""}


def _explained(ready: Prepared, decisions: Sequence[Decision], *, with_data: bool) -> list[Explanation]:
    reports = planned(ready).nodes
    became = {decision.node: report for decision, report in zip(ready.plan.decisions, reports, strict=True)}
    return [_explanation(ready, decision, became, with_data) for decision in decisions]


def _explanation(ready: Prepared, decision: Decision, became: dict[Node, NodeReport], with_data: bool) -> Explanation:
    node = decision.node
    scheme, rule = ready.plan.recipe.scheme_for(node.op_type, node.name)
    followed = scheme.name == "float" or node in ready.plan.absorbed  # nothing was tried
    attempts = () if followed else _attempts(node, scheme, ready.model.opset, with_data)
    return Explanation(
        node=became[node],
        rule=rule,
        asked=scheme.name,
        attempts=attempts,
        times=_times(node) if scheme.name == "auto" and _static(attempts) else None,
        inputs=tuple(_input(value, became) for value in node.inputs),
        outputs=tuple(_output(value, became) for value in node.outputs if value is not None),
    )


def _attempts(node: Node, scheme: Scheme, opset: int, with_data: bool) -> tuple[Attempt, ...]:
    made = []
    for name in schemes_to_try(node, scheme, with_data=with_data):
        try:
            form = form_of(node, replace(scheme, name=name), opset)
        except Decline as refusal:
            made.append(Attempt(name, False, refusal.reason))
            continue
        made.append(Attempt(name, True, form.sentence))
        break
    return tuple(made)


def _static(attempts: Sequence[Attempt]) -> bool:
    return any(attempt.scheme == "static-int8" and attempt.accepted for attempt in attempts)


def _times(node: Node) -> Times:
    """Read the tables that `auto` decides by."""
    costs = load_costs()
    in_float, in_integers = node_times(node, costs)
    first, output = node.inputs[0], node.outputs[0]
    assert first is not None
    assert output is not None
    sizes = [*(first.shape or (None,)), *(output.shape or (None,))]
    return Times(
        in_float=in_float / 1e3,
        in_integers=in_integers / 1e3,
        conversion_in=costs.border(count(first), into_integers=True) / 1e3,
        conversion_out=costs.border(count(output), into_integers=False) / 1e3,
        guessed=any(not isinstance(size, int) for size in sizes),
    )


def _input(value: Value | None, became: dict[Node, NodeReport]) -> Wire:
    if value is None:
        return Wire(None, "", "left out", ())
    if value.tensor is not None:
        return Wire(value.name, _kind(value), "constant" if value.constant else "input of the graph with a default", ())
    if value.producer is None:
        return Wire(value.name, _kind(value), "input of the graph", ())
    return Wire(value.name, _kind(value), "", (became[value.producer],))


def _output(value: Value, became: dict[Node, NodeReport]) -> Wire:
    readers = tuple(became[node] for node in value.consumers())
    return Wire(value.name, _kind(value), "output of the graph" if value.is_output else "", readers)


def _kind(value: Value) -> str:
    name = "unknown" if value.dtype is None else dtype_name(value.dtype)
    if value.tensor is not None:
        name = dtype_name(value.tensor.dtype)
    shape = value.tensor.shape if value.tensor is not None else value.shape
    return name if shape is None else f"{name}[{', '.join('?' if size is None else str(size) for size in shape)}]"


def _with_figures(one: Explanation, ranges: Sequence[Activation], layers: Sequence[LayerComparison]) -> Explanation:
    name = one.node.name
    return replace(
        one,
        activations=tuple(activation for activation in ranges if name in activation.nodes),
        layers=tuple(layer for layer in layers if layer.node == name),
    )
