"""How much faster several jobs are than one, also on a busy machine: processor time that is taken side by side.

    python tests/bench/bench_serial.py [--jobs 2] [--repeat 1] COMMAND...

COMMAND is one of onnxq, such as `quantize MODEL -d DATA -o OUTPUT --force`, and runs with `--jobs 1` and `--jobs N` in
turn. Every 15 ms it is looked at how many threads of all its processes run or wait for a processor, and what processor
time they took since. With one of them that time is serial; with more, it would be halved on idle processors. So
`idle` is what the run would take there, but for memory that they share: seconds of one, and of two side by side.
Memory is the proportional share of all processes together, at its peak.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from bench_jobs import family, memory

LOOK = 0.015  # seconds
MEMORY_EVERY = 12  # looks
NANO = 1e9


class Taken(NamedTuple):
    """What a run took: seconds of processors, alone and side by side, and MB at its peak."""

    alone: float
    together: float
    peak: float

    def idle(self, jobs: int) -> float:
        """Return the seconds that it would take on so many idle processors."""
        return self.alone + self.together / jobs


def threads(process: int) -> Iterator[tuple[int, int, bool]]:
    """Yield each thread: its number, nanoseconds of processors, and whether it runs or could."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            place = f"/proc/{process}/task/{thread}"
            with suppress(OSError, IndexError):
                taken = int(Path(f"{place}/schedstat").read_text().split()[0])
                state = Path(f"{place}/stat").read_text().rpartition(")")[2].split()[0]
                yield int(thread), taken, state in "RD"


def measured(command: list[str]) -> Taken:
    """Run a command of onnxq and look at it until it ends."""
    run = subprocess.Popen([sys.executable, "-m", "onnxq", *command], stdout=subprocess.DEVNULL)
    known: dict[int, int] = {}
    seconds, peak, looks = [0.0, 0.0], 0.0, 0
    while run.poll() is None:
        processes, running, taken = family(run.pid), 0, 0
        for process in processes:
            for thread, nanoseconds, runs in threads(process):
                taken += nanoseconds - known.get(thread, 0)
                known[thread] = nanoseconds
                running += runs
        seconds[running > 1] += taken / NANO
        if looks % MEMORY_EVERY == 0:
            peak = max(peak, sum(map(memory, processes)))
        looks += 1
        time.sleep(LOOK)
    if run.returncode:
        sys.exit(f"onnxq {' '.join(command)}: exit code {run.returncode}")
    return Taken(seconds[0], seconds[1], peak)


def main() -> int:
    """Print a row for each number of jobs, and the median of their ratios."""
    given, jobs, repeat = sys.argv[1:], 2, 1
    while given and given[0] in ("--jobs", "--repeat"):
        option, number, *given = given
        jobs, repeat = (int(number), repeat) if option == "--jobs" else (jobs, int(number))
    turns = [[measured([*given, "--jobs", str(count)]) for count in (1, jobs)] for _ in range(repeat)]
    print("| jobs | alone, CPU s | side by side, CPU s | idle, s | MB |\n|---:|---:|---:|---:|---:|")
    for place, count in enumerate((1, jobs)):
        runs = [turn[place] for turn in turns]
        figures = [[run.alone for run in runs], [run.together for run in runs], [run.idle(count) for run in runs]]
        cells = [f"{statistics.median(figure):.1f}" for figure in figures]
        print(f"| {count} | {' | '.join(cells)} | {statistics.median(run.peak for run in runs):.0f} |")
    ratio = statistics.median(one.idle(1) / several.idle(jobs) for one, several in turns)
    more = statistics.median(several.peak / one.peak for one, several in turns)
    print(f"{ratio:.2f} times faster on idle processors, {more:.2f} of the memory")
    return 0


if __name__ == "__main__":
    sys.exit(main())
