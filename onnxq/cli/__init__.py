"""The command line: the only part of onnxq that prints and that decides how the process ends.

The work of the commands is in the other packages.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from onnxq.errors import ExitCode

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments without the name of the program; those of the process by default.

    Returns:
        The exit code, see `onnxq.errors.ExitCode`.

    """
    try:
        from onnxq.cli.boundary import run  # imported here so that Ctrl-C during imports is clean as well

        return run(argv)
    except KeyboardInterrupt:  # before `run` watches for it
        sys.stderr.write("interrupted\n")
        return ExitCode.INTERRUPTED
