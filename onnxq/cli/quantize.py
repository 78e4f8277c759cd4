"""`onnxq quantize`: the main job.

Tests: `tests/cli/test_cli_quantize.py`.
"""

from __future__ import annotations

import gc
import shlex
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onnxq.cli.options import (
    Config,
    ExecutorName,
    Force,
    Format,
    Jobs,
    Memory,
    NoConfig,
    OutputFormat,
    takes_options,
    use_runtime,
)
from onnxq.pipeline.options import QuantizeOptions
from onnxq.runtime.ownership import is_own_process
from onnxq.text import no_option, shell_path

Model = Annotated[
    Path | None,
    typer.Argument(
        metavar="MODEL",
        help="The float model, an .onnx file; without it, all models of the project that are out of date.",
        show_default=False,
    ),
]
if TYPE_CHECKING:
    from onnxq.report import Report

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="OUT",
        help="Path of the quantized model; MODEL.int8.onnx next to the model by default.",
        show_default=False,
    ),
]
ReportFile = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write a full report, every node included, to a .json, .md or .html file.",
        show_default=False,
    ),
]
UNREPEATED = ("quiet", "verbose", "output_format")  # which say nothing about the result
DryRun = Annotated[bool, typer.Option("--dry-run", help="Stop after the plan and show it; nothing is written.")]


@takes_options()
def quantize(
    context: typer.Context,
    model: Model = None,
    output: Output = None,
    options: QuantizeOptions = QuantizeOptions(),
    report: ReportFile = None,
    output_format: OutputFormat = Format.TEXT,
    dry_run: DryRun = False,
    force: Force = False,
    config: Config = None,
    no_config: NoConfig = False,
    jobs: Jobs = None,
    memory: Memory = None,
    executor: ExecutorName = None,
) -> None:
    """Quantize a model, compare it with the float one, and write it.

    With data the result is static: ranges are fixed, QuantizeLinear and DequantizeLinear carry them. Without, ranges
    are found at run time.

    Inside a project, MODEL is built by its entry in the project file; options given here win. Without MODEL, all
    models of the project are built that are out of date.
    """
    from onnxq.cli.details.project_entry import entry_of
    from onnxq.cli.project import build_project, refuse_beside_model

    if model is None:
        return build_project(context, config, output_format, force=force, jobs=jobs, memory=memory, executor=executor)
    hint = "Leave it out, or measure on it with `onnxq calibrate --executor`."
    refuse_beside_model(context, "executor", "builds the models of a project", hint)
    if is_own_process():
        gc.disable()  # a collection while modules are imported, and one at the end, take a twentieth of a fast run
    found = entry_of(context, model, output, options, config, no_config=no_config)
    use_runtime(options.custom_ops if found is None else (), jobs, memory)
    asked = options if found is None else found.options()
    _check(report, (model, output, asked.timings), (asked.tokenizer, *asked.data), force=force)
    if found is not None:
        wanted = force or dry_run or report is not None or output_format is not Format.TEXT
        if not wanted and found.is_up_to_date():
            return None
        result = found.build(force=force, dry_run=dry_run, detailed=report is not None)
        verify = found.verify_command() or _verify_command(result, asked)
    else:
        result = _quantized(model, output, options, force=force, dry_run=dry_run, detailed=report is not None)
        verify = _verify_command(result, options)
    result = replace(result, command=command_line(context))
    return _write(result, report, output_format, verify, dry_run=dry_run, force=force)


def _quantized(
    model: Path, output: Path | None, options: QuantizeOptions, *, force: bool, dry_run: bool, detailed: bool
) -> Report:
    """Quantize a model by the options of the command line alone."""
    from onnxq.cli.terminal import TerminalObserver

    with TerminalObserver() as observer:
        from onnxq.pipeline.quantize import quantize as quantize_model

        arguments = options.arguments(force=force)
        return quantize_model(model, output=output, dry_run=dry_run, detailed=detailed, observer=observer, **arguments)


def command_line(context: typer.Context) -> str:
    """Return the command that repeats a run, ready to paste."""
    words = ["onnxq", str(context.info_name)]
    for one in context.command.params:
        source = context.get_parameter_source(one.name or "")
        if one.name is None or source is None or source.name != "COMMANDLINE" or one.name in UNREPEATED:
            continue
        value = context.params[one.name]
        values = value if isinstance(value, list | tuple) else [value]
        if one.param_type_name == "argument":
            words += [no_option(_spelled(each)) for each in values]
        elif getattr(one, "is_flag", False):
            words += [max(one.opts, key=len)] if value else [max(one.secondary_opts, key=len)]
        else:
            words += [word for each in values for word in (max(one.opts, key=len), _spelled(each))]
    return shlex.join(words)


def _spelled(value: object) -> str:
    return str(value.value if isinstance(value, Enum) else value)


def _repeated(options: QuantizeOptions) -> list[tuple[str, str]]:
    """Return the options that `onnxq verify` needs as well to read the same data."""
    from onnxq.pipeline.options import READING, declarations

    found = []
    for name in ("data", *READING, "custom_ops"):
        one, value = declarations()[name], getattr(options, name)
        for item in value if one.many else [value]:
            if item is not None:
                found.append((one.short or one.flag, str(item)))
    return found


def _verify_command(result: Report, options: QuantizeOptions) -> str:
    """Return the command that measures a result on the same data; empty where nothing was written."""
    if result.output is None:
        return ""
    more = "".join(f" {option} {shlex.quote(value)}" for option, value in _repeated(options))
    return f"onnxq verify {shell_path(result.output)} --against {shell_path(result.source)}{more}"


def _show_next(command: str) -> None:
    """Show the command that says more about a result, ready to paste."""
    from rich.text import Text

    from onnxq.cli.terminal import TIE, show
    from onnxq.text import printable

    unseen = ", better on data that no calibration has seen" if " -d " in command else ""
    line = f"  {printable(command)}".replace(" ", TIE)
    show("", Text(f"next{unseen}:", style="dim"), Text(line, style="dim", overflow="fold"))


def _check(path: Path | None, others: Sequence[Path | None], reads: Sequence[object], *, force: bool) -> None:
    """Refuse a report that could not be written, or that another file of the run would be lost to."""
    if path is not None:
        from onnxq.errors import OutputError
        from onnxq.report import check_report_path

        check_report_path(path, force=force, reads=reads)
        if path.resolve() in {other.resolve() for other in others if other is not None}:
            raise OutputError(f"{path} is asked for twice, once as the report", "Choose another name for the report.")


def _write(
    result: Report,
    path: Path | None,
    output_format: Format,
    command: str,
    *,
    dry_run: bool,
    force: bool,
) -> None:
    """Write a report and print the product, and which command measures the result."""
    from onnxq.cli.tables import write_report
    from onnxq.cli.terminal import note, warn
    from onnxq.errors import OutputError
    from onnxq.report import write_report as save_report

    if path is not None:
        try:
            save_report(result, path, force=force)
        except OutputError as error:
            done = f"; the model {result.output} is written" if result.output is not None else ""
            raise OutputError(f"{error.message}{done}", error.hint) from error
        except KeyboardInterrupt:
            note(f"not written: {path}" + (f"; the model {result.output} is" if result.output is not None else ""))
            raise
    if result.output is not None and result.output.suffix != ".onnx":
        note(f"{result.output} is an ONNX model: most tools look for the ending .onnx")
    if result.output is not None and "\\" in result.output.name:
        note(f"{result.output} is the name of one file here: write / between folders")
    if result.comparison is not None and result.comparison.undefined():
        _warn_of_spoilt(result.source)
    write_report(result, output_format, planned=dry_run)
    if result.output is not None and output_format is Format.TEXT:
        _show_next(command)
    warn(result.warnings)


def _warn_of_spoilt(path: Path) -> None:
    """Name a weight that makes outputs of the float model NaN."""
    from onnxq.calibration.nonfinite_weights import SOUND, spoilt_sentence
    from onnxq.cli.terminal import say
    from onnxq.ir import load

    sentence = spoilt_sentence(load(path))
    if sentence:
        say("warning", f"{path}: {sentence}. {SOUND}", "bold yellow")
