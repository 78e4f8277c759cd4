"""Plans by kernel times of the very shapes of a model, measured here or read from a file, in place of a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onnxq.errors import DataError, OutputError
from onnxq.ir import check_output
from onnxq.ir.atomic import write_together
from onnxq.ir.files import data_path
from onnxq.observer import Observer
from onnxq.quant.benchmark import benchmark, kernels_of, sample_shapes
from onnxq.quant.samples import Samples
from onnxq.steps import Prepared, replanned
from onnxq.targets import Costs, load_costs
from onnxq.targets.placement import load_target
from onnxq.targets.timings import load_timings

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
    if not load_target(recipe.scheme.target).timed:
        raise DataError(f"kernel times say nothing about the target {recipe.scheme.target}", "Leave them out.")
    schemes = {recipe.scheme_for(node.op_type, node.name)[0].name for node in ready.model.graph.walk()}
    if ready.plan.quantized() and "auto" not in schemes:
        raise DataError(
            f"recipe {recipe.name} leaves nothing to auto that kernel times could decide", "Leave them out."
        )
    timing.check()
    watch.step("benchmark")
    sample: Mapping[str, Any] | None = next(iter(given), None) if given is not None else None
    shapes = sample_shapes(ready.model, sample) if sample is not None else {}
    if timing.benchmark:
        found = benchmark(ready.model, recipe, with_data=ready.plan.with_data, shapes=shapes)
        if timing.path is not None:
            write_together({timing.path: [(json.dumps(found.as_dict(), indent=1) + "\n").encode()]})
    else:
        assert timing.path is not None
        found = load_timings(timing.path)
    again = replanned(ready, most, Costs(load_costs().table, found, shapes))
    kernels = kernels_of(ready.model, recipe, with_data=ready.plan.with_data, shapes=shapes)
    if kernels and not any(kernel in found.kernels for kernel in kernels):
        again = replace(again, notes=(*again.notes, UNKNOWN))
    return again
