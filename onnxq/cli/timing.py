"""How long each step took."""

from __future__ import annotations

import time

from onnxq.observer import Observer


class Stopwatch:
    """An observer that times the steps and tells another one."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._starts: list[tuple[str, float]] = []

    def step(self, name: str) -> None:
        """Note when a step begins."""
        self._starts.append((name, time.perf_counter()))
        self._observer.step(name)

    def progress(self, done: int, total: int | None) -> None:
        """Pass it on."""
        self._observer.progress(done, total)

    def seconds(self) -> tuple[tuple[str, float], ...]:
        """Give the steps and their seconds; the last one ends now."""
        ends = [start for _, start in self._starts[1:]] + [time.perf_counter()]
        return tuple((name, end - start) for (name, start), end in zip(self._starts, ends, strict=True))
