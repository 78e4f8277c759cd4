"""A file that marks a run as alive; its tasks end on any machine once the file is gone.

Tests: `tests/distributed/test_lease.py`.
"""

from __future__ import annotations

import os
import time
import uuid
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Self

from onnxq.errors import OutputError

BEAT = 2.0  # seconds between two changes of the file
PATIENCE = 120.0  # seconds without a change until a task ends: network file systems show changes late


class Lease:
    """The run's side: a file that changes every few seconds, and is removed at the end.

    Args:
        folder: Where workers see it.

    Raises:
        OutputError: It cannot be written.

    """

    def __init__(self, folder: Path) -> None:
        self.path = folder.absolute() / f".onnxq.{uuid.uuid4().hex}.lease"
        self._ended = Event()
        self._thread = Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Self:
        try:
            self._write(0)
        except OSError as error:
            raise OutputError(
                f"{self.path.parent} cannot be written ({error.strerror})", "Free space there."
            ) from error
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self.path.unlink(missing_ok=True)

    def _beat(self) -> None:
        count = 0
        while not self._ended.wait(BEAT):
            count += 1
            with suppress(OSError):  # a full disk shows elsewhere
                self._write(count)

    def _write(self, count: int) -> None:
        self.path.write_text(f"{os.getpid()} {count}\n", "utf-8")


class Watch:
    """A task's side.

    Args:
        path: The file.

    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen, self._since = "", time.monotonic()

    def is_over(self) -> bool:
        """Whether the run has ended, or has not been heard of for two minutes."""
        try:
            text = self._path.read_text("utf-8")
        except FileNotFoundError:
            return True
        except OSError:  # a network that stutters
            text = self._seen
        if text != self._seen:
            self._seen, self._since = text, time.monotonic()
        return time.monotonic() - self._since > PATIENCE
