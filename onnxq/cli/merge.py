"""`onnxq merge`: shards of a calibration become the statistics of one run.

Tests: `tests/distributed/test_shards.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxq.cli.calibrate import StatsFile, stats_words
from onnxq.cli.options import Force


def merge(
    shards: Annotated[list[Path], typer.Argument(metavar="SHARD…", help="Files of `onnxq calibrate --shard`, all.")],
    output: StatsFile,
    force: Force = False,
) -> None:
    """Add up shards of a calibration for `onnxq quantize --stats`.

    The file is the same to the byte as that of one run of `onnxq calibrate`, in whatever order shards are named.
    """
    from onnxq.api.calibrate import merge as merged
    from onnxq.cli.terminal import TerminalObserver, note

    with TerminalObserver() as observer:
        observer.step("merge")
        stats = merged(shards, output, force=force)
    note(stats_words(output, stats))
