"""The plan for every node of a model, without carrying it out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onnxq.calibration.stats_file import load_stats
from onnxq.data.reading import PLAIN, Reading
from onnxq.data.samples import list_sources
from onnxq.ir import ModelInput, read_model
from onnxq.pipeline.quantize import NO_TIMING, measure_sensitivity, plan_report, with_source_size
from onnxq.planning.recipe import Recipe
from onnxq.progress import Observer, following
from onnxq.report import Report
from onnxq.stages.files import open_data
from onnxq.stages.kernel_timing import Timing, replan_with_sample_shapes, replan_with_timings
from onnxq.stages.prepare import prepare


def plan(
    model: ModelInput,
    recipe: str | Path | Recipe = "auto",
    *,
    data: str | Path | Sequence[str | Path] = (),
    reading: Reading = PLAIN,
    samples: object = None,
    stats: str | Path | None = None,
    exclude: str | Sequence[str] = (),
    only: str | Sequence[str] = (),
    timing: Timing = NO_TIMING,
    sensitivity: bool = False,
    observer: Observer | None = None,
) -> Report:
    """Decide about every node; nothing is written.

    Args:
        model: A float ONNX model: its path, a ModelProto, or loaded.
        recipe: Name of a recipe, path of a TOML file, or a `Recipe`.
        data: Calibration data, one or several: with data or statistics, the plan is a static one. They are opened, and
            the first sample is run where the model leaves sizes open.
        reading: How data that are no arrays become samples.
        samples: Instead of `data`: as for `onnxq.quantize`.
        stats: Instead of data: statistics of an earlier calibration.
        exclude: A glob of nodes to leave float, or several.
        only: A glob of nodes to quantize, or several.
        timing: Kernel times to decide by.
        sensitivity: Run variants of the model on the data, to see what each node adds to the error of the outputs.
        observer: Told about each step.

    Returns:
        A report without an output: every node with its scheme and the reason.

    Raises:
        ModelError: The model cannot be read.
        DataError: The data do not fit the model, or `sensitivity` has none.
        RecipeError: The recipe is wrong.

    Examples:
        >>> import onnxq
        >>> report = onnxq.plan("model.onnx", "static-int8", data="calibration.npz")
        >>> [(node.op_type, node.scheme) for node in report.nodes][:2]
        [('Conv', 'static-int8'), ('Relu', 'static-int8')]

    """
    given_data = list_sources(data)
    with following(observer) as observer:
        observer.step("load")
        source = read_model(model)
        before = source.copy()
        observer.step("plan")
        with_data = bool(given_data) or samples is not None or stats is not None
        prepared = prepare(source, recipe, with_data=with_data, exclude=exclude, only=only)
        given = open_data(prepared.model, given_data, samples, None, reading)
        prepared = replan_with_sample_shapes(prepared, given if stats is None else None)
        prepared = replan_with_timings(prepared, given, timing, observer)
        if stats is not None:
            load_stats(stats, expected=prepared.source)
        report = measure_sensitivity(prepared, given, stats, observer) if sensitivity else plan_report(prepared)
        return with_source_size(report, before)
