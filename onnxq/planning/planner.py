"""The plan: for every node a decision, taken from types and shapes before any sample is run. A plan is a promise."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace

from onnxq.ir import Graph, Model, Node, Value
from onnxq.ops.forms.family import NodeView, NotQuantizable, QuantizedForm
from onnxq.ops.forms.integer_domain import CLAMPS, clamp_bounds
from onnxq.ops.forms.scheme import Scheme, SchemeName
from onnxq.planning.copy_plan import planned_state
from onnxq.planning.decision import Choices, Decision, Override, Plan, node_key
from onnxq.planning.log_critical import before_logarithms
from onnxq.planning.ort_workarounds import breaks_runtime
from onnxq.planning.outlier_channels import adds_outliers
from onnxq.planning.output_head import with_head_bits
from onnxq.planning.partition import FLOAT_BONUS, partition_graph
from onnxq.planning.qdq_placement import (
    check_activations,
    place_qdq,
    redundant_clamps,
    refuse_unknown,
    useless_residuals,
)
from onnxq.planning.qdq_propagation import propagate_qdq
from onnxq.planning.recipe import Recipe
from onnxq.planning.row_costs import one_row, settings_to_try
from onnxq.planning.shape_critical import computing_sizes, deciding_lengths
from onnxq.planning.shared_decisions import SharedDecisions
from onnxq.targets import Costs, load_costs
from onnxq.targets.target import load_target

__all__ = [
    "Choices",
    "Decision",
    "Override",
    "Plan",
    "form_of",
    "make_plan",
    "node_key",
    "plan_again",
    "schemes_to_try",
]

NOT_WORTHWHILE = "the model as a whole would not be 3 % faster"
# The forms that `auto` tries for a node, in this order.
AUTO_WITH_DATA: tuple[SchemeName, ...] = ("static-int8", "dynamic-int8", "weight-int8")
NOT_FASTER = "int8 is not faster for this shape"
AUTO_WITHOUT_DATA: tuple[SchemeName, ...] = ("dynamic-int8", "weight-int8")


def make_plan(
    model: Model,
    recipe: Recipe,
    *,
    with_data: bool,
    choices: Choices | None = None,
    costs_count: bool = True,
    costs: Costs | None = None,
) -> Plan:
    """Decide about every node.

    Args:
        model: A normalised model whose types are inferred.
        recipe: The rules.
        with_data: Whether there are samples to calibrate with; `auto` depends on it.
        choices: What to do with single nodes in place of what the recipe says; those that it leaves float stay so.
        costs_count: Whether `auto` keeps nodes float that would not be faster in 8 bit.
        costs: Kernel times; by default those that come with onnxq.

    """
    settings = Plan(recipe, choices or {}, with_data, costs or load_costs(recipe.scheme.target))
    return plan_again(model, settings, costs_count=costs_count)


def plan_again(model: Model, settings: Plan, *, costs_count: bool = True, unreached: Collection[Graph] = ()) -> Plan:
    """Decide about every node by the settings of another plan, whose decisions are not read.

    Args:
        model: A normalised model whose types are inferred.
        settings: A plan with recipe, choices and all that `Plan.settings` lists.
        costs_count: Whether `auto` keeps nodes float that would not be faster in 8 bit.
        unreached: Bodies that no sample has run: nothing in them has a calibrated range.

    """
    plan = settings.undecided(settings.recipe.at_opset(model.opset))
    recipe, keeps_opset = plan.recipe, plan.keeps_opset
    plan.shared = shared = _shared(model, plan)
    decided: dict[Node, Decision] = {}
    for node in model.graph.walk():
        decided[node] = _decide(node, plan, shared, model.opset)
        if decided[node].scheme == "static-int8" and _stands_in(node, unreached):
            decided[node] = _without_ranges(node, plan, model.opset)
        if keeps_opset:
            decided[node] = _of_opset(decided[node], plan, model.opset)
    for node in shared.once("sizes", lambda: computing_sizes(model.graph.graphs())):
        if decided[node].form is not None:
            decided[node] = Decision(node, None, "it computes sizes")
    for node in shared.once("outliers", lambda: list(filter(adds_outliers, model.graph.walk()))):
        decided[node] = Decision(node, None, "it adds outlier channels in float")
    if recipe.scheme.name == "auto":
        _keep_sensitive(decided, model, plan, shared)
    for graph in model.graph.graphs():
        _keep_what_runs(graph, decided, shared, recipe, model.opset)
        _keep_paying_passives(graph, decided, recipe)
        _drop_useless_pairs(graph, decided)
        if costs_count and load_target(recipe.scheme.target).timed:
            _keep_paying_region(graph, decided, plan, shared, model.opset)
            _keep_paying_run_time(graph, decided, plan, shared, model.opset)
        _absorb_clamps(graph, decided, plan)
    plan.decisions = list(decided.values())
    propagate_qdq(plan)
    plan.decisions = [_readable(decision, plan, model.opset) for decision in plan.decisions]
    plan.planned = planned_state(model, plan) if costs_count and not unreached else None
    return plan


def _shared(model: Model, plan: Plan) -> SharedDecisions:
    """Return what is known of the model's nodes from plans before, if these were made of the same."""
    made_of = plan.recipe, plan.costs, plan.with_data, plan.keeps_opset, plan.stores_only
    if plan.shared is not None and plan.shared.fits(model, *made_of):
        return plan.shared
    return SharedDecisions(model, *made_of)


def _decide(node: Node, plan: Plan, shared: SharedDecisions, opset: int) -> Decision:
    choice = plan.choices.get(node_key(node)) if plan.choices else None
    return shared.once((node, choice), lambda: _decided(node, choice, plan, opset))


def _decided(node: Node, choice: Override | None, plan: Plan, opset: int) -> Decision:
    scheme, why = plan.recipe.scheme_for(node.op_type, node.name)
    if scheme.name == "float":
        return Decision(node, None, f"{why} leaves it float")
    if choice is not None:
        made = Decision(node, None, choice.reason)
        if choice.scheme != "float":
            made = _first_accepted(node, replace(scheme, **dict(choice.settings)), (choice.scheme,), opset)
        return replace(made, reason=f"{made.reason}: {choice.reason}" if made.scheme else choice.reason)
    scheme = with_head_bits(node, scheme)
    names = schemes_to_try(node, scheme, with_data=plan.with_data)
    if plan.stores_only and scheme.name == "auto":
        stored = _first_accepted(node, scheme, ("weight-int8",), opset, plan.costs)
        return replace(stored, reason=f"{stored.reason}: {NOT_WORTHWHILE}") if stored.scheme else stored
    return _first_accepted(node, scheme, names, opset, plan.costs)


def schemes_to_try(node: Node, scheme: Scheme, *, with_data: bool) -> tuple[SchemeName, ...]:
    """Name the schemes that are tried for a node, in order: `auto` stands for several."""
    if scheme.name != "auto":
        return (scheme.name,)
    if node.op_type == "ConvTranspose" and not load_target(scheme.target).transposed_convs:
        return ("weight-int8",)  # onnxruntime has no integer kernel for it: Q/DQ would only cost
    fixed = with_data and not (one_row(node) and load_target(scheme.target).timed)
    names = AUTO_WITH_DATA if fixed else AUTO_WITHOUT_DATA
    run_time = load_target(scheme.target).run_time
    return names if run_time else tuple(name for name in names if name != "dynamic-int8")


def form_of(node: Node, settings: Scheme, opset: int) -> QuantizedForm:
    """Say what a node would become under a scheme; raises NotQuantizable with the sentence that says why it cannot."""
    target = load_target(settings.target)
    refuse_unknown(node, settings, target)
    check_activations(settings, opset)
    return place_qdq(NodeView(node, settings, opset), target)


def _first_accepted(
    node: Node, scheme: Scheme, names: tuple[SchemeName, ...], opset: int, costs: Costs | None = None
) -> Decision:
    refusals: list[str] = []
    for settings in settings_to_try(node, scheme, names, costs):
        try:
            form = form_of(node, settings, opset)
        except NotQuantizable as refusal:
            refusals.append(refusal.reason)
            continue
        return Decision(node, settings.name, form.sentence, settings, form)
    return Decision(node, None, refusals[0])


def _stands_in(node: Node, graphs: Collection[Graph]) -> bool:
    scope: Graph | None = node.graph
    while scope is not None and scope not in graphs:
        scope = scope.parent
    return scope is not None


def _without_ranges(node: Node, plan: Plan, opset: int) -> Decision:
    """Decide about a node that cannot be static, in a body that no sample has run."""
    scheme = plan.recipe.scheme_for(node.op_type, node.name)[0]
    names = AUTO_WITHOUT_DATA if scheme.name == "auto" else ("weight-int8",)
    why = "no sample runs the body it stands in"
    for name in names:
        made = _first_accepted(node, scheme, (name,), opset, plan.costs)
        if made.form is not None and made.form.opset <= opset:  # samples have run the model, which stays of its opset
            return replace(made, reason=f"{made.reason}: {why}")
    return Decision(node, None, why)


def _of_opset(decision: Decision, plan: Plan, opset: int) -> Decision:
    """Take the next form for a node that the model's opset has, where it has not the one decided on."""
    if decision.form is None or decision.form.opset <= opset:
        return decision
    node, needed = decision.node, decision.form.opset
    scheme = plan.recipe.scheme_for(node.op_type, node.name)[0]
    for settings in settings_to_try(node, scheme, schemes_to_try(node, scheme, with_data=plan.with_data), plan.costs):
        with suppress(NotQuantizable):
            form = form_of(node, settings, opset)
            if form.opset <= opset:
                return Decision(node, settings.name, form.sentence, settings, form)
    return Decision(node, None, f"8 bit needs opset {needed} here, but the model cannot be converted to it")


def _keep_what_runs(
    graph: Graph, decided: dict[Node, Decision], shared: SharedDecisions, recipe: Recipe, opset: int
) -> None:
    """Keep those convolutions out of 8 bit behind which onnxruntime would break another node."""
    candidates = [node for node in graph.nodes if decided[node].scheme == "static-int8"]
    for node, why in breaks_runtime(graph, candidates).items():
        decided[node] = _stored_instead(node, shared, recipe, opset, why)


def _keep_sensitive(decided: dict[Node, Decision], model: Model, plan: Plan, shared: SharedDecisions) -> None:
    """Under `auto`, compute in float before a logarithm, and leave what decides about lengths float altogether."""
    graphs, recipe = list(model.graph.graphs()), plan.recipe
    open_nodes = {node for node in decided if recipe.scheme_for(node.op_type, node.name)[0].name == "auto"}
    for node in shared.once("logarithms", lambda: before_logarithms(graphs)) & open_nodes:
        if decided[node].scheme in ("static-int8", "dynamic-int8"):
            why = "a logarithm follows, of small values, too"
            decided[node] = _stored_instead(node, shared, recipe, model.opset, why)
    for node in shared.once("lengths", lambda: deciding_lengths(graphs, plan.costs)) & open_nodes:
        if decided[node].form is not None:
            decided[node] = Decision(node, None, "its values decide the length of an output")


def _stored_instead(node: Node, shared: SharedDecisions, recipe: Recipe, opset: int, why: str) -> Decision:
    """Let a node compute in float after all; where the recipe leaves the choice to us, with weights in 8 bit."""
    scheme = recipe.scheme_for(node.op_type, node.name)[0]
    if scheme.name != "auto":
        return Decision(node, None, why)
    instead = shared.once((node, "stored"), lambda: _first_accepted(node, scheme, ("weight-int8",), opset))
    if instead.scheme is None:
        return Decision(node, None, why)
    return replace(instead, reason=f"{instead.reason}: {why}")


def _keep_paying_passives(graph: Graph, decided: dict[Node, Decision], recipe: Recipe) -> None:
    """Let operators without weights work in 8 bit only between quantized neighbours: elsewhere borders cost more."""
    in_integers: set[Value] = set()
    for node in graph.nodes:
        form = decided[node].form
        if form is None or not form.output:
            if _absorbable(node, decided, recipe) and node.inputs[0] in in_integers:
                in_integers.update(node.makes)
            continue
        reads = [node.inputs[slot] for slot in form.activations]
        if not form.passive or all(value in in_integers for value in reads):
            in_integers.update(node.makes)
    wanted: set[Value] = set()
    for node in reversed(graph.nodes):
        form = decided[node].form
        if form is None:
            if _absorbable(node, decided, recipe) and any(v in wanted for v in node.outputs):
                wanted.update(value for value in node.inputs[:1] if value)
            continue
        sources = [value for slot in form.activations if (value := node.inputs[slot]) is not None]
        if form.passive and not (all(v in in_integers for v in sources) and any(v in wanted for v in node.outputs)):
            decided[node] = Decision(node, None, "neighbours are float: int8 would only add conversions")
            continue
        wanted.update(sources)


def _drop_useless_pairs(graph: Graph, decided: dict[Node, Decision]) -> None:
    forms = {node: decided[node].form for node in graph.nodes}
    for node in useless_residuals(forms):
        decided[node] = Decision(node, None, "the Conv that it adds to stays float")
    for node, maker in redundant_clamps(forms).items():
        decided[node] = Decision(node, None, f"the {maker.op_type} before it stays float")


def _keep_paying_region(
    graph: Graph, decided: dict[Node, Decision], plan: Plan, shared: SharedDecisions, opset: int
) -> None:
    """Under `auto`, let only those nodes work in 8 bit that are faster so, the borders around them counted."""
    recipe = plan.recipe
    forms = {n: d.form for n in graph.nodes if (d := decided[n]).scheme == "static-int8" and d.form is not None}
    schemes = {node: recipe.scheme_for(node.op_type, node.name)[0] for node in forms}
    # The kernel times are those of uint8; other activations are not for this runtime's speed.
    asked = {node for node, scheme in schemes.items() if scheme.name != "auto" or scheme.activations != "uint8"}
    if len(asked) == len(forms):
        return
    merged = {n: n.inputs[0].producer for n in graph.nodes if _absorbable(n, decided, recipe) and n.inputs[0]}
    makers = {clamp: maker for clamp, maker in merged.items() if maker is not None}
    chosen, conversions = partition_graph(graph, forms, makers, asked, plan.costs, shared.times)
    plan.conversions += conversions
    for node in forms.keys() - chosen:
        decided[node] = _stored_instead(node, shared, recipe, opset, NOT_FASTER)


def _keep_paying_run_time(
    graph: Graph, decided: dict[Node, Decision], plan: Plan, shared: SharedDecisions, opset: int
) -> None:
    """Under `auto`, let only those nodes find their ranges at run time, in their own kernel, that are faster so."""
    for node in graph.nodes:
        scheme = plan.recipe.scheme_for(node.op_type, node.name)[0]
        settings = decided[node].settings
        by_rows = settings is not None and settings.activation_granularity == "row"  # asked for, or known to pay
        ours = scheme.name == "auto" and not by_rows and node_key(node) not in plan.choices
        if decided[node].scheme != "dynamic-int8" or not ours:
            continue
        in_float, in_integers = shared.times(node)
        if in_float <= in_integers * FLOAT_BONUS:
            decided[node] = _stored_instead(node, shared, plan.recipe, opset, NOT_FASTER)


def _absorbable(clamp: Node, decided: dict[Node, Decision], recipe: Recipe) -> bool:
    """Whether a node is a Relu or Clip that may vanish into the saturation of the quantized output before it."""
    if clamp.op_type not in CLAMPS or clamp.domain or recipe.excluded_by(clamp.op_type, clamp.name) is not None:
        return False
    source = clamp.inputs[0] if clamp.inputs else None
    if source is None or source.producer is None or source.only_use is None or source.graph is not clamp.graph:
        return False
    maker = decided.get(source.producer)
    if maker is None or maker.form is None or not maker.form.output or maker.form.same_scale:
        return False
    return clamp_bounds(NodeView(clamp, maker.settings or Scheme(), 1)) is not None


def _absorb_clamps(graph: Graph, decided: dict[Node, Decision], plan: Plan) -> None:
    for node in graph.nodes:
        if _absorbable(node, decided, plan.recipe):
            source = node.inputs[0]
            assert source is not None
            assert source.producer is not None
            maker = decided[source.producer]
            plan.outputs[source.producer] = _first(node.outputs)
            if maker.settings is not None and maker.settings.symmetric:  # codes around zero clamp nothing at zero
                decided[node] = Decision(node, None, f"its output is quantized instead of that of {maker.node.label}")
                continue
            plan.absorbed[node] = source.producer
            decided[node] = Decision(node, maker.scheme, f"absorbed by the quantized output of {source.producer.label}")


def _readable(decision: Decision, plan: Plan, opset: int) -> Decision:
    """Write a product as Q/DQ pairs after all if it shares its input with a node that wants it in 16 bit."""
    settings, form = decision.settings, decision.form
    if settings is None or form is None or decision.scheme != "static-int8" or settings.form != "integer":
        return decision
    read = [
        plan.range_settings(plan.scale_owner(value))
        for slot in form.activations
        if (value := decision.node.inputs[slot])
    ]
    if all(other.bits == 8 for other in read):
        return decision
    return _first_accepted(decision.node, replace(settings, form="qdq"), (decision.scheme,), opset)


def _first(values: Iterable[Value | None]) -> Value:
    return next(value for value in values if value is not None)
