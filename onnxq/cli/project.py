"""`onnxq quantize` and `onnxq verify` for the models of a project.

Tests: `tests/cli/test_cli_project.py`.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from onnxq.cli.options import Format
from onnxq.cli.terminal import TerminalObserver, note, show_line, warn
from onnxq.progress import Progress
from onnxq.text import duration, printable

if TYPE_CHECKING:
    from onnxq.errors import OnnxqError
    from onnxq.project.entry import Entry, Project
    from onnxq.project.outcome import Built
    from onnxq.verification.records import Comparison
    from onnxq.warning import WarningLine


MOST_NAMES = 20  # of models that an interrupted run names
GENERAL = ("quiet", "verbose")  # parameters that every command has


class ModelVerification(NamedTuple):
    """How one model of a project did: its figures, as far as there are any, and why it failed."""

    entry: Entry
    comparison: Comparison | None
    data: str
    error: OnnxqError | None

    @property
    def state(self) -> str:
        """Whether the model passed or failed."""
        return "failed" if self.error else "passed"


def refuse_options(context: typer.Context, allowed: Collection[str]) -> None:
    """Refuse options that are about one MODEL where the project file says what to do.

    Args:
        context: Of the command.
        allowed: Names of the parameters that mean something for a project.

    Raises:
        ProjectError: Another one was given.

    """
    from onnxq.errors import ProjectError

    general = (*allowed, *GENERAL)
    given = [p for p in context.command.params if p.name not in general and was_given(context, p.name)]
    if given:
        raise ProjectError(
            f"{max(given[0].opts, key=len)} is about one MODEL, and none is named",
            "Name it, or leave the option to the project file.",
        )


def refuse_beside_model(context: typer.Context, name: str, use: str, hint: str) -> None:
    """Refuse an option that is about a project, whose use this says, where a MODEL is named."""
    from onnxq.errors import ProjectError

    if was_given(context, name):
        raise ProjectError(f"--{name} {use}, but one MODEL is named", hint)


def _worded(warning: WarningLine) -> WarningLine:
    """Return a warning that names the keys of the project file."""
    from onnxq.project.words import in_project_file

    return replace(warning, message=in_project_file(warning.message), remedy=in_project_file(warning.remedy))


def was_given(context: typer.Context, name: str | None) -> bool:
    """Whether an option stands on the command line."""
    source = context.get_parameter_source(name or "")
    return source is not None and source.name == "COMMANDLINE"


def open_project(config: Path | None, files: Sequence[Path] = ()) -> Project:
    """Read the project file, and say what else could be given where there is none; `files`: of which it is asked."""
    from onnxq.errors import ProjectError
    from onnxq.project.file import FILE, find_project, how_to_start, load_project

    path = config or find_project()
    if path is None:
        raise ProjectError(
            f"{'' if files else 'no model is given, and '}there is no {FILE} in this folder or above it",
            f"{how_to_start()} Without a project, leave out --project." if files else f"Give a MODEL. {how_to_start()}",
        )
    return load_project(path)


def build_project(
    context: typer.Context,
    config: Path | None,
    output_format: Format,
    *,
    force: bool,
    jobs: int | None,
    memory: str | None,
    executor: str | None = None,
) -> None:
    """Build all models of the project that are out of date, several at a time, and print a line as each is done."""
    refuse_options(context, ("config", "force", "jobs", "memory", "executor", "output_format"))
    from onnxq.cli.options import use_runtime
    from onnxq.targets.host import available_processors

    use_runtime((), None, memory)
    if executor is not None:
        from onnxq.distributed.engines import check_name

        check_name(executor)

    from onnxq.project.settings import refuse_settings

    project = open_project(config)
    refuse_settings(project)
    lines = _Lines([entry.quantized for entry in project.entries]) if output_format is Format.TEXT else None
    done: list[Built] = []
    observer = TerminalObserver("reading the project")

    def ended(built: Built) -> None:
        done.append(built)
        observer.label = f"{len(done)} of {len(project.entries)} models"
        if lines is not None:
            with observer.paused():
                lines.add(built.entry, built.state, _built_words(built))

    started = time.perf_counter()
    try:
        with observer:
            if executor is not None:
                _build_on(executor, project.entries, jobs or 1, observer, ended, force=force)
            else:
                _build(project.entries, jobs or available_processors(), observer, ended, force=force)
    except BaseException:  # after an interrupt, too: what is done stays
        _name_both(project.entries, done)
        raise
    finally:
        _sum_up(Counter(built.state for built in done), time.perf_counter() - started)
    done.sort(key=lambda built: project.entries.index(built.entry))
    if output_format is Format.JSON:
        _write_json(project, [_built_dict(built) for built in done])
    for built in done:
        warn(map(_worded, built.warnings), str(built.entry.quantized))
    _finish([built.error for built in done])


def _build(
    entries: Sequence[Entry], jobs: int, observer: Progress, ended: Callable[[Built], None], *, force: bool
) -> None:
    """Build models in so many processes, or one after another in this one."""
    if min(jobs, len(entries)) > 1:
        from onnxq.project.jobs import build_in_jobs

        observer.step("build")
        build_in_jobs(entries, jobs, force=force, done=ended)
        return
    from onnxq.project.build import build
    from onnxq.targets.host import limit_processors

    limit_processors(jobs)
    for number, entry in enumerate(entries, 1):
        observer.label = f"{number} of {len(entries)}, {entry.source}"
        ended(next(build([entry], force=force, observer=observer)))


def _build_on(
    engine: str,
    entries: Sequence[Entry],
    processors: int,
    observer: Progress,
    ended: Callable[[Built], None],
    *,
    force: bool,
) -> None:
    """Build models on an engine, each with so many processors."""
    from onnxq.distributed.builds import build_on

    observer.step("build")
    build_on(engine, entries, processors=processors, done=ended, force=force)


class _Lines:
    """Prints a line for each model as it is done, in columns."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._width = max((len(printable(str(path))) for path in paths), default=0)
        self._begun = False

    def add(self, entry: Entry, state: str, words: str) -> None:
        """Print the line of a model, below a head where it is the first."""
        if not self._begun:
            show_line((f"  {'model':<{self._width}}  result", "dim"))
            self._begun = True
        colour = {"failed": "bold red", "up to date": "dim"}.get(state, "green")
        name = printable(str(entry.quantized))
        show_line((f"  {name:<{self._width}}  ", ""), (f"{state:<10}", colour), (f"  {printable(words)}", ""))


def _sum_up(states: Mapping[str, int], seconds: float) -> None:
    """Say how many models came out how, and how long it took."""
    if states:
        note(f"{', '.join(f'{count} {state}' for state, count in states.items())} in {duration(seconds)}")


def _name_both(entries: Sequence[Entry], done: Sequence[Built]) -> None:
    """Name the models of a run that has ended early: those that were built, and those that were not."""
    built = [one.entry for one in done if one.state == "built"]
    over = [one.entry for one in done]
    for words, named in (("built", built), ("not built", [entry for entry in entries if entry not in over])):
        more = [f"and {len(named) - MOST_NAMES} more"] if len(named) > MOST_NAMES else []
        if named:
            note(f"{words}: {', '.join([*(str(entry.quantized) for entry in named[:MOST_NAMES]), *more])}")


def verify_project(context: typer.Context, config: Path | None, files: Sequence[Path], output_format: Format) -> None:
    """Measure the models of the project, or those that files belong to, and print a line for each."""
    refuse_options(context, ("models", "project", "config", "output_format"))
    from onnxq.project.entry import refuse_missing, select

    project = open_project(config, files)
    refuse_missing(project, files)
    entries, _ = select(project, files)
    if not entries and output_format is Format.TEXT:
        note(f"no model of {project.path} is concerned")  # known without importing onnxruntime
        return
    lines = _Lines([entry.quantized for entry in entries]) if output_format is Format.TEXT else None
    done: list[ModelVerification] = []
    started = time.perf_counter()
    try:
        with TerminalObserver("reading the project") as observer:
            for number, entry in enumerate(entries, 1):
                observer.label = f"{number} of {len(entries)}, {entry.quantized}"
                verified = _verify_one(entry, observer)
                done.append(verified)
                if lines is not None:
                    with observer.paused():
                        lines.add(entry, verified.state, _verified_words(verified))
    finally:
        _sum_up(Counter(verified.state for verified in done), time.perf_counter() - started)
    if output_format is Format.JSON:
        _write_json(project, [_verified_dict(verified) for verified in done])
    for verified in done:
        warn(_warnings(verified), str(verified.entry.quantized))
    _finish([verified.error for verified in done])


def _verify_one(entry: Entry, observer: TerminalObserver) -> ModelVerification:
    """Measure one model of a project against its float model."""
    from onnxq.errors import CheckFailed, OnnxqError
    from onnxq.project.build import measure_entry, refuse

    comparison, data = None, ""
    try:
        if not entry.quantized.exists():
            raise CheckFailed(f"{entry.quantized} does not exist", "Build it with `onnxq quantize`.")
        observer.step("verify")
        comparison, data = measure_entry(entry, entry.quantized, observer)
        refuse(entry, comparison)
    except OnnxqError as error:
        return ModelVerification(entry, comparison, data, error)
    return ModelVerification(entry, comparison, data, None)


def _built_words(built: Built) -> str:
    from onnxq.text import decibels, milliseconds, size, size_change, speed_change

    if built.error is not None:
        return _why(built.entry, built.error)
    report = built.report
    if report is None or report.output_bytes is None:
        return ""
    comparison = report.comparison
    figure = "not run" if comparison is None else decibels(comparison.worst_sqnr)
    if built.verified is not None:
        figure += f", verified {decibels(built.verified.worst_sqnr)}"
    latency = None if comparison is None else comparison.latency
    timed = "" if latency is None else f"{milliseconds(latency.quantized_ms)}, {speed_change(latency.ratio)}"
    stored = f"{size(report.output_bytes)}, {size_change(report.source_bytes, report.output_bytes)}"
    taken = duration(sum(seconds for _, seconds in report.seconds))
    return "; ".join(filter(None, (figure, timed, stored, taken)))


def _verified_words(verified: ModelVerification) -> str:
    from onnxq.text import decibels

    comparison = verified.comparison
    if verified.error is not None or comparison is None:
        return _why(verified.entry, verified.error)
    metric = comparison.metric
    fell = "" if metric is None else f"; {metric.name} {metric.float_value:.4g} → {metric.quantized_value:.4g}"
    return f"{decibels(comparison.worst_sqnr)} on {verified.data}{fell}"


def _why(entry: Entry, error: OnnxqError | None) -> str:
    """Return the sentence of an error without the path that stands before it already."""
    message = "" if error is None else error.message
    return message.removeprefix(f"{entry.quantized}: ").removeprefix(f"{entry.quantized} ")


def _built_dict(built: Built) -> dict[str, Any]:
    from onnxq.report import comparison_dict

    report = None if built.report is None else built.report.as_dict()
    data = ", ".join(built.entry.verify_data or built.entry.options.data)
    verified = None if built.verified is None else comparison_dict(built.verified, data)
    warnings = [asdict(warning) for warning in built.warnings]
    return _item(built.entry, built.state, built.error) | {
        "report": report,
        "verified": verified,
        "warnings": warnings,
    }


def _verified_dict(verified: ModelVerification) -> dict[str, Any]:
    from onnxq.report import comparison_dict

    figures = None if verified.comparison is None else comparison_dict(verified.comparison, verified.data)
    item = _item(verified.entry, verified.state, verified.error)
    return item | {"comparison": figures, "warnings": [asdict(warning) for warning in _warnings(verified)]}


def _warnings(verified: ModelVerification) -> tuple[WarningLine, ...]:
    from onnxq.report.result_warnings import result_warnings

    entry = verified.entry
    return result_warnings(verified.comparison, made_up=not (entry.verify_data or entry.options.data))


def _item(entry: Entry, state: str, error: OnnxqError | None) -> dict[str, Any]:
    why = None if error is None else error.message
    return {"float": str(entry.source), "quantized": str(entry.quantized), "state": state, "error": why}


def _write_json(project: Project, models: list[dict[str, Any]]) -> None:
    from onnxq.report import SCHEMA, to_json

    sys.stdout.write(to_json({"schema": SCHEMA, "project": str(project.path), "models": models}))


def _finish(errors: Sequence[OnnxqError | None]) -> None:
    """End with the gravest exit code, and say what to do about the first failure."""
    failed = [error for error in errors if error is not None]
    if not failed:
        return
    from onnxq.cli.terminal import say
    from onnxq.project.words import in_project_file

    say("error", f"{len(failed)} of {len(errors)} models failed", "bold red")
    if failed[0].hint:
        say("hint", in_project_file(failed[0].hint), "cyan")
    raise typer.Exit(max(int(error.exit_code) for error in failed))
