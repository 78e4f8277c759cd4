"""Build the models of a project that are out of date, and measure what the built ones lose.

Tests: `tests/project/test_project_build.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from onnxq.data.samples import input_specs
from onnxq.data.synthetic import synthetic_samples
from onnxq.data.user_function import searched_first
from onnxq.errors import CheckFailed, DataError, InvalidResult, OnnxqError
from onnxq.ir import Model, infer_types, load
from onnxq.ir.passes import normalise
from onnxq.ir.proto_fields import MODEL_METADATA
from onnxq.ir.storage.files import data_path, needs_external_data, written_bytes
from onnxq.ir.wire import entry_field
from onnxq.pipeline.options import QuantizeOptions
from onnxq.pipeline.quantize import quantize
from onnxq.pipeline.request import Quantized
from onnxq.progress import Observer, Silent
from onnxq.project.check import missing_verify_data
from onnxq.project.entry import Entry
from onnxq.project.outcome import Built, up_to_date
from onnxq.project.provenance import gather, record, written_hash
from onnxq.report import Report
from onnxq.runtime.custom_ops import register_custom_ops
from onnxq.stages.files import open_data
from onnxq.verification.compare import compare
from onnxq.verification.records import Comparison
from onnxq.verification.user_metric import compare_metric

GIVE_LIBRARY = "Name the library of its custom operators under 'custom-ops'."
RANDOM_SAMPLES = 8
SPARE_BYTES = 64  # figures of another model may take more digits


class RecordTooLargeError(CheckFailed):
    """A model fits, but not with the record of what it was made of: so many bytes."""

    def __init__(self, message: str, hint: str = "", *, recorded: int = 0) -> None:
        super().__init__(message, hint)
        self.recorded = recorded


def build(entries: Iterable[Entry], *, force: bool = False, observer: Observer | None = None) -> Iterator[Built]:
    """Build models one after another; one that fails does not keep the others from being built.

    Args:
        entries: The models.
        force: Build those that are up to date as well.
        observer: Told about each step.

    """
    for entry in entries:
        settled = None if force else up_to_date(entry)
        if settled is not None:
            yield settled
            continue
        try:
            yield build_model(entry, observer=observer or Silent())
        except OnnxqError as error:
            yield Built(entry, "failed", error=error)


def build_model(
    entry: Entry, *, observer: Observer, force: bool = True, dry_run: bool = False, detailed: bool = False
) -> Built:
    """Build a model, up to date or not.

    Args:
        entry: The model.
        observer: Told about each step.
        force: Replace an old one.
        dry_run: Stop after the plan; nothing is written.
        detailed: Put histograms and layers into the report, too; see `onnxq.pipeline.quantize.quantize`.

    Raises:
        OnnxqError: It could not be built, or misses a threshold; nothing was written.

    """
    wanted = gather(entry, load(entry.source))
    for missing in missing_verify_data(entry):
        raise DataError(f"{missing.path} {missing.message}", "Put it there, or correct 'verify-data'.")

    verified: list[Comparison] = []

    def accept(result: Quantized) -> Mapping[str, str]:
        comparison = result.report.comparison
        if comparison is not None and _to_be_measured(entry, comparison):
            observer.step("verify")
            comparison, _ = measure_entry(entry, result.encoded or result.model, observer, blame=InvalidResult)
            verified.append(comparison)
        if comparison is not None:
            refuse(entry, comparison)
        elif entry.thresholds.given():
            raise CheckFailed(f"{entry.quantized} cannot be run here, so its thresholds are unknown", GIVE_LIBRARY)
        outside = entry.options.external_data or needs_external_data(result.model)
        data_file = data_path(entry.quantized).name if outside else None
        entries = record(wanted, written_hash(result.model, data_file), comparison, result.report.families)
        recorded = sum(len(entry_field(MODEL_METADATA, *item)) for item in entries.items())
        _refuse_size(entry, written_bytes(result.model, data_file, result.encoded), recorded)
        return entries

    how: dict[str, Any] = {"accept": accept, "observer": observer, "dry_run": dry_run, "detailed": detailed}
    try:
        report = _quantized(entry, 0, force=force, **how)
    except RecordTooLargeError as error:  # how long the record is shows only now
        report = _quantized(entry, error.recorded, force=force, **how)
    return Built(entry, "built", report, verified=verified[-1] if verified else None)


def _to_be_measured(entry: Entry, found: Comparison) -> bool:
    """Whether a result is held to figures that are not known yet: of other data, of more samples, or a metric's."""
    return bool(entry.verify_data) or (
        entry.options.metric is not None and (entry.options.fast or found.metric is None)
    )


def _quantized(entry: Entry, room: int, *, force: bool, **how: Any) -> Report:
    """Quantize and write a model, which has to leave so many bytes of what it may take for its record."""
    with at_home(entry):
        arguments = _options(entry, room).arguments(force=force)
        return quantize(entry.source, output=entry.quantized, **how, **arguments)


def _options(entry: Entry, room: int) -> QuantizeOptions:
    """Return what a build works towards, paths as they are seen from the working folder."""
    asked = entry.options
    data = tuple(entry.data_sources(asked.data))
    found = replace(asked, recipe=entry.recipe_source(), data=data, tokenizer=entry.tokenizer())
    if asked.metric is None or asked.max_drop is None or not data or _labelled_elsewhere(entry):
        found = replace(found, metric=None, max_drop=None)  # `accept` alone holds the result to them
    return found if asked.max_size is None else replace(found, max_size=max(asked.max_size - room, 1))


def _labelled_elsewhere(entry: Entry) -> bool:
    """Whether only the data to verify on have labels, which a metric may need."""
    if not entry.verify_data:
        return False
    model = load(entry.source)
    infer_types(model)
    opened = [
        open_data(model, entry.data_sources(data), None, None, entry.reading(), passes=1, shared=True)
        for data in (entry.options.data, entry.verify_data)
    ]
    calibrating, verifying = (samples is not None and bool(samples.labels()) for samples in opened)
    return verifying and not calibrating


def measure_entry(
    entry: Entry,
    quantized: Path | bytes | Model,
    observer: Observer | None = None,
    blame: type[OnnxqError] = CheckFailed,
) -> tuple[Comparison, str]:
    """Compare a quantized model with its float model on the data that the project file names for that.

    Returns:
        The comparison, with the metric if there is one, and what it was measured on.

    Raises:
        OnnxqError: As `onnxq.verification.compare.compare`, with `blame` where the quantized model is at fault, and as
            `onnxq.verification.user_metric.compare_metric`.

    """
    baseline = load(entry.source)
    infer_types(baseline)
    data, limit = (entry.verify_data, None) if entry.verify_data else (entry.options.data, entry.options.samples)
    with at_home(entry):
        samples = open_data(baseline, entry.data_sources(data), None, limit, entry.reading(), passes=2, shared=True)
        normalise(baseline)  # as for the build: onnxruntime refuses some float models as they come
        if samples is None:
            samples = synthetic_samples(baseline, input_specs(baseline), RANDOM_SAMPLES)
        progress = (observer or Silent()).progress
        comparison = compare(baseline, quantized, samples, latency=False, progress=progress, blame=blame)
        if entry.options.metric is not None:
            metric = compare_metric(entry.options.metric, baseline, quantized, samples, progress=progress)
            comparison = replace(comparison, metric=metric)
        return comparison, samples.describe(comparison.samples)


def refuse(entry: Entry, comparison: Comparison) -> None:
    """Raise CheckFailed where a comparison misses the thresholds of a model."""
    missed = comparison.missed(**entry.thresholds.given())
    if missed:
        raise CheckFailed(
            f"{entry.quantized}: {'; '.join(missed)}",
            "Leave sensitive nodes float with 'exclude', give more data, or lower the threshold.",
        )


def _refuse_size(entry: Entry, size: int, recorded: int) -> None:
    total, most = size + recorded, entry.options.max_size
    if most is not None and total > most:
        raise RecordTooLargeError(
            f"{entry.quantized} would have {total:,} bytes, {total - most:,} more than the {most:,} allowed",
            "Leave less of it float, or raise 'max-size'.",
            recorded=recorded + SPARE_BYTES,
        )


@contextmanager
def at_home(entry: Entry) -> Iterator[None]:
    """Let functions be imported from the project's folder, wherever onnxq is called, and know its custom operators."""
    for library in entry.options.custom_ops:
        register_custom_ops(entry.root / library)
    with searched_first(entry.root):
        yield
