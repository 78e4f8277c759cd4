"""Whether this process is ours, as that of the command line is, or another program's that calls us.

Tests: `tests/runtime/test_fork.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_ours = False


@contextmanager
def own_process() -> Iterator[None]:
    """Say that this process is ours inside: no other program has threads in it."""
    global _ours  # a fact about the process
    before, _ours = _ours, True
    try:
        yield
    finally:
        _ours = before


def is_own_process() -> bool:
    """Tell whether this process is ours."""
    return _ours
