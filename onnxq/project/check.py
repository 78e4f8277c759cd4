"""Static checks of models, fast enough to run before every commit: nothing is run, and onnxruntime is not imported.

Tests: `tests/project/test_project_check.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from onnxq.data.remote import is_remote
from onnxq.errors import CheckFailed, OnnxqError
from onnxq.hazards import find_hazards
from onnxq.hazards.found import BREAKING
from onnxq.hazards.processor import local_processor
from onnxq.ir import Model, Value, load
from onnxq.ir.invariants import objection
from onnxq.ir.model import STRIP_ABOVE
from onnxq.ir.proto_fields import DATA_TYPE, DIMS, GRAPH_INITIALIZER, NAME
from onnxq.ir.wire import Chunk, bytes_field, integer_field, join
from onnxq.missing import similar_model, submodule_hint
from onnxq.project.entry import Entry, Project, select
from onnxq.project.provenance import (
    INPUTS,
    changes,
    external_files,
    gather,
    recorded_comparison,
    recorded_runtime,
    was_altered,
)
from onnxq.project.rules import CheckRule, check_codes, is_ignored
from onnxq.targets.host import available_processors
from onnxq.verification.records import Comparison
from onnxq.verification.wellformed import find_defects
from onnxq.version import installed_version

BUILD = "build it with `onnxq quantize`"


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a file.

    Attributes:
        path: The file.
        rule: Its code.
        message: What is wrong, in a sentence whose subject is the path.

    """

    path: Path
    rule: CheckRule
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message} ({self.rule})"


@dataclass(frozen=True)
class Checked:
    """The models that a check read, and its findings.

    Attributes:
        models: How many models were looked at; the float and the quantized file of an entry are one.
        findings: In the order of the project file, then of the files that belong to no project.
        ignored: How many findings are switched off.

    """

    models: int
    findings: tuple[Finding, ...]
    ignored: int = 0


def check(project: Project | None, files: Sequence[Path] = (), ignore: Sequence[str] = ()) -> Checked:
    """Check the models of a project, or only those that some files belong to.

    Args:
        project: None where there is none; then the files are all that is checked.
        files: Models, data, recipes or the project file. Models outside the project only have to be well formed; other
            files outside are left alone. Without files, all models of the project are checked.
        ignore: Codes of findings to leave out, with those that the project leaves out; see `onnxq.project.rules`.

    Raises:
        ProjectError: No finding has such a code.

    """
    check_codes(ignore, "--ignore")
    entries, others = select(project, files)
    entries = [replace(entry, ignore=(*entry.ignore, *ignore)) for entry in entries]
    jobs: list[Callable[[], list[Finding]]] = [partial(find_all, entry) for entry in entries]
    jobs += [partial(check_model, path) for path in others]
    switched_off = [entry.ignore for entry in entries] + [tuple(ignore)] * len(others)
    with ThreadPoolExecutor(min(len(jobs), available_processors()) or 1) as pool:
        by_model = list(pool.map(lambda job: job(), jobs))
    found = dict.fromkeys(finding for findings in by_model for finding in findings)
    shown = [
        finding
        for findings, codes in zip(by_model, switched_off, strict=True)
        for finding in findings
        if not is_ignored(finding.rule, codes)
    ]
    unique = tuple(dict.fromkeys(shown))
    return Checked(len(entries) + len(others), unique, len(found) - len(unique))


def find_all(entry: Entry) -> list[Finding]:
    """Check one model of a project: both files well formed, the quantized one up to date and within its limits."""
    slashes = ": / goes between folders, not \\" if "\\" in entry.source.name else ""
    source, findings = _load(entry.source, f"the project file lists it{slashes}")
    if (
        source is None
        and not entry.source.exists()
        and (meant := similar_model(entry.source) or submodule_hint(entry.source))
    ):
        findings = [replace(found, message=f"{found.message}; {meant[:1].lower()}{meant[1:]}") for found in findings]
    quantized, more = _load(entry.quantized, BUILD)
    findings += [*more, *missing_verify_data(entry)]
    stale: list[Finding] = []
    if source is not None and quantized is not None:
        stale = _stale(entry, source, quantized)
    if quantized is not None:
        fresh = all(is_ignored(finding.rule, entry.ignore) for finding in stale)
        findings += stale + _limits(entry, quantized, fresh=fresh) + _hazards(entry, quantized)
    return findings


def _hazards(entry: Entry, quantized: Model) -> list[Finding]:
    """Name what the onnxruntime that is installed does to a model: refuse it, or compute it wrongly."""
    release = installed_version("onnxruntime")
    if release is None:
        return []
    found = [one.hazard for one in find_hazards(quantized, release, local_processor()) if one.here]
    said = [
        f"onnxruntime {release} is installed: {row.sentence}. {row.remedy}" for row in found if row.effect in BREAKING
    ]
    return [Finding(entry.quantized, "onnxruntime", sentence) for sentence in said]


def missing_verify_data(entry: Entry) -> list[Finding]:
    """Name data to verify with that are not there: without them, thresholds would never be measured."""
    named = [given for given in entry.verify_data if not entry.is_function(given) and not is_remote(given)]
    paths = [Path(given) for given in entry.data_sources(tuple(named))]
    said = f"does not exist; the project file lists it to verify {entry.quantized}"
    return [Finding(path, "missing-data", said) for path in paths if not path.exists()]


def check_model(path: Path) -> list[Finding]:
    """Check that a model is well formed."""
    return _load(path, "")[1]


def _load(path: Path, if_missing: str) -> tuple[Model | None, list[Finding]]:
    """Load a model, and say what is wrong with it by itself; None where it cannot be read."""
    if not path.exists():
        return None, [Finding(path, "missing", "; ".join(filter(None, ("does not exist", if_missing))))]
    try:
        model = load(path)
        external_files(path, model)
    except OnnxqError as error:
        hint = error.hint[:1].lower() + error.hint[1:].rstrip(".")
        return None, [Finding(path, "unreadable", "; ".join(filter(None, (_without(path, error.message), hint))))]
    sentences = [defect.sentence for defect in find_defects(model) if defect.is_error]
    if not sentences and (wrong := check_structure(model)):
        sentences = [wrong]
    findings = [Finding(path, "malformed", sentence) for sentence in sentences]
    if not findings and was_altered(model):
        findings.append(Finding(path, "altered", f"is not what onnxq wrote; {BUILD} again"))
    return model, findings


def check_structure(model: Model) -> str | None:
    """Ask the ONNX checker about a model without its larger weights, which it would only copy.

    Returns:
        What it objects to, on one line; None where the model is well formed.

    """

    def emptied(value: Value) -> list[Chunk]:
        tensor = value.tensor
        assert tensor is not None
        if tensor.nbytes <= STRIP_ABOVE:
            return tensor.encode(value.name, number=GRAPH_INITIALIZER)
        content = integer_field(DIMS, 0) + integer_field(DATA_TYPE, tensor.dtype) + bytes_field(NAME, value.name)
        return [bytes_field(GRAPH_INITIALIZER, content)]

    return objection(join(model.chunks(emptied, verbatim=False)))


def _stale(entry: Entry, source: Model, quantized: Model) -> list[Finding]:
    try:
        found = changes(entry, quantized.metadata.get(INPUTS), gather(entry, source), _met(entry, quantized))
    except OnnxqError as error:
        return [Finding(entry.quantized, "stale-unknown", f"may be out of date: {error.message}")]
    said: dict[CheckRule, list[str]] = {}
    for change in found:
        said.setdefault(change.rule, []).append(change.sentence)
    return [Finding(entry.quantized, rule, f"is out of date: {'; '.join(each)}") for rule, each in said.items()]


def _met(entry: Entry, quantized: Model) -> set[str]:
    """Name the limits that a build works towards and that the model keeps to: no build would be needed for them."""
    asked = entry.options
    found = set() if asked.max_size is not None and _bytes(entry, quantized) > asked.max_size else {"max-size"}
    comparison = recorded_comparison(quantized)
    for key, limits in (("min-sqnr", {"min_sqnr": asked.min_sqnr}), ("max-drop", {"max_drop": asked.max_drop})):
        given = {name: limit for name, limit in limits.items() if limit is not None}
        if not given or (comparison is not None and not _missed(comparison, given)):
            found.add(key)
    return found


def _missed(comparison: Comparison, limits: dict[str, float]) -> list[str]:
    try:
        return comparison.missed(**limits)
    except CheckFailed as error:
        return [error.message]


def _bytes(entry: Entry, quantized: Model) -> int:
    return sum(file.stat().st_size for file in (entry.quantized, *external_files(entry.quantized, quantized)))


def _limits(entry: Entry, quantized: Model, *, fresh: bool) -> list[Finding]:
    """Compare size and recorded figures with what is asked; figures of a model that is out of date say nothing."""
    findings = []
    most = entry.options.max_size
    if most is not None:
        size = _bytes(entry, quantized)
        if size > most:
            message = f"has {size:,} bytes, {size - most:,} more than the {most:,} allowed"
            findings.append(Finding(entry.quantized, "too-large", message))
    comparison = recorded_comparison(quantized) if fresh else None
    if comparison is not None:
        missed = _missed(comparison, entry.thresholds.given())
        by = recorded_runtime(quantized)
        said = [f"when it was built, {each}{f' (by {by})' if by else ''}" for each in missed]
        findings += [Finding(entry.quantized, "below-threshold", each) for each in said]
    return findings


def _without(path: Path, message: str) -> str:
    """Take the path off the beginning of a sentence, where the line names it already."""
    for beginning in (f"{path}: ", f"{path} "):
        if message.startswith(beginning):
            return message.removeprefix(beginning)
    return message
