"""What goes where: the product to stdout, talk and progress to stderr."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from rich.console import Console, RenderableType
from rich.text import Text

from onnxq.words import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

# Columns where stdout is no terminal: nothing is cut or wrapped, so that lines can be searched
FILE_WIDTH = 500
TIE = "\ue000"  # a space at which no line is broken; Rich breaks at every other one
STEPS = {
    "load": "reading the model",
    "plan": "planning",
    "benchmark": "timing kernels",
    "rescale": "measuring channels",
    "calibrate": "calibrating",
    "search": "choosing what stays float",
    "round": "rounding weights",
    "rewrite": "rewriting",
    "verify": "comparing with the float model",
    "metric": "measuring the metric",
    "families": "comparing families of processors",
    "layers": "comparing layers",
    "save": "writing",
    "run": "running",
}


def stdout() -> Console:
    """Give the console for the product; colours only on a terminal, and none with NO_COLOR."""
    return _console(sys.stdout) if _is_terminal(sys.stdout) else _console(sys.stdout, FILE_WIDTH)


def stderr() -> Console:
    """Give the console for talk."""
    return _console(sys.stderr)


def _console(stream: TextIO, width: int | None = None) -> Console:
    """Make a console that takes for a terminal what is one: FORCE_COLOR writes no escape codes into a file or a log."""
    return Console(
        file=stream, force_terminal=_is_terminal(stream), highlight=False, emoji=False, markup=False, width=width
    )


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def show(*renderables: RenderableType) -> None:
    """Print to stdout, without blanks at the ends of lines."""
    console = stdout()
    with console.capture() as capture:
        for renderable in renderables:
            console.print(renderable)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in capture.get().replace(TIE, " ").splitlines()))


def say(label: str, message: str, style: str) -> None:
    """Print one labelled line to stderr."""
    stderr().print(Text.assemble((f"{label}: ", style), printable(message)), soft_wrap=True)


def note(message: str) -> None:
    """Print one line of talk to stderr."""
    stderr().print(Text(printable(message), style="dim"), soft_wrap=True)


class TerminalObserver:
    """Shows the step at work and how far it is, on a terminal; elsewhere it is silent. It is gone when all is done.

    What a user's function prints meanwhile, which gives data or measures, is talk as well: stdout is for the product.
    """

    def __init__(self) -> None:
        self._talk = redirect_stdout(sys.stderr)
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> TerminalObserver:
        self._talk.__enter__()
        console = stderr()
        if console.is_terminal and not console.is_dumb_terminal:
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

            self._progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[count]}"),
                TimeRemainingColumn(compact=True),
                console=console,
                transient=True,
            )
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
        self._talk.__exit__(kind, error, trace)

    def step(self, name: str) -> None:
        """Show the step that begins instead of the one before."""
        if self._progress is None:
            return
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(STEPS.get(name, name), total=None, count="")

    def progress(self, done: int, total: int | None) -> None:
        """Show how far the step is."""
        if self._progress is not None and self._task is not None:
            count = f"{done} samples" if total is None else f"{done} of {total} samples"
            self._progress.update(self._task, completed=done, total=total, count=count)
