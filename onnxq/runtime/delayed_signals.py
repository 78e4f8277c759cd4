"""Signals that come while an extension module is being loaded or a process forks, which takes a fraction of a second.

An exception of a handler would go through C++ code that starts there: the process would abort, or the import fail.
Python ignores an exception in functions that it calls at a fork, and prints it.

Tests: `tests/runtime/test_delayed_signals.py`, `tests/cli/test_cli_interrupt.py`.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

LATER = 0.02  # seconds after which a signal is looked at again
# Functions that are not to be interrupted, or the class of those: a part of the name of their file, and theirs
UNDISTURBED = (
    ("importlib._bootstrap_external", "ExtensionFileLoader."),
    (os.path.join("onnxq", "runtime", "fork."), "_fork"),
)


def delay(number: int, frame: FrameType | None) -> bool:
    """Send a signal again a moment later, if it came while it would do harm.

    Args:
        number: Of the signal.
        frame: The main thread's, as handlers get it.

    Returns:
        Whether it will come again: the handler has nothing to do.

    """
    if not _is_undisturbed(frame):
        return False
    send_later(number)
    return True


def send_later(number: int) -> None:
    """Send a signal again a moment later."""
    threading.Timer(LATER, _send_again, [number]).start()


def _is_undisturbed(frame: FrameType | None) -> bool:
    while frame is not None:
        code = frame.f_code
        if any(code.co_qualname.startswith(name) and file in code.co_filename for file, name in UNDISTURBED):
            return True
        frame = frame.f_back
    return False


def _send_again(number: int) -> None:
    """Send a signal to the main thread, where it ends a call that waits: one to this thread would not."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:
        signal.raise_signal(number)
