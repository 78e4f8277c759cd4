"""Thousands of cases in processes of their own: one that crashes or hangs is named, and the others go on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verdict import Broken

HERE = Path(__file__).parent


@dataclass
class Tally:
    """What came of the cases: how many of which kind, and a line for each that is broken."""

    kinds: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return ", ".join(f"{count} {kind}" for kind, count in self.kinds.most_common())


def main(name_of: Callable[[int], str], verdict_of: Callable[[int], Any]) -> None:
    """Judge the cases START to STOP of the command line; a line of JSON before and after each."""
    start, stop = map(int, sys.argv[1:3])
    for index in range(start, stop):
        print(json.dumps([index, "begun", name_of(index)]), flush=True)
        try:
            verdict = verdict_of(index)
            print(json.dumps([index, verdict.kind, verdict.detail]), flush=True)
        except Broken as broken:
            print(json.dumps([index, "broken", str(broken)]), flush=True)


def isolated(script: str, total: int, *, batch: int, seconds: float) -> Tally:
    """Run a script of this folder on cases 0 to `total`, a batch in a process, `seconds` at most for a batch."""
    tally, start = Tally(), 0
    while start < total:
        stop = min(start + batch, total)
        command = [sys.executable, str(HERE / script), str(start), str(stop)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
            lines, end = done.stdout, f"exit code {done.returncode}: {done.stderr[-500:]}" if done.returncode else ""
        except subprocess.TimeoutExpired as expired:
            lines = expired.stdout.decode() if isinstance(expired.stdout, bytes) else expired.stdout or ""
            end = f"no end within {seconds:g} s"
        start = _count(tally, lines, end, stop)
    return tally


def _count(tally: Tally, lines: str, end: str, stop: int) -> int:
    """Add the lines of one process to the tally; gives the case to go on with."""
    name, running = "before the first case", None
    for line in lines.splitlines():
        index, kind, detail = json.loads(line)
        if kind == "begun":
            name, running = detail, index
            continue
        running = None
        tally.kinds[kind] += 1
        if kind == "broken":
            tally.broken.append(f"{name}: {detail}")
    if not end:
        return stop
    tally.kinds["crashed"] += 1
    tally.broken.append(f"{name}: {end}")
    assert running is not None, tally.broken[-1]
    return running + 1
