"""Streams: the product goes to stdout, messages and progress to stderr.

Tests: `tests/cli/test_cli_logs.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from enum import Enum
from errno import ENOSPC
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from onnxq.progress import Progress
from onnxq.text import counted, duration, printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from onnxq.cli.progress_bar import Bar
    from onnxq.warning import WarningLine

# Columns where stdout is no terminal: nothing is cut or wrapped, so that lines can be searched
FILE_WIDTH = 500
PATIENCE = 2.0  # seconds; shorter runs leave no lines about their steps
SHOWN = 0.05  # seconds; a step that took less and counted nothing did nothing
TIE = "\ue000"  # a space at which no line is broken; Rich breaks at every other one


class Voice(Enum):
    """How much is written to stderr, apart from warnings and errors."""

    QUIET = "quiet"  # nothing
    USUAL = "usual"  # a bar on a terminal, elsewhere a line for each step
    VERBOSE = "verbose"  # a line for each step on a terminal, too


ERASE = "\r\x1b[2K\x1b[?25h"  # the line of the cursor, which comes back
_VOICE: ContextVar[Voice] = ContextVar("onnxq_voice", default=Voice.USUAL)
_bars: list[Bar] = []  # which this process draws


def voice() -> Voice:
    """Return how much the command was asked to say."""
    return _VOICE.get()


def speak(wanted: Voice) -> None:
    """Set the verbosity from now on."""
    _VOICE.set(wanted)


def stdout() -> Console:
    """Return the console for the product; colours only on a terminal, and none with NO_COLOR."""
    return _console(sys.stdout) if _is_terminal(sys.stdout) else _console(sys.stdout, FILE_WIDTH)


def stderr() -> Console:
    """Return the console for talk."""
    return _console(sys.stderr)


def _console(stream: TextIO, width: int | None = None) -> Console:
    """Make a console that takes for a terminal what is one: FORCE_COLOR writes no escape codes into a file or a log."""
    from onnxq.cli.console import SteadyConsole  # --help needs none of Rich

    return SteadyConsole(
        file=stream, force_terminal=_is_terminal(stream), highlight=False, emoji=False, markup=False, width=width
    )


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def show(*renderables: RenderableType) -> None:
    """Print to stdout, without blanks at the ends of lines, unless nothing but warnings and errors is wanted."""
    if voice() is Voice.QUIET:
        return
    console = stdout()
    with console.capture() as capture:
        for renderable in renderables:
            console.print(renderable)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in capture.get().replace(TIE, " ").splitlines()))


def show_line(*parts: tuple[str, str]) -> None:
    """Print one line to stdout, each part in its style, and write it out at once; not where nothing is wanted."""
    from rich.text import Text

    show(Text.assemble(*parts))
    sys.stdout.flush()


def erase_bar() -> None:
    """Take a bar away from any thread, as the last thing that this process does with it."""
    if _bars:
        sys.stderr.write(ERASE)


def erase_line() -> None:
    """Take away a bar that another process has drawn, which cannot do it any more."""
    if _is_terminal(sys.stderr) and os.environ.get("TERM") not in ("dumb", "unknown"):
        sys.stderr.write(ERASE)


def say(label: str, message: str, style: str) -> None:
    """Print one labelled line to stderr."""
    from rich.text import Text

    stderr().print(Text.assemble((f"{label}: ", style), printable(message)), soft_wrap=True)


def warn(warnings: Iterable[WarningLine], about: str = "") -> None:
    """Print warnings to stderr, with what to do about each; -q does not silence them.

    Args:
        warnings: Printed in their order, equal ones once.
        about: Which file they are about, where there are several.

    """
    for warning in dict.fromkeys(warnings):
        say("warning", f"{about}: {warning}" if about else str(warning), "bold yellow")


def note(message: str) -> None:
    """Print one line of talk to stderr, unless nothing but warnings and errors is wanted.

    A log on a full disk is no reason to stop.
    """
    if voice() is Voice.QUIET:
        return
    from rich.text import Text

    try:
        stderr().print(Text(printable(message), style="dim"), soft_wrap=True)
    except OSError as error:
        if error.errno != ENOSPC:
            raise


class TerminalObserver(Progress):
    """Shows the step at work and how far the run is: a bar on a terminal, elsewhere a line as each step ends.

    Output of a user's function that gives data or measures goes to stderr, too: stdout is for the product.

    Args:
        label: The model at work, if there are several: the command says when one is done, and steps leave no lines.

    """

    def __init__(self, label: str = "") -> None:
        self._opened: float | None = None
        super().__init__()
        self.label = label
        self._talk = redirect_stdout(sys.stderr)
        self._bar: Bar | None = None
        self._lines: list[str] = []  # about steps that are over, not written yet

    def _begin(self) -> None:
        """Begin to follow a run; the time in front of the first one, in which modules are imported, counts as well."""
        super()._begin()
        if self._opened is not None:
            self._started, self._opened = self._opened, None

    def __enter__(self) -> TerminalObserver:
        self._opened = self._clock()
        self._talk.__enter__()
        console = stderr()
        if voice() is not Voice.QUIET and console.is_terminal and not console.is_dumb_terminal:
            from onnxq.cli.progress_bar import Bar

            self._bar = Bar(self, console)
            self._bar.start()
            _bars.append(self._bar)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            _bars.remove(self._bar)
        self._talk.__exit__(kind, error, trace)
        if kind is None and self.name and not self.label:
            self._leave_line()
            if self._is_long():
                note(f"done in {duration(self._taken())}")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Take the bar away for as long as something of the product is printed."""
        self._talk.__exit__(None, None, None)
        if self._bar is not None:
            self._bar.stop()
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.start()
            self._talk.__enter__()

    def step(self, name: str) -> None:
        """Leave a line of the step that is over, where lines are wanted."""
        self._leave_line()
        super().step(name)

    def mention(self, sentence: str) -> None:
        """Write a line of talk at once, above the bar if there is one."""
        line = f"{self.label}: {sentence}" if self.label else sentence
        if self._bar is not None:
            self._bar.write_above(line)
        else:
            note(line)

    def _leave_line(self) -> None:
        """Keep a line about the step that is over; what is kept is written once the run turns out to be a long one."""
        wanted = voice() is Voice.VERBOSE or self._bar is None
        if not self.name or self.label or not wanted:
            return
        sentence, unit = self.words
        count = f"{counted(self.done, unit)}, " if self.done and unit else ""
        _, seconds = self.seconds()[-1]
        if count or seconds >= SHOWN:
            self._lines.append(f"{sentence}: {count}{duration(seconds)}")
        if self._is_long():
            for line in self._lines:
                note(line)
            self._lines.clear()

    def _is_long(self) -> bool:
        return voice() is Voice.VERBOSE or self._taken() >= PATIENCE

    def _taken(self) -> float:
        return sum(seconds for _, seconds in self.seconds())
