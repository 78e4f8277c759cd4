"""What a command leaves that runs inside the test process."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Result(NamedTuple):
    """What one command left."""

    code: int
    out: str
    err: str


Cli = Callable[..., Result]
