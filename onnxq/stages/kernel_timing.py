"""Plans by the sizes that samples have, and by kernel times measured here or read from a file in place of a table.

Tests: `tests/stages/test_sample_shapes.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onnxq.data.samples import Samples
from onnxq.errors import DataError, OutputError
from onnxq.ir import Model, check_output
from onnxq.ir.storage.atomic_write import write_together
from onnxq.ir.storage.files import data_path
from onnxq.planning.benchmark import benchmark, candidate_kernels, sample_shapes
from onnxq.planning.planner import plan_again
from onnxq.planning.worthwhile import worthwhile
from onnxq.progress import Observer
from onnxq.stages.prepare import replan_with_costs
from onnxq.stages.prepared import Prepared
from onnxq.stages.substitution import substitute_layers
from onnxq.targets import Costs
from onnxq.targets.target import load_target
from onnxq.targets.timings import load_timings

AUTO = "auto"
UNKNOWN = "none of the model's kernels is among the kernel times that were given: the table decided, scaled by them"


@dataclass(frozen=True)
class Timing:
    """Sources of kernel times other than the tables that come with onnxq.

    Attributes:
        benchmark: Measure them here.
        path: A file of them: written if they are measured, else read.
        force: Whether the file may be replaced; `quantize` with `force` replaces it, too.

    """

    benchmark: bool = False
    path: Path | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.path, str):
            object.__setattr__(self, "path", Path(self.path))

    def check(self, target: Path | None = None, reads: Iterable[object] = ()) -> None:
        """Refuse a file that is in the way, is read, or is what the model goes to; raises OutputError."""
        if not self.benchmark or self.path is None:
            return
        check_output(self.path, force=self.force, reads=reads, option="--timings")
        if target is not None and self.path.resolve() in (target.resolve(), data_path(target).resolve()):
            raise OutputError(f"{self.path} is where the model goes", "Choose another place with --timings.")


def replan_with_sample_shapes(prepared: Prepared, samples: Samples | None, max_size: int | None = None) -> Prepared:
    """Decide again by the sizes of the first sample if the model leaves them open, and write layers in other forms.

    Args:
        prepared: The plan with open sizes guessed.
        samples: Samples, if there are any.
        max_size: Bytes that the file may have.

    """
    recipe, sample = prepared.plan.recipe, None
    if AUTO in _schemes(prepared) and load_target(recipe.scheme.target).timed:
        with suppress(DataError):  # what is wrong with a sample is said when it is calibrated on
            sample = _first(samples)
    if sample is None:
        return substitute_layers(prepared, max_size)

    def costs_of(model: Model) -> Costs:
        return prepared.plan.costs.with_shapes(sample_shapes(model, sample))

    costs = costs_of(prepared.model)
    return substitute_layers(
        replan_with_costs(prepared, max_size, costs) if costs.shapes else prepared, max_size, costs_of
    )


def _first(given: Samples | None) -> Mapping[str, Any] | None:
    return next(iter(given), None) if given is not None else None


def _schemes(prepared: Prepared) -> set[str]:
    recipe = prepared.plan.recipe
    return {recipe.scheme_for(node.op_type, node.name)[0].name for node in prepared.model.graph.walk()}


def replan_with_timings(
    prepared: Prepared, samples: Samples | None, timing: Timing, observer: Observer, max_size: int | None = None
) -> Prepared:
    """Decide again by measured kernel times, or whether the plan by the table is worthwhile as a whole.

    Args:
        prepared: The plan by the table.
        samples: Samples, if there are any: the first says what shapes are that the model leaves open.
        timing: Where the times come from.
        observer: Told about the step.
        max_size: Bytes that the file may have.

    Raises:
        DataError: The file holds no timings, or they would decide nothing: the target is one whose times are not
            known, or the recipe says of every node what becomes of it.
        OutputError: The file cannot be written.

    """
    if not timing.benchmark and timing.path is None:
        return _stored_unless_worthwhile(prepared)
    recipe = prepared.plan.recipe
    target = load_target(recipe.scheme.target)
    if timing.benchmark and not target.at_hand:
        wrong = f"kernels of the target {target.name} are not those of onnxruntime on this machine"
        raise DataError(wrong, "Leave --benchmark out: onnxq has times that were measured there.")
    if not target.timed:
        raise DataError(f"kernel times say nothing about the target {recipe.scheme.target}", "Leave them out.")
    if prepared.plan.quantized() and AUTO not in _schemes(prepared):
        raise DataError(
            f"recipe {recipe.name} leaves nothing to auto that kernel times could decide", "Leave them out."
        )
    timing.check()
    observer.step("benchmark")
    sample = _first(samples)
    shapes = sample_shapes(prepared.model, sample) if sample is not None else {}
    if timing.benchmark:
        found = benchmark(prepared.model, recipe, with_data=prepared.plan.with_data, shapes=shapes)
        if timing.path is not None:
            write_together({timing.path: [(json.dumps(found.as_dict(), indent=1) + "\n").encode()]})
    else:
        assert timing.path is not None
        found = load_timings(timing.path)
    again = replan_with_costs(prepared, max_size, Costs(prepared.plan.costs.table, found, shapes))
    kernels = candidate_kernels(prepared.model, recipe, with_data=prepared.plan.with_data, shapes=shapes)
    if kernels and not any(kernel in found.kernels for kernel in kernels):
        again = replace(again, notes=(*again.notes, UNKNOWN))
    return again


def _stored_unless_worthwhile(prepared: Prepared) -> Prepared:
    """Let what is left to `auto` compute in float, with weights stored in 8 bit, where all of it gains too little."""
    if AUTO not in _schemes(prepared) or worthwhile(prepared.plan):
        return prepared
    return stored_only(prepared) or prepared


def stored_only(prepared: Prepared) -> Prepared | None:
    """Let what is left to `auto` compute in float, with weights stored in 8 bit; None where nothing would be stored."""
    plan = plan_again(prepared.model, replace(prepared.plan, choices={}, clipped={}, stores_only=True))
    return replace(prepared, plan=plan) if plan.quantized() else None
