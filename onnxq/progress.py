"""Progress of a run, told to an observer: steps, counts within a step, and an estimate of the time left.

An `Observer` is told about steps. `Progress` is one that estimates: the pipeline tells it what work is expected, in
seconds on a usual processor, by kind of work. The measured time of one kind of work corrects the price of the rest of
that kind. It corrects all other prices as long as nothing is known of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from threading import Lock
from typing import NamedTuple, Protocol

# The share of all expected work that has to be measured until it counts as much as what is assumed: of the price of a
# kind of work in comparison with others, and of how fast this computer is, which differs more
DOUBT_SHARE, SPEED_DOUBT_SHARE = 0.4, 0.05
ALMOST = 0.97  # of a task that takes longer than expected is done, by the clock
CREEP = 0.25  # of the usual pace, at which a share goes on where the estimate has become longer
AT_ONCE = 2  # parts of a task that may be at work when the clock is asked how far it is
REST = "rest"  # what is between tasks
TRIAL = "trial"  # what a step counts that tries variants: their number is not known before
COUNTED = ("bits", "kernels", "layers", "round")  # kinds of work whose parts are what their step counts
Advance = Callable[[int, int | None], None]  # how many parts of a task are done, and how many there are


class Observer(Protocol):
    """Receives each step of a run. Its methods are called by the thread that runs the library, and return at once."""

    def step(self, name: str) -> None:
        """A step begins, and the one before it is done.

        Args:
            name: Such as `calibrate`; `onnxq.STEPS` says in words what each does, and what it counts.

        """

    def progress(self, done: int, total: int | None) -> None:
        """The step has done so many of the things that it counts; `total` is None while unknown."""


class Silent:
    """An observer that does nothing."""

    def step(self, name: str) -> None:
        """Do nothing."""

    def progress(self, done: int, total: int | None) -> None:
        """Do nothing."""


class StepWords(NamedTuple):
    """Words for a step, and for its unit of count.

    Attributes:
        sentence: Such as `calibrating`.
        unit: What `progress` counts, in the singular; empty where it counts nothing.

    """

    sentence: str
    unit: str = ""


STEPS: dict[str, StepWords] = {
    "load": StepWords("reading the model"),
    "plan": StepWords("planning"),
    "examine": StepWords("looking at the samples", "sample"),
    "benchmark": StepWords("timing kernels", "kernel"),
    "rescale": StepWords("trying scales of channels", TRIAL),
    "trial": StepWords("trying ranges and codes", TRIAL),
    "caches": StepWords("measuring caches", "sample"),
    "calibrate": StepWords("calibrating", "sample"),
    "bits": StepWords("choosing bits", "weight"),
    "round": StepWords("rounding weights", "weight"),
    "search": StepWords("choosing what stays float", TRIAL),
    "cross-validate": StepWords("judging halves of the samples", TRIAL),
    "correct": StepWords("correcting biases", TRIAL),
    "rewrite": StepWords("rewriting"),
    "verify": StepWords("comparing with the float model", "sample"),
    "layers": StepWords("comparing layers", "node"),
    "families": StepWords("comparing processors", "sample"),
    "details": StepWords("timing operators"),
    "metric": StepWords("measuring the metric", "sample"),
    "decoding": StepWords("going on with texts", "text"),
    "save": StepWords("writing"),
    "build": StepWords("building", "model"),
    "shards": StepWords("measuring shards", "shard"),
    "merge": StepWords("adding shards"),
    "run": StepWords("running", "sample"),
}


@dataclass(frozen=True)
class Work:
    """Work that a run is expected to do.

    Attributes:
        step: The step that it is part of.
        kind: What else has the same price, such as `judge`.
        seconds: What it takes on a usual processor.
        chance: How likely it is to be done at all, 0 to 1.
        below: SQNR of the result so far, in dB, below which it is done; None where it does not depend on that.

    """

    step: str
    kind: str
    seconds: float
    chance: float = 1.0
    below: float | None = None


OnSample = Callable[[int, int | None], None]
"""Told after each sample: how many are done, and of how many; None where that is unknown."""


class Progress:
    """An observer that times steps and estimates how long a run still takes; it tells another one what it is told.

    Args:
        observer: Told about each step as well; nothing else is, by default.
        clock: Gives seconds.

    Attributes:
        label: What is at work, where there are several models; empty for a single one.
        done: How many of what it counts the step at work has done.
        total: Of how many; None while unknown.

    """

    def __init__(self, observer: Observer | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._observer: Observer = observer or Silent()
        self._clock = clock
        self._lock = Lock()
        self._starts: list[tuple[str, float]] = []
        self.label, self.done = "", 0
        self.total: int | None = None
        self._begin()

    def _begin(self) -> None:
        self._started = self._mark = self._clock()
        self._expected: list[Work] = []
        self._promised = 0.0  # seconds of all work that was expected at first
        self._measured: dict[str, tuple[float, float]] = {}  # by kind: seconds expected, seconds taken
        self._running: Work | None = None
        self._fraction: float | None = None
        self._in_parts, self._reach = False, 0.0  # whether the task says how far it is, and up to where that may be
        self._trials = 0
        self._share = self._looked = 0.0

    @property
    def name(self) -> str:
        """The step at work; empty before the first."""
        return self._starts[-1][0] if self._starts else ""

    @property
    def words(self) -> StepWords:
        """Words for the current step, and for its unit of count."""
        return STEPS.get(self.name, StepWords(self.name))

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return self._clock() - self._started

    @property
    def left(self) -> float | None:
        """Estimated seconds until the run ends; None before it is known what there is to do."""
        with self._lock:
            return self._left(self._clock()) if self._promised else None

    @property
    def share(self) -> float:
        """Estimated share of the run's time that is over, 0 to 1; it never falls.

        Nor does it stand still: where more is left than was expected, it goes on slowly until the estimate catches up.
        """
        left, elapsed = self.left, self.elapsed
        if left is not None and elapsed + left > 0:
            since = min((elapsed - self._looked) / max(left, 1e-9), 1.0)
            slowly = self._share + CREEP * since * (1 - self._share)
            self._share = max(slowly, elapsed / (elapsed + left))
        self._looked = elapsed
        return self._share

    def seconds(self) -> tuple[tuple[str, float], ...]:
        """Return the steps and the seconds that each took, in order; the last one ends now."""
        ends = [start for _, start in self._starts[1:]] + [self._clock()]
        return tuple((name, end - start) for (name, start), end in zip(self._starts, ends, strict=True))

    def step(self, name: str) -> None:
        """Note when a step begins; nothing is expected of the steps before it any more."""
        now = self._clock()
        with self._lock:
            self._pay(REST, 0.0, now)
            order = list(dict.fromkeys(work.step for work in self._expected))
            passed = order[: order.index(name)] if name in order else []
            self._expected = [work for work in self._expected if work.step not in passed]
            self._starts.append((name, now))
            self._trials = 0
            self.done, self.total = 0, None
        self._observer.step(name)

    def progress(self, done: int, total: int | None) -> None:
        """Note how far the step is; of a step that counts trials, how far the samples of one trial are."""
        if total and self._running is not None and not self._in_parts:
            self._fraction = min(done / total, 1.0)
        if self.words.unit == TRIAL and total is not None:
            return
        self.done, self.total = done, total
        self._observer.progress(done, total)

    def expect(self, work: Iterable[Work]) -> None:
        """Say what is to be done from now on, in the order of the steps; it takes the place of what was expected."""
        with self._lock:
            self._expected = [one for one in work if one.seconds > 0]
            before = sum(expected for expected, _ in self._measured.values())
            self._promised = before + sum(one.seconds * one.chance for one in self._expected)

    def judged(self, sqnr: float) -> None:
        """Note the SQNR of the result so far in dB: work that depends on it is done, or it is not."""
        with self._lock:
            self._expected = [
                one if one.below is None else replace(one, chance=float(sqnr < one.below)) for one in self._expected
            ]

    @contextmanager
    def task(self, kind: str) -> Iterator[Advance]:
        """Do some work of a kind; yields what to call with how much of it is done, and of how much in all."""
        with self._lock:
            found = next((one for one in self._expected if one.step == self.name and one.kind == kind), None)
            self._running, self._fraction = found, None
            self._in_parts, self._reach = False, 0.0
            if found is not None:
                self._expected.remove(found)

        def advance(done: int, total: int | None) -> None:
            self._fraction = min(done / total, 1.0) if total else None
            self._in_parts, self._reach = bool(total), min((done + AT_ONCE) / total, ALMOST) if total else 0.0
            if kind in COUNTED:
                self.progress(done, total)

        try:
            yield advance
        finally:
            with self._lock:
                self._pay(kind, found.seconds if found is not None else 0.0, self._clock())
                self._running = None

    def mention(self, sentence: str) -> None:
        """Take note of something worth knowing before the run is over; the interface in use shows it."""

    def trial(self) -> None:
        """Count a trial of the step at work."""
        self._trials += 1
        self.progress(self._trials, None)

    def _pay(self, kind: str, expected: float, now: float) -> None:
        """Note the time taken since the end of the task before; unexpected work says nothing about prices."""
        taken, self._mark = now - self._mark, now
        if expected > 0:
            before = self._measured.get(kind, (0.0, 0.0))
            self._measured[kind] = before[0] + expected, before[1] + taken

    def _price(self, kind: str) -> float:
        """Seconds that a second of expected work of a kind takes here."""
        doubt, doubt_of_speed = (max(one * self._promised, 1e-9) for one in (DOUBT_SHARE, SPEED_DOUBT_SHARE))
        done = sum(expected for expected, _ in self._measured.values())
        took = sum(taken for _, taken in self._measured.values())
        speed = (took + doubt_of_speed) / (done + doubt_of_speed)
        expected, taken = self._measured.get(kind, (0.0, 0.0))
        return (taken + doubt * speed) / (expected + doubt)

    def _left(self, now: float) -> float:
        prices = {kind: self._price(kind) for kind in {one.kind for one in self._expected}}
        left = sum(one.seconds * one.chance * prices[one.kind] for one in self._expected)
        since = now - self._mark
        if self._running is None:  # what goes by between tasks is paid by the next one of the step
            coming = next((one for one in self._expected if one.step == self.name), None)
            if coming is None:
                return left
            whole = coming.seconds * prices[coming.kind]
            return left - coming.chance * min(since, ALMOST * whole)
        whole = self._running.seconds * self._price(self._running.kind)
        if self._fraction is None:
            return left + max(whole - since, (1 - ALMOST) * whole)
        done = max(self._fraction, min(since / max(whole, 1e-9), self._reach))  # within a part, by the clock
        whole = whole * (1 - done) + since  # the more of it is done, the more its own time counts
        return left + whole * (1 - done)


_CURRENT: ContextVar[Progress | None] = ContextVar("onnxq_progress", default=None)


@contextmanager
def following(observer: Observer | None) -> Iterator[Progress]:
    """Let an observer follow what runs inside; yields the `Progress` that it is, or that tells it."""
    progress = observer if isinstance(observer, Progress) else Progress(observer)
    progress._begin()
    token = _CURRENT.set(progress)
    try:
        yield progress
    finally:
        _CURRENT.reset(token)


@contextmanager
def unfollowed() -> Iterator[None]:
    """Follow nothing inside: it is one of several tasks, and the thread that waits for them counts them."""
    token = _CURRENT.set(None)
    try:
        yield
    finally:
        _CURRENT.reset(token)


@contextmanager
def working(kind: str) -> Iterator[Advance]:
    """Do some work of a kind, which the run that is followed may expect; see `Progress.task`."""
    progress = _CURRENT.get()
    if progress is None:
        yield _ignored
        return
    with progress.task(kind) as advance:
        yield advance


def expect(work: Iterable[Work]) -> None:
    """Say what is to be done from now on, if the run is followed; see `Progress.expect`."""
    progress = _CURRENT.get()
    if progress is not None:
        progress.expect(work)


def mention(sentence: str) -> None:
    """Say something worth knowing before the run is over, if it is followed; see `Progress.mention`."""
    progress = _CURRENT.get()
    if progress is not None:
        progress.mention(sentence)


def judged(sqnr: float) -> None:
    """Note the SQNR of the result so far, if the run is followed; see `Progress.judged`."""
    progress = _CURRENT.get()
    if progress is not None:
        progress.judged(sqnr)


def tried() -> None:
    """Count a trial of the step at work, if the run is followed."""
    progress = _CURRENT.get()
    if progress is not None:
        progress.trial()


def _ignored(done: int, total: int | None) -> None:
    """Do nothing."""
