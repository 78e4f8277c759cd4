"""`onnxq check`: list faults of a repository's models without running them.

Tests: `tests/cli/test_cli_project.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from onnxq.cli.completion import codes
from onnxq.cli.options import Config, Format, OutputFormat

Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILES",
        help="Models, data or recipes; only the models that they belong to are checked. All by default.",
        show_default=False,
    ),
]
Ignore = Annotated[
    list[str],
    typer.Option(
        "--ignore",
        metavar="CODE",
        help="Leave findings with this code out, such as stale-version; stale stands for all that begin so. "
        "May be given several times.",
        show_default=False,
        autocompletion=codes,
    ),
]


def check(
    files: Files = [],  # noqa: B006  (typer reads the default and never hands it out)
    ignore: Ignore = [],  # noqa: B006
    config: Config = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Find models that are missing, damaged, stale or too large.

    Or below a threshold when they were built; nothing is run.

    The models are those of the project file. Models outside it, given as FILES, have to be well formed.

    Nothing is written. Exit code 1 if there is a finding.
    """
    from onnxq.cli.terminal import note
    from onnxq.errors import ExitCode
    from onnxq.project.entry import refuse_missing, select
    from onnxq.project.file import find_project, load_project
    from onnxq.project.rules import check_codes
    from onnxq.text import counted, printable

    check_codes(ignore, "--ignore")

    found = config or find_project()
    project = load_project(found) if found is not None or not files else None
    refuse_missing(project, files)
    if files and output_format is Format.TEXT and not any(select(project, files)):
        folder = next((file for file in files if file.is_dir()), None)
        where = f": {printable(str(folder))} is a folder, and models are named as files" if folder else ""
        note(f"no model is concerned{where}")  # known without importing onnx, which takes most of the time
        return
    from onnxq.project.check import check as look

    checked = look(project, files, ignore)
    if output_format is Format.JSON:
        from onnxq.report import SCHEMA, to_json

        findings = [{"path": str(f.path), "rule": f.rule, "message": f.message} for f in checked.findings]
        result = {"schema": SCHEMA, "passed": not findings, "models": checked.models}
        sys.stdout.write(to_json({**result, "ignored": checked.ignored, "findings": findings}))
    else:
        for finding in checked.findings:
            sys.stdout.write(f"{printable(str(finding))}\n")
        said = counted(len(checked.findings), "finding") if checked.findings else "all is well"
        left_out = f", {checked.ignored} ignored" if checked.ignored else ""
        note(f"{counted(checked.models, 'model')} checked: {said}{left_out}")
    if checked.findings:
        raise typer.Exit(int(ExitCode.CHECK_FAILED))
