"""A progress bar for terminals: one line for the whole run, removed at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from onnxq.text import counted, duration, printable

if TYPE_CHECKING:
    from onnxq.progress import Progress

REFRESHES = 8  # a second
BAR = 24  # columns
WIDE = 70  # columns of a terminal that everything fits into


class Bar:
    """Draws the step at work, the share of the run that is over, the time that it has taken and that is left.

    Args:
        progress: What is drawn; it is looked at several times a second.
        console: Of a terminal.

    """

    def __init__(self, progress: Progress, console: Console) -> None:
        self._progress = progress
        self._spinner = Spinner("dots")
        self._live = Live(self, console=console, refresh_per_second=REFRESHES, transient=True)

    def start(self) -> None:
        """Begin to draw; the cursor stays, or Ctrl-Z and a kill would leave the shell without one."""
        self._live.start()
        self._live.console.show_cursor(True)

    def stop(self) -> None:
        """Take the bar away."""
        self._live.stop()

    def write_above(self, line: str) -> None:
        """Write a line that stays."""
        self._live.console.print(Text(printable(line), style="dim"), soft_wrap=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw what is known now; on a narrow terminal without the bar, and with the words cut off."""
        progress = self._progress
        left = progress.left
        wide = options.max_width >= WIDE
        share = f"{100 * progress.share:3.0f} %" if left is not None else ""
        times = duration(progress.elapsed)
        if left is not None:
            times += f", {duration(left)} left"
        grid = Table.grid(padding=(0, 1, 0, 0), expand=False)
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True)
        said = Text(printable(words(progress)))
        beside = sum(len(text) + 1 for text in (share, times) if text) + (BAR + 1 if wide else 0)
        said.truncate(max(options.max_width - beside - 3, 1), overflow="ellipsis")  # figures stay whole
        cells: list[Spinner | Text | ProgressBar] = [self._spinner, said]
        if wide:
            grid.add_column(min_width=BAR)
            total = 1.0 if left is not None else None
            cells.append(ProgressBar(total=total, completed=progress.share, width=BAR, pulse=total is None))
        for text in (share, times):
            grid.add_column(no_wrap=True)
            cells.append(Text(text, style="dim" if text is times else ""))
        grid.add_row(*cells)
        yield grid


def words(progress: Progress) -> str:
    """Say what the step at work does, and how many of what it counts are done: `calibrating, 27 of 100 samples`."""
    sentence, unit = progress.words
    count = count_words(progress.done, progress.total, unit)
    return ", ".join(part for part in (progress.label, sentence, count) if part) or "starting"


def count_words(done: int, total: int | None, unit: str) -> str:
    """Write a count; empty where nothing is counted."""
    if not unit or (not done and not total):
        return ""
    return f"{done} of {counted(total, unit)}" if total else counted(done, unit)
