"""What a command leaves that runs inside the test process."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from onnxq.cli import main


class Result(NamedTuple):
    """What one command left."""

    code: int
    out: str
    err: str


Cli = Callable[..., Result]


def runner(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Return what runs a command and reads what it leaves."""

    def run(*arguments: object) -> Result:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Result(code, *capsys.readouterr())

    return run
