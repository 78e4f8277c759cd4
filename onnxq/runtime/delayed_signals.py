"""Signals that come while an extension module is being loaded, which takes a fraction of a second.

An exception of a handler would go through C++ code that starts there: the process would abort, or the import fail.

Tests: `tests/runtime/test_delayed_signals.py`, `tests/cli/test_cli_interrupt.py`.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType

LATER = 0.02  # seconds after which a signal is looked at again
IMPORTS = "importlib._bootstrap_external"  # the module of Python that loads extension modules


def delay(number: int, frame: FrameType | None) -> bool:
    """Send a signal again a moment later, if it came while an extension module was being loaded.

    Args:
        number: Of the signal.
        frame: The main thread's, as handlers get it.

    Returns:
        Whether it will come again: the handler has nothing to do.

    """
    if not _loads_extension(frame):
        return False
    threading.Timer(LATER, _send_again, [number]).start()
    return True


def _loads_extension(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_qualname.startswith("ExtensionFileLoader.") and IMPORTS in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def _send_again(number: int) -> None:
    """Send a signal to the main thread, where it ends a call that waits: one to this thread would not."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:
        signal.raise_signal(number)
