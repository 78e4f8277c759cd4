"""The steps of the pipeline that are more than one call: each takes what the one before gave."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onnxq.errors import DataError, ModelError, NothingToQuantize
from onnxq.ir import Model, Node, Value, check_output, load
from onnxq.ir.files import check_sources, data_path, refuse_source
from onnxq.ir.opset import MIN_OPSET, make_loadable, raise_opset
from onnxq.ir.passes import normalise
from onnxq.ir.segment import LARGE, is_large
from onnxq.ir.types import infer_types
from onnxq.ir.widened import store_narrow
from onnxq.observer import Observer
from onnxq.ops.scheme import Scheme
from onnxq.quant.activations import coarsened, scheme_qparams
from onnxq.quant.bounds import exact_bounds
from onnxq.quant.calibrate import calibrate
from onnxq.quant.custom import foreign_node
from onnxq.quant.equal_constants import merge_equal
from onnxq.quant.layers import MeasuredLayers
from onnxq.quant.plan import Plan
from onnxq.quant.plan import make_plan as decide
from onnxq.quant.portable import portable_costs
from onnxq.quant.qparams import QParams
from onnxq.quant.readers import OutputWeights, trial_kinds
from onnxq.quant.recipe import Recipe, load_recipe
from onnxq.quant.samples import Samples, input_specs, open_samples, wrap_samples
from onnxq.quant.stats import Kinds, Stats, range_kinds
from onnxq.quant.stats_file import load_stats
from onnxq.quant.tuning import tune
from onnxq.simplify import Simplified, simplify
from onnxq.targets import Costs
from onnxq.version import __version__

FOUR_BIT_OPSET = 21  # of DequantizeLinear and Cast
ROOM = 0.8  # how full a file may be by estimate before it is counted


@dataclass(frozen=True)
class Prepared:
    """A float model that is ready to be quantized, and what will happen to it.

    Attributes:
        path: The file it was read from.
        source: SHA-256 of the file it was read from, as hexadecimal digits.
        model: The normalised float model, simplified where the recipe allows it, types inferred.
        plan: A decision for every node.
        notes: What normalising and simplifying did, a sentence each.
        fast: Whether nothing is to be tried, and both models compared on few samples only.
        original: The normalised model before it was simplified, which the result is compared with; None where it was
            not.

    """

    path: Path
    source: str
    model: Model
    plan: Plan
    notes: tuple[str, ...]
    fast: bool = False
    original: Model | None = None

    def baseline(self) -> Model:
        """Give the float model that the result is compared with: a copy, or one that no later step changes."""
        return self.original if self.original is not None else self.model.copy()


def prepare(
    model: Model,
    recipe: str | Path | Recipe = "auto",
    *,
    with_data: bool,
    exclude: str | Sequence[str] = (),
    only: str | Sequence[str] = (),
    fast: bool = False,
    most: int | None = None,
) -> Prepared:
    """Normalise a loaded model as far as the recipe needs, and decide about every node.

    Args:
        model: The model; it is changed, or another takes its place.
        recipe: Name of a recipe, path of a TOML file, or a `Recipe`.
        with_data: Whether there are samples or statistics.
        exclude: A glob of nodes to leave float, or several.
        only: A glob of nodes to quantize, or several.
        fast: Whether to leave out all that takes trials.
        most: Bytes that the file may have; where that could ask for weights of 4 bit, the opset that knows them is
            raised to if the model can be converted.

    """
    source = model.sha256
    chosen = (recipe if isinstance(recipe, Recipe) else load_recipe(recipe)).selecting(exclude, only)
    chosen = chosen.fast() if fast else chosen
    before = node_labels(model)
    notes = tuple(normalise(model))
    infer_types(model)
    notes += make_loadable(model)
    if model.opset < MIN_OPSET:
        with suppress(ModelError):  # then onnxruntime says what it does not know of it
            model, notes = _newer(model, raise_opset(model, MIN_OPSET), notes)
    found = simplified(model, chosen)
    notes += found.notes
    plan = Plan(chosen, {}, with_data)
    ready = replanned(Prepared(model.path or Path(), source, found.model, plan, notes, fast, found.original), most)
    ready = _portable(ready, most)
    return replace(ready, notes=(*ready.notes, *chosen.idle_globs(node_labels(ready.model), before)))


def _portable(ready: Prepared, most: int | None) -> Prepared:
    """Plan for all families of processors that the target is for, where `auto` may choose."""
    if ready.plan.recipe.scheme.name != "auto" or is_large(ready.model):
        return ready

    def plan_by(costs: Costs) -> Plan:
        return decide(ready.model, ready.plan.recipe, with_data=ready.plan.with_data, costs=costs)

    costs = portable_costs(ready.plan, plan_by)
    return ready if costs is ready.plan.costs else replanned(ready, most, costs)


def node_labels(model: Model) -> set[str]:
    """Name what a glob can match: names and operators of all nodes, bodies included."""
    return {label for node in model.graph.walk() for label in (node.name, node.op_type)}


def simplified(model: Model, recipe: Recipe) -> Simplified:
    """Simplify a model where the recipe and its target want it, and what it computes can be compared afterwards."""
    if not recipe.simplifies or foreign_node(model) is not None:
        return Simplified(model)
    products = recipe.scheme_for("MatMul", "")[0].name
    return simplify(model, integer=products in ("auto", "static-int8", "dynamic-int8"))


def replanned(ready: Prepared, most: int | None = None, costs: Costs | None = None) -> Prepared:
    """Decide about every node by these kernel times, and raise the opset as far as that needs; see `prepare`."""
    model, notes, recipe, with_data = ready.model, ready.notes, ready.plan.recipe, ready.plan.with_data
    plan = decide(model, recipe, with_data=with_data, costs=costs)
    newer = raised(model, plan, most)
    while newer is not model:  # a newer model may say more of its shapes, and more is quantized then
        model, notes = _newer(model, newer, notes)
        plan = decide(model, recipe, with_data=with_data, costs=costs)
        newer = raised(model, plan, most)
    return replace(ready, model=model, plan=plan, notes=notes)


def _newer(model: Model, newer: Model, notes: tuple[str, ...]) -> tuple[Model, tuple[str, ...]]:
    """Make a model of a newer operator set ready, and add to the notes what was done."""
    notes += (f"opset raised from {model.opset} to {newer.opset}", *normalise(newer))
    infer_types(newer)
    return newer, notes


def raised(model: Model, plan: Plan, most: int | None) -> Model:
    """Give a model of the opset that a plan needs, or that weights of 4 bit need where a limit could ask for them."""
    if most is not None and model.opset < FOUR_BIT_OPSET and expected_bytes(model, plan) > ROOM * most:
        with suppress(ModelError):  # then there are none of 4 bit, which may do
            return raise_opset(model, max(plan.opset, FOUR_BIT_OPSET))
    return raise_opset(model, plan.opset)


def expected_bytes(model: Model, plan: Plan) -> int:
    """Give about what the weights take in the quantized model: a quarter of those that quantized nodes read."""
    read = {value for d in plan.quantized() for value in d.node.inputs if value is not None}
    return model.weight_bytes - sum(_spared(value) for value in read)


def spared_bytes(node: Node) -> int:
    """Give about how many bytes it spares to store the weights of a node in 8 bit."""
    return sum(_spared(value) for value in node.inputs if value is not None)


def _spared(value: Value) -> int:
    return value.constant.nbytes * 3 // 4 if value.constant is not None else 0


def refuse_own_output(model: Model) -> None:
    """Refuse a model that onnxq has quantized already: its weights have lost what another recipe would start from.

    Raises:
        NothingToQuantize: `stamp` has marked it.

    """
    if "onnxq_version" in model.metadata:
        raise NothingToQuantize(
            f"nothing to quantize: onnxq has made {model.name} and it is quantized already", "Give the float model."
        )


def default_output(model: Path) -> Path:
    """Where the quantized model goes when nobody says: `MODEL.int8.onnx` beside the float one."""
    return model.parent / (model.name.removesuffix(".onnx") + ".int8.onnx")


def check_target(model: Path, target: Path, *, force: bool, reads: Iterable[object] = ()) -> None:
    """Refuse an output that is in the way, or that is the model or something else that is read, before any work."""
    refuse_source(target, [model], what="the model")
    check_output(target, force=force, reads=reads)
    if model.is_file() and (target.exists() or data_path(target).exists()):
        check_sources(load(model), target)


def open_data(model: Model, data: Sequence[str | Path], samples: Any, limit: int | None) -> Samples | None:
    """Open the samples that the caller gave, in whatever form; None where there are none."""
    if data and samples is not None:
        raise DataError("both files and samples are given as data", "Give one of them.")
    if not data and samples is None:
        if limit is not None:
            raise DataError("a number of samples is asked for, but no data is given", "Add --data.")
        return None
    inputs = input_specs(model)
    opened = wrap_samples(samples, inputs) if samples is not None else open_samples(data, inputs)
    return opened if limit is None else opened.limit(limit)


def layers_to_measure(plan: Plan) -> MeasuredLayers:
    """Name the layers whose weights are rounded by what they read; none where those weights are large together."""
    nodes = [d.node for d in plan.decisions if d.settings and d.settings.rounding == "output-error"]
    weights = {value: value.constant.nbytes for node in nodes for value in node.inputs if value and value.constant}
    return MeasuredLayers(nodes if sum(weights.values()) <= LARGE else ())


def measure(
    ready: Prepared,
    layers: MeasuredLayers,
    samples: Samples | None,
    stats: str | Path | Stats | None,
    watch: Observer,
    *,
    trial: bool = False,
) -> Stats:
    """Give the statistics that the plan needs: those that the caller has, or those of one pass over the samples.

    For a trial, it measures what choices are made by, and not what files and reports want besides.
    """
    values = [*ready.plan.calibrated(), *layers.values]
    if isinstance(stats, Stats):
        return stats
    if stats is not None:
        return load_stats(stats, expected=ready.source)[0]
    if not values or samples is None:
        return Stats()
    methods = ready.plan.range_methods
    kinds: Kinds = layers.kinds
    if ready.fast and methods <= {"minmax", "auto"}:
        kinds = range_kinds
    elif trial:
        kinds = trial_kinds(ready.plan, layers)
    elif "output-error" in methods or not is_large(ready.model):  # for statistics that are kept, whatever the recipe
        kinds = OutputWeights(ready.plan, layers.kinds).kinds
    roughly = trial and not layers.values  # codes of weights are chosen on second moments, bit by bit
    return calibrate(ready.model, values, samples, progress=watch.progress, kinds=kinds, trial=roughly)


Known = dict[tuple[str, Scheme, tuple[float, float]], QParams]  # by the value, its settings and its bounds


def choose_qparams(plan: Plan, stats: Stats, known: Known | None = None) -> dict[Value, QParams]:
    """Turn the statistics of every calibrated value into its scale and zero point.

    Args:
        plan: The decisions.
        stats: Of every calibrated value.
        known: What was chosen for other plans from the same statistics, which is added to: a range of least error is
            found among hundreds.

    """
    values = plan.calibrated()
    stats.require(value.name for value in values)
    known, chosen = {} if known is None else known, {}
    for value in values:
        owner = plan.range_owner(value)
        key = owner.name, plan.range_settings(owner), exact_bounds(owner)
        if key not in known:
            known[key] = scheme_qparams(stats[owner.name], *key[1:])
        chosen[value] = known[key]
    return coarsened(plan, chosen)


def stamp(model: Model, ready: Prepared) -> Model:
    """Finish a quantized model: in the form that is fastest, nothing stored twice, with a record of what made it."""
    tune(model, ready.plan.recipe.scheme.target)
    if not is_large(model):
        merge_equal(model)
    store_narrow(model)
    model.metadata["onnxq_version"] = __version__
    model.metadata["onnxq_recipe"] = ready.plan.recipe.to_toml()
    model.metadata["onnxq_source_sha256"] = ready.source
    if ready.plan.costs.timings is not None:
        model.metadata["onnxq_timings"] = json.dumps(ready.plan.costs.timings.as_dict(), separators=(",", ":"))
    return model
