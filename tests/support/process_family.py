"""Processes below a process."""

from __future__ import annotations

from pathlib import Path


def family(parent: int) -> list[int]:
    """List the processes below a process, from `/proc`."""
    found = []
    for listed in Path(f"/proc/{parent}/task").glob("*/children"):
        for child in listed.read_text().split():
            found += [int(child), *family(int(child))]
    return found
