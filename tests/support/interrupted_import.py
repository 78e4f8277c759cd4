"""A module of Python that loads extensions, as a signal finds it: for tests of handlers."""

import signal
import time
from typing import Any

# Its file name is what handlers know it by
LOADER = """
class ExtensionFileLoader:
    def exec_module(self):
        signal.raise_signal(number)
        time.sleep(0.1)
        done.append("loaded")
"""


def load_at_signal(number: int, done: list[str]) -> None:
    """Load an extension module during which a signal comes, and wait for 10 s; `done` gets what was reached."""
    names: dict[str, Any] = {"signal": signal, "time": time, "done": done, "number": number}
    exec(compile(LOADER, "<frozen importlib._bootstrap_external>", "exec"), names)
    names["ExtensionFileLoader"]().exec_module()
    time.sleep(10)  # as for a task
