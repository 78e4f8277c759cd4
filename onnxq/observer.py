"""How the library tells somebody what it is doing: it never prints."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """Told about each step of a pipeline."""

    def step(self, name: str) -> None:
        """A step begins; the one before it is done."""

    def progress(self, done: int, total: int | None) -> None:
        """The step is so far; `total` is None while unknown."""


class Silent:
    """An observer that keeps everything to itself."""

    def step(self, name: str) -> None:
        """Take note of nothing."""

    def progress(self, done: int, total: int | None) -> None:
        """Take note of nothing."""
