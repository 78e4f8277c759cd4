"""Plans by the sizes that samples have, and by kernel times measured here or read from a file in place of a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onnxq.errors import DataError, OutputError
from onnxq.ir import Model, check_output
from onnxq.ir.atomic import write_together
from onnxq.ir.files import data_path
from onnxq.ir.segment import is_large
from onnxq.observer import Observer
from onnxq.quant.benchmark import benchmark, kernels_of, sample_shapes
from onnxq.quant.custom import foreign_node
from onnxq.quant.decision import node_key
from onnxq.quant.forms import FORMS
from onnxq.quant.samples import Samples
from onnxq.steps import Prepared, replanned
from onnxq.targets import Costs
from onnxq.targets.placement import load_target
from onnxq.targets.timings import load_timings

AUTO = "auto"
UNKNOWN = "none of the model's kernels is among the kernel times that were given: the table decided, scaled by them"


@dataclass(frozen=True)
class Timing:
    """Where kernel times come from, if not from the table that comes with onnxq.

    Attributes:
        benchmark: Measure them here.
        path: A file of them: written if they are measured, else read.
        force: Whether the file may be replaced.

    """

    benchmark: bool = False
    path: Path | None = None
    force: bool = False

    def check(self, target: Path | None = None, reads: Iterable[object] = ()) -> None:
        """Refuse a file that is in the way, is read, or is what the model goes to; raises OutputError."""
        if not self.benchmark or self.path is None:
            return
        check_output(self.path, force=self.force, reads=reads, option="--timings")
        if target is not None and self.path.resolve() in (target.resolve(), data_path(target).resolve()):
            raise OutputError(f"{self.path} is where the model goes", "Choose another place with --timings.")


def sized(ready: Prepared, given: Samples | None, most: int | None = None) -> Prepared:
    """Decide anew by the sizes of the first sample where the model leaves them open, and write layers in other forms.

    Args:
        ready: The plan with open sizes guessed.
        given: Samples, if there are any.
        most: Bytes that the file may have.

    """
    recipe, sample = ready.plan.recipe, None
    if AUTO in _schemes(ready) and load_target(recipe.scheme.target).timed:
        with suppress(DataError):  # what is wrong with a sample is said when it is calibrated on
            sample = _first(given)
    if sample is None:
        return in_other_forms(ready, most)

    def costs_of(model: Model) -> Costs:
        return Costs(ready.plan.costs.table, shapes=sample_shapes(model, sample))

    costs = costs_of(ready.model)
    return in_other_forms(replanned(ready, most, costs) if costs.shapes else ready, most, costs_of)


def in_other_forms(
    ready: Prepared, most: int | None = None, costs_of: Callable[[Model], Costs] | None = None
) -> Prepared:
    """Write layers in forms that are faster in 8 bit, as far as they work in 8 bit then; see `quant.forms`.

    Args:
        ready: The plan for the layers as they are.
        most: Bytes that the file may have.
        costs_of: Gives kernel times for a model; those of the plan without it, which know no sizes of new tensors.

    """
    recipe = ready.plan.recipe
    simple = recipe.simplifies and not is_large(ready.model) and foreign_node(ready.model) is None
    if not (ready.plan.with_data and simple and load_target(recipe.scheme.target).timed):
        return ready
    for form in FORMS:
        found, model = form.find(ready.plan, ready.model), ready.model
        wanted = {node_key(node) for node in found if recipe.scheme_for(node.op_type, node.name)[0].name == "auto"}
        while wanted:
            changed, layers = form.written(model, wanted)
            notes = (*ready.notes, form.says.format(len(wanted)))
            costs = costs_of(changed) if costs_of is not None else ready.plan.costs
            again = replace(ready, model=changed, notes=notes, original=ready.original or model)
            again = replanned(again, most, costs)
            kept = form.worth_it(again.plan, layers)
            if kept == wanted:
                ready = again
                break
            wanted = kept  # in float, the others are faster as they were
    return ready


def _first(given: Samples | None) -> Mapping[str, Any] | None:
    return next(iter(given), None) if given is not None else None


def _schemes(ready: Prepared) -> set[str]:
    recipe = ready.plan.recipe
    return {recipe.scheme_for(node.op_type, node.name)[0].name for node in ready.model.graph.walk()}


def timed(ready: Prepared, given: Samples | None, timing: Timing, watch: Observer, most: int | None = None) -> Prepared:
    """Decide anew by measured kernel times.

    Args:
        ready: The plan by the table.
        given: Samples, if there are any: the first says what shapes are that the model leaves open.
        timing: Where the times come from.
        watch: Told about the step.
        most: Bytes that the file may have.

    Raises:
        DataError: The file holds no timings, or they would decide nothing: the target is one whose times are not
            known, or the recipe says of every node what becomes of it.
        OutputError: The file cannot be written.

    """
    if not timing.benchmark and timing.path is None:
        return ready
    recipe = ready.plan.recipe
    target = load_target(recipe.scheme.target)
    if timing.benchmark and not target.at_hand:
        wrong = f"kernels of the target {target.name} are not those of onnxruntime on this machine"
        raise DataError(wrong, "Leave --benchmark out: onnxq has times that were measured there.")
    if not target.timed:
        raise DataError(f"kernel times say nothing about the target {recipe.scheme.target}", "Leave them out.")
    if ready.plan.quantized() and AUTO not in _schemes(ready):
        raise DataError(
            f"recipe {recipe.name} leaves nothing to auto that kernel times could decide", "Leave them out."
        )
    timing.check()
    watch.step("benchmark")
    sample = _first(given)
    shapes = sample_shapes(ready.model, sample) if sample is not None else {}
    if timing.benchmark:
        found = benchmark(ready.model, recipe, with_data=ready.plan.with_data, shapes=shapes)
        if timing.path is not None:
            write_together({timing.path: [(json.dumps(found.as_dict(), indent=1) + "\n").encode()]})
    else:
        assert timing.path is not None
        found = load_timings(timing.path)
    again = replanned(ready, most, Costs(ready.plan.costs.table, found, shapes))
    kernels = kernels_of(ready.model, recipe, with_data=ready.plan.with_data, shapes=shapes)
    if kernels and not any(kernel in found.kernels for kernel in kernels):
        again = replace(again, notes=(*again.notes, UNKNOWN))
    return again
