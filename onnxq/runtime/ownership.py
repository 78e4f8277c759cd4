"""Whether this process is ours, as that of the command line is, or another program's that calls us.

Tests: `tests/runtime/test_fork.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

# Objects between two searches for cycles in such a process. At Python's 700 they take a tenth of all imports, and at
# 50,000 a twentieth of a short calibration
COLLECTED = 150_000
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
