"""Explain single nodes: the decision, its rule and grounds, and its cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from onnxq.data.reading import PLAIN, Reading
from onnxq.data.samples import list_sources
from onnxq.errors import ModelError
from onnxq.explanation.records import Attempt, Explanation, Times, Wire
from onnxq.explanation.unknown_node import unknown_node
from onnxq.hazards import planned_hazards
from onnxq.ir import Model, ModelInput, Node, Value, read_model
from onnxq.ops.forms.family import NotQuantizable, dtype_name
from onnxq.ops.forms.scheme import Scheme
from onnxq.pipeline.plan import NO_TIMING, plan_report, prepare_with_data
from onnxq.pipeline.quantize import quantize_prepared
from onnxq.pipeline.request import Request
from onnxq.planning.cost_model import node_times
from onnxq.planning.decision import Decision, Plan
from onnxq.planning.planner import form_of, schemes_to_try
from onnxq.planning.recipe import Recipe, choose_recipe
from onnxq.planning.row_costs import settings_to_try
from onnxq.progress import Observer, following
from onnxq.report import NodeReport, Report, activation_records
from onnxq.runtime.memory import gc_disabled
from onnxq.stages.files import DataOptions
from onnxq.stages.kernel_timing import Timing
from onnxq.stages.measure import choose_qparams, layers_needing_moments, measure
from onnxq.stages.prepared import Prepared
from onnxq.stages.replan import exclude_unreached_bodies
from onnxq.targets import Costs
from onnxq.targets.assumed_shapes import count


def explain(
    model: ModelInput,
    pattern: str,
    recipe: str | Path | Recipe = "auto",
    *,
    data: str | Path | Sequence[str | Path] = (),
    reading: Reading = PLAIN,
    stats: str | Path | None = None,
    exclude: str | Sequence[str] = (),
    only: str | Sequence[str] = (),
    sample_limit: int | None = None,
    timing: Timing = NO_TIMING,
    observer: Observer | None = None,
) -> tuple[Explanation, ...]:
    """Explain the nodes that a pattern names; nothing is written.

    Args:
        model: A float ONNX model: its path, a ModelProto, or loaded.
        pattern: Name of a node, name of a tensor that a node makes, or a glob over names of nodes.
        recipe: As for `quantize`.
        data: Calibration data: the model is quantized in memory, and the errors of the nodes' outputs are measured.
        reading: How data that are no arrays become samples.
        stats: Statistics of an earlier calibration: enough for ranges, without errors.
        exclude: A glob of nodes to leave float, or several.
        only: A glob of nodes to quantize, or several.
        sample_limit: Use no more samples.
        timing: Kernel times to decide by.
        observer: Told about each step.

    Returns:
        One for each node, in the order of the graph.

    Raises:
        ModelError: No node fits the pattern; the hint names one that is called nearly so.
        OnnxqError: As for `quantize`.

    Examples:
        >>> import onnxq
        >>> (one,) = onnxq.explain("model.onnx", "head", "dynamic-int8")
        >>> one.node.scheme
        'dynamic-int8'

    """
    options = DataOptions(list_sources(data), None, sample_limit, reading)
    with following(observer) as observer, gc_disabled():
        observer.step("load")
        source = read_model(model)
        before = _names(source)
        observer.step("plan")
        chosen_recipe = choose_recipe(recipe, exclude=exclude, only=only)
        prepared, given = prepare_with_data(source, chosen_recipe, options, stats, timing, observer)
        found = _explained(prepared, chosen(prepared, pattern, before))
        if (given is None and stats is None) or not prepared.plan.quantized():
            return tuple(found)
        if given is None:
            observer.step("calibrate")
            measured = measure(prepared, layers_needing_moments(prepared.plan), None, stats, observer)
            prepared = exclude_unreached_bodies(prepared, measured)
            ranges = activation_records(prepared.plan, choose_qparams(prepared.plan, measured), measured)
            report = replace(plan_report(prepared), activations=ranges)
        else:
            report = quantize_prepared(prepared, Request(observer, given, stats, detailed=True)).report
    return tuple(_with_figures(one, report) for one in found)


def chosen(prepared: Prepared, pattern: str, before: Iterable[str] = ()) -> list[Decision]:
    """Find the decisions about the nodes that a pattern names: an exact name first, then a tensor, then a glob.

    Args:
        prepared: A plan.
        pattern: See `explain`.
        before: Names of nodes and tensors of the model as it was read, to tell what normalising took away.

    Raises:
        ModelError: There is none.

    """
    decisions = prepared.plan.decisions
    made = [{value.name for value in decision.node.makes} for decision in decisions]
    found = (
        [d for d in decisions if d.node.display_name == pattern]
        or [d for d, tensors in zip(decisions, made, strict=True) if pattern in tensors]
        or [d for d in decisions if fnmatchcase(d.node.display_name, pattern)]
    )
    if found:
        return found
    if pattern in set(before):
        raise ModelError(
            f"'{pattern}' is gone before anything is quantized: {'; '.join(prepared.notes) or 'it is not read'}",
            "Ask for the node that took it in; `onnxq plan` lists all of them.",
        )
    nodes = {decision.node.display_name: decision.node.op_type for decision in decisions}
    tensors = dict.fromkeys(sorted(set().union(*made) - set(nodes)), "")
    raise unknown_node(str(prepared.path), pattern, nodes | tensors)


def _names(model: Model) -> set[str]:
    nodes = list(model.graph.walk())
    return {node.name for node in nodes} | {value.name for node in nodes for value in node.makes} - {""}


def _explained(prepared: Prepared, decisions: Sequence[Decision]) -> list[Explanation]:
    reports = plan_report(prepared).nodes
    became = {decision.node: report for decision, report in zip(prepared.plan.decisions, reports, strict=True)}
    return [_explanation(prepared, decision, became) for decision in decisions]


def _explanation(prepared: Prepared, decision: Decision, became: dict[Node, NodeReport]) -> Explanation:
    node = decision.node
    scheme, rule = prepared.plan.recipe.scheme_for(node.op_type, node.name)
    followed = scheme.name == "float" or node in prepared.plan.absorbed  # nothing was tried
    attempts = () if followed else _attempts(node, scheme, prepared.model.opset, prepared.plan)
    return Explanation(
        node=became[node],
        rule=rule,
        asked=scheme.name,
        attempts=attempts,
        times=_times(node, prepared.plan.costs) if scheme.name == "auto" and _static(attempts) else None,
        inputs=tuple(_input(value, became) for value in node.inputs),
        outputs=tuple(_output(value, became) for value in node.makes),
        hazards=planned_hazards(node, decision.settings),
    )


def _attempts(node: Node, scheme: Scheme, opset: int, plan: Plan) -> tuple[Attempt, ...]:
    made = []
    names = schemes_to_try(node, scheme, with_data=plan.with_data)
    for settings in settings_to_try(node, scheme, names, plan.costs):
        try:
            form = form_of(node, settings, opset)
        except NotQuantizable as refusal:
            made.append(Attempt(settings.name, False, refusal.reason))
            continue
        made.append(Attempt(settings.name, True, form.sentence))
        break
    return tuple(made)


def _static(attempts: Sequence[Attempt]) -> bool:
    return any(attempt.scheme == "static-int8" and attempt.accepted for attempt in attempts)


def _times(node: Node, costs: Costs) -> Times:
    """Read the tables that `auto` decides by."""
    in_float, in_integers = node_times(node, costs)
    first, output = node.inputs[0], node.outputs[0]
    assert first is not None
    assert output is not None
    shapes = [costs.shapes.get(value.name, value.shape) for value in (first, output)]
    sizes = [size for shape in shapes for size in (shape or (None,))]
    return Times(
        in_float=in_float / 1e3,
        in_integers=in_integers / 1e3,
        conversion_in=costs.border(count(first, costs.shapes), into_integers=True) / 1e3,
        conversion_out=costs.border(count(output, costs.shapes), into_integers=False) / 1e3,
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
    known = value if value.tensor is None else value.tensor
    name, shape = "unknown" if known.dtype is None else dtype_name(known.dtype), known.shape
    return name if shape is None else f"{name}[{', '.join('?' if size is None else str(size) for size in shape)}]"


def _with_figures(one: Explanation, report: Report) -> Explanation:
    """Add what a run has shown, and let what its search has changed take the place of the plan."""
    became = {node.name: node for node in report.nodes}
    name, tensors = one.node.name, {wire.tensor for wire in one.outputs}
    layers = report.comparison.layers if report.comparison is not None else ()
    return replace(
        one,
        node=became.get(name, one.node),
        inputs=tuple(_settled(wire, became) for wire in one.inputs),
        outputs=tuple(_settled(wire, became) for wire in one.outputs),
        contribution=next((found for found in report.sensitivity if found.tensor in tensors), None),
        activations=tuple(activation for activation in report.activations if name in activation.nodes),
        layers=tuple(layer for layer in layers if layer.node == name),
        saturation=next((cure for cure in report.saturation if cure.node == name), None),
    )


def _settled(wire: Wire, became: dict[str, NodeReport]) -> Wire:
    return replace(wire, nodes=tuple(became.get(node.name, node) for node in wire.nodes))
