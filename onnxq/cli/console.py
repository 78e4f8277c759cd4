"""A console of Rich that outlives the reader of its messages.

Tests: `tests/cli/test_cli_logs.py`.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from rich.console import Console


class SteadyConsole(Console):
    """Goes on without stderr where its reader has gone, as with `2>&1 | head`; without a reader of stdout, it ends."""

    def on_broken_pipe(self) -> None:
        """Write no more messages; Rich would silence stdout instead, and exit with 1.

        Raises:
            BrokenPipeError: It was stdout.

        """
        if self.file is not sys.stderr:
            raise BrokenPipeError
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())
