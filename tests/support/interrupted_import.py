"""A module of Python that loads extensions, one that forks, and a callback, as a signal finds them: for tests."""

import os
import signal
import time
import weakref
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


class _Unlocked:
    """As the import system drops the lock of a module: a weak reference to it has a callback."""


def drop_at_signal(number: int, done: list[str]) -> None:
    """Be in the callback of a weak reference when a signal comes, and wait for 10 s; Python ignores errors there."""

    def callback(reference: object) -> None:
        done.append("dropped")
        signal.raise_signal(number)

    lock = _Unlocked()
    reference = weakref.ref(lock, callback)
    del lock
    time.sleep(10)
    del reference


FORK = """
def _fork():
    signal.raise_signal(number)
    time.sleep(0.1)
    done.append("forked")
"""


def fork_at_signal(number: int, done: list[str]) -> None:
    """Be at a fork when a signal comes, and wait for 10 s; `done` gets what was reached."""
    names: dict[str, Any] = {"signal": signal, "time": time, "done": done, "number": number}
    exec(compile(FORK, os.path.join("onnxq", "runtime", "fork.py"), "exec"), names)
    names["_fork"]()
    time.sleep(10)
