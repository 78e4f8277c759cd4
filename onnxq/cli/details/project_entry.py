"""The entry that `onnxq quantize MODEL` builds inside a project; options on the command line win over it.

Tests: `tests/cli/test_cli_project_entry.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import typer

from onnxq.cli.project import was_given
from onnxq.cli.terminal import TerminalObserver, note, warn
from onnxq.errors import ProjectError
from onnxq.pipeline.options import QuantizeOptions, declarations
from onnxq.text import counted, join_words

if TYPE_CHECKING:
    from onnxq.project.entry import Entry
    from onnxq.project.outcome import Built
    from onnxq.report import Report


@dataclass(frozen=True)
class EntryChoice:
    """The entry of a model, with what the command line changes of it.

    Attributes:
        entry: The entry to build.
        is_own: Whether the project file alone decides: its output is then replaced as in a build of the project.
        config: The project file, if it was named on the command line.

    """

    entry: Entry
    is_own: bool
    config: Path | None

    def is_up_to_date(self) -> bool:
        """Whether there is nothing to build, which is said on stderr.

        Raises:
            OnnxqError: The model misses a limit, and building it again would not help.

        """
        from onnxq.project.outcome import up_to_date

        settled = up_to_date(self.entry) if self.is_own else None
        if settled is None:
            return False
        if settled.error is not None:
            raise settled.error
        note(f"{self.entry.quantized} is up to date; --force builds it again")
        return True

    def build(self, *, force: bool, dry_run: bool, detailed: bool) -> Report:
        """Build the model, and say what it is on the data to verify on if there are such.

        Raises:
            OnnxqError: It could not be built, or misses a threshold; nothing was written.

        """
        force = force or self.is_own
        with TerminalObserver() as observer:
            from onnxq.project.build import build_model

            built = build_model(self.entry, observer=observer, force=force, dry_run=dry_run, detailed=detailed)
        assert built.report is not None
        self._say(built)
        return built.report

    def _say(self, built: Built) -> None:
        from onnxq.text import decibels

        if built.verified is not None:
            on = f" on {join_words(self.entry.verify_data)}" if self.entry.verify_data else ""
            note(f"verified{on}: {decibels(built.verified.worst_sqnr)}, {counted(built.verified.samples, 'sample')}")
        assert built.report is not None
        warn(warning for warning in built.warnings if warning not in built.report.warnings)

    def options(self) -> QuantizeOptions:
        """Return the options with paths as they are seen from the working folder."""
        entry, asked = self.entry, self.entry.options
        libraries = tuple(entry.root / library for library in asked.custom_ops)
        data = tuple(entry.data_sources(asked.data))
        return replace(asked, data=data, tokenizer=entry.tokenizer(), custom_ops=libraries)

    def verify_command(self) -> str | None:
        """Return the command that measures the model by its entry; None where it is not what the entry makes."""
        config = "" if self.config is None else f" --config {quote(str(self.config))}"
        return f"onnxq verify --project {quote(str(self.entry.quantized))}{config}" if self.is_own else None


def entry_of(
    context: typer.Context,
    model: Path,
    output: Path | None,
    options: QuantizeOptions,
    config: Path | None,
    *,
    no_config: bool,
) -> EntryChoice | None:
    """Find the entry of a model, put options of the command line over it, and name them in one line.

    Args:
        context: Of the command.
        model: The float model.
        output: Where it is to go; None for where the project or else the default has it.
        options: Of the command line.
        config: The project file; by default the nearest one.
        no_config: Whether there is to be none.

    Returns:
        None where no project file lists the model, or none is wanted.

    Raises:
        ProjectError: The project file is wrong, or lists the model several times.

    """
    from onnxq.project.file import find_project, load_project
    from onnxq.project.one_model import find_entry, flags, override

    if no_config:
        if config is not None:
            raise ProjectError("--config and --no-config contradict each other", "Leave one of them out.")
        return None
    path = config or find_project()
    if path is None:
        return None
    entry = find_entry(load_project(path), model, output)
    if entry is None:
        note(f"{path} does not list {model}: only the options given here count")
        return None
    given = [name for name in declarations() if was_given(context, name)]
    elsewhere = output is not None and output.resolve() != entry.quantized.resolve()
    changed = [*flags(given), *(["--output"] if elsewhere else [])]
    note(f"{model}: as {path} lists it" + (f", but for {join_words(changed)}" if changed else ""))
    chosen = override(entry, options, given)
    chosen = replace(chosen, quantized=output) if output is not None and elsewhere else chosen
    return EntryChoice(chosen, not changed, config)
