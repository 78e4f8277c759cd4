"""The steps of the pipeline that are more than one call: each takes what the one before gave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from onnxq.errors import ModelError
from onnxq.ir import IN_MEMORY, Model, ModelInput, Node, Value, read_model
from onnxq.ir.graph import MICROSOFT
from onnxq.ir.opset import MIN_OPSET, make_loadable, raise_opset
from onnxq.ir.pass_manager import Outcome
from onnxq.ir.passes import normalise
from onnxq.ir.schemas import misused_node
from onnxq.ir.shape_inference.types import infer_types
from onnxq.planning.planner import Plan, make_plan, plan_again
from onnxq.planning.portable import portable_costs
from onnxq.planning.recipe import Recipe, choose_recipe
from onnxq.report import model_bytes
from onnxq.simplify import simplify
from onnxq.stages.prepared import Prepared
from onnxq.stages.strategy import Strategy, choose_strategy
from onnxq.targets import Costs, load_costs
from onnxq.targets.target import load_target
from onnxq.text import counted
from onnxq.warning import WarningLine

FOUR_BIT_OPSET = 21  # of DequantizeLinear and Cast
KEPT_OPSET = "kept opset {}, and what needs a newer one in float: {}"
SEE_NAMES = "`onnxq plan` shows the names and operators of all nodes."
# Domains of nodes in a model that onnxruntime saved with all its optimizations: `nchwc_transformer.cc`
LAYOUT_DOMAINS = frozenset(("com.microsoft.nchwc", "com.ms.internal.nhwc"))
BEFORE_LAYOUT = "Give the model from before that, or save it with ORT_ENABLE_BASIC."
STORED = "weight-"  # what schemes begin with that leave products float
ROOM = 0.8  # how full a file may be by estimate before it is counted


def prepare(
    model: ModelInput,
    recipe: str | Path | Recipe = "auto",
    *,
    with_data: bool,
    target: str | None = None,
    exclude: str | Sequence[str] = (),
    only: str | Sequence[str] = (),
    fast: bool = False,
    reduce_range: bool = False,
    kv_cache: str | None = None,
    max_size: int | None = None,
) -> Prepared:
    """Normalise a model as far as the recipe needs, and decide about every node.

    Args:
        model: The model: its path, a ModelProto, or loaded. One that is loaded is changed, or another takes its place.
        recipe: Name of a recipe, path of a TOML file, or a `Recipe`.
        with_data: Whether there are samples or statistics.
        target: Name of the runtime that the model is for; None for that of the recipe.
        exclude: A glob of nodes to leave float, or several.
        only: A glob of nodes to quantize, or several.
        fast: Whether to leave out all that takes trials.
        reduce_range: Whether weights get 7 bits where products of 8 bits could saturate.
        kv_cache: Type of caches of keys and values, `int8` or `float`; None for that of the recipe.
        max_size: Bytes that the file may have; where that could ask for weights of 4 bit, the opset that knows them is
            raised to if the model can be converted.

    Returns:
        The model that is quantized, and a decision for every node.

    Raises:
        ModelError: The model cannot be read, or has what onnxq does not support.
        RecipeError: The recipe or an option is wrong.

    Examples:
        >>> import onnxq
        >>> prepared = onnxq.prepare("model.onnx", "static-int8", with_data=True)
        >>> len(prepared.plan.quantized())
        7

    """
    model = model if isinstance(model, Model) else read_model(model)
    source, source_bytes, external = model.sha256, model_bytes(model), model.external_files
    chosen = choose_recipe(
        recipe, target=target, reduce_range=reduce_range, kv_cache=kv_cache, exclude=exclude, only=only
    )
    chosen = chosen.fast() if fast else chosen
    before = node_labels(model)
    model, notes = normalise_for_plan(model)
    strategy = choose_strategy(model)
    found = simplified(model, chosen) if strategy.runs else Outcome(model)
    notes += found.notes
    plan = Plan(chosen, {}, with_data)
    path = model.path or IN_MEMORY
    planned = Prepared(
        path, source, source_bytes, found.model, plan, notes, fast, found.original, strategy=strategy, external=external
    )
    prepared = _portable(replan_with_costs(planned, max_size), max_size)
    idle = chosen.idle_globs(node_labels(prepared.model), before)
    warnings = [WarningLine("ignored-option", sentence, SEE_NAMES) for sentence in idle]
    warnings += _warn_of_range(prepared.plan)
    return replace(prepared, warnings=(*warnings, *_warn_of_layouts(prepared.model)))


def _warn_of_range(plan: Plan) -> Iterator[WarningLine]:
    """Warn where weights are to have 7 bits for products of 8 bits, and none are computed."""
    schemes = {one.scheme for one in plan.decisions if one.scheme is not None}
    if plan.recipe.scheme.reduce_range and schemes and all(scheme.startswith(STORED) for scheme in schemes):
        message = "--reduce-range has no effect: weights are only stored in few bits"
        yield WarningLine("ignored-option", message, "Leave it out, or choose --recipe static-int8 or dynamic-int8.")


def _warn_of_layouts(model: Model) -> Iterator[WarningLine]:
    """Warn of nodes that onnxruntime's own optimization has put into a layout, which have no quantized form."""
    count = sum(node.domain in LAYOUT_DOMAINS for node in model.graph.walk())
    if count:
        verb = "is" if count == 1 else "are"
        yield WarningLine(
            "processor-layout",
            f"{counted(count, 'node')} {verb} in a layout that onnxruntime chose for one processor, and stay float",
            BEFORE_LAYOUT,
        )


def _portable(prepared: Prepared, most: int | None) -> Prepared:
    """Plan for all families of processors that the target is for, where `auto` may choose."""
    if prepared.plan.recipe.scheme.name != "auto" or prepared.strategy is Strategy.STREAMED:
        return prepared

    def plan_by(costs: Costs) -> Plan:
        return plan_again(prepared.model, replace(prepared.plan, costs=costs))

    costs = portable_costs(prepared.plan, plan_by)
    return prepared if costs is prepared.plan.costs else replan_with_costs(prepared, most, costs)


def normalise_for_plan(model: Model) -> tuple[Model, tuple[str, ...]]:
    """Normalise a loaded model, infer its types, and raise its opset to one that onnxruntime loads.

    Returns:
        The model, or another of a newer opset, and what was done.

    Raises:
        ModelError: A node is not what its operator asks for, or the model contradicts itself.

    """
    wrong = misused_node(model.graph, model.opset)
    if wrong is not None:
        raise ModelError(f"{model.name}: {wrong}", "Export the model again.")
    notes = tuple(normalise(model))
    infer_types(model)
    notes += make_loadable(model)
    if model.opset < MIN_OPSET:
        with suppress(ModelError):  # then onnxruntime says what it does not know of it
            return _newer(model, raise_opset(model, MIN_OPSET), notes)
    return model, notes


def node_labels(model: Model) -> set[str]:
    """Name what a glob can match: names and operators of all nodes, bodies included."""
    return {label for node in model.graph.walk() for label in (node.name, node.op_type)}


def simplified(model: Model, recipe: Recipe) -> Outcome:
    """Simplify a model where the recipe and its target want it, and what it computes can be compared afterwards."""
    if not recipe.simplifies:
        return Outcome(model)
    return simplify(model, integer=computes_in_integers(recipe))


def computes_in_integers(recipe: Recipe) -> bool:
    """Whether products are going to compute in 8 bit."""
    return recipe.scheme_for("MatMul", "")[0].name in ("auto", "static-int8", "dynamic-int8")


def replan_with_costs(prepared: Prepared, max_size: int | None = None, costs: Costs | None = None) -> Prepared:
    """Decide about every node by these kernel times, and raise the opset as far as that needs; see `prepare`.

    If the model cannot be converted, `auto` takes the forms that its opset has. onnxruntime runs such a model, and has
    its own QuantizeLinear and DequantizeLinear with scales for each channel.
    """
    before = prepared.plan
    if before.keeps_opset:
        return _keep_opset(prepared, before.recipe, costs)
    try:
        return _replan_and_convert(prepared, max_size, costs)
    except ModelError as error:
        if before.recipe.scheme.name != "auto":
            raise
        own = MICROSOFT in load_target(before.recipe.scheme.target).domains
        kept = _keep_opset(prepared, before.recipe.setting(domain=MICROSOFT) if own else before.recipe, costs)
        if not kept.plan.quantized():
            raise
        return replace(kept, notes=(*kept.notes, KEPT_OPSET.format(kept.model.opset, error.message)))


def _keep_opset(prepared: Prepared, recipe: Recipe, costs: Costs | None) -> Prepared:
    """Decide about every node by what the model's opset has."""
    costs = costs or load_costs(recipe.scheme.target)
    settings = Plan(recipe, with_data=prepared.plan.with_data, costs=costs, keeps_opset=True)
    return replace(prepared, plan=plan_again(prepared.model, settings))


def _replan_and_convert(prepared: Prepared, most: int | None, costs: Costs | None) -> Prepared:
    model, notes, recipe, with_data = prepared.model, prepared.notes, prepared.plan.recipe, prepared.plan.with_data
    plan = make_plan(model, recipe, with_data=with_data, costs=costs)
    newer = raised(model, plan, most)
    while newer is not model:  # a newer model may say more of its shapes, and more is quantized then
        model, notes = _newer(model, newer, notes)
        plan = make_plan(model, recipe, with_data=with_data, costs=costs)
        newer = raised(model, plan, most)
    return replace(prepared, model=model, plan=plan, notes=notes)


def _newer(model: Model, newer: Model, notes: tuple[str, ...]) -> tuple[Model, tuple[str, ...]]:
    """Make a model of a newer operator set ready, and add to the notes what was done."""
    notes += (f"opset raised from {model.opset} to {newer.opset}", *normalise(newer))
    infer_types(newer)
    return newer, notes


def raised(model: Model, plan: Plan, max_size: int | None) -> Model:
    """Return a model of the opset that a plan needs, or that weights of 4 bit need where a limit could ask for them."""
    if max_size is not None and model.opset < FOUR_BIT_OPSET and expected_bytes(model, plan) > ROOM * max_size:
        with suppress(ModelError):  # then there are none of 4 bit, which may do
            return raise_opset(model, max(plan.opset, FOUR_BIT_OPSET))
    return raise_opset(model, plan.opset)


def expected_bytes(model: Model, plan: Plan) -> int:
    """Return about what the weights take in the quantized model: a quarter of those that quantized nodes read."""
    read = {value for d in plan.quantized() for value in d.node.reads}
    return model.weight_bytes - sum(_spared(value) for value in read)


def spared_bytes(node: Node) -> int:
    """Return about how many bytes it spares to store the weights of a node in 8 bit."""
    return sum(_spared(value) for value in node.reads)


def _spared(value: Value) -> int:
    return value.constant.nbytes * 3 // 4 if value.constant is not None else 0
