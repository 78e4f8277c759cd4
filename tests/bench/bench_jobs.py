"""Two jobs against one: wall time, processor time, peak memory, and that the file is the same.

    python tests/bench/bench_jobs.py [--jobs 2] [--repeat 3] FOLDER [NAME...]

FOLDER holds `NAME.onnx` beside `NAME_calib.npz` or a folder `NAME_calib`. Runs with one and with several jobs take
turns, and the median of their ratios is printed. On a busy machine no ratio is reached: `ceiling` is what that many
processes that only multiply gained over one, measured between the runs.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

SPIN = "import sys, time\nend = time.process_time() + float(sys.argv[1])\nwhile time.process_time() < end: pass"
SPIN_SECONDS = 1.0


EVERY = 0.1  # seconds between looks at memory


class Taken(NamedTuple):
    """What a run took: seconds by the clock, seconds of processors, MB at its peak, and the digest of the file.

    Memory is the proportional share of all its processes together, so that what copies share counts once.
    """

    wall: float
    processor: float
    peak: float
    digest: str


def quantized(model: Path, data: Path, jobs: int) -> Taken:
    """Quantize in a process of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "q.onnx"
        command = [sys.executable, "-m", "onnxq", "quantize", str(model), "-d", str(data), "-o", str(output), "-q"]
        started = time.perf_counter()
        run = subprocess.Popen([*command, "--jobs", str(jobs)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        peak, ended = 0.0, 0
        while not ended:
            peak = max(peak, sum(map(memory, family(run.pid))))
            time.sleep(EVERY)
            ended, status, used = os.wait4(run.pid, os.WNOHANG)
        wall = time.perf_counter() - started
        run.returncode = os.waitstatus_to_exitcode(status)
        digest = hashlib.sha256(output.read_bytes()).hexdigest() if output.exists() else f"exit {run.returncode}"
    return Taken(wall, used.ru_utime + used.ru_stime, peak, digest)


def family(process: int) -> list[int]:
    """Return a process and all that come of it, also from its threads."""
    found = [process]
    for one in found:
        with suppress(OSError):
            for children in Path(f"/proc/{one}/task").glob("*/children"):
                found += [int(child) for child in children.read_text().split()]
    return found


def memory(process: int) -> float:
    """Return the proportional share of a process in MB; 0 once it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0


def ceiling(jobs: int) -> float:
    """Return how much faster so many processes are than one after another at this moment, where nothing is shared."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", SPIN, str(SPIN_SECONDS)], check=True)
    alone = time.perf_counter() - started
    started = time.perf_counter()
    for run in [subprocess.Popen([sys.executable, "-c", SPIN, str(SPIN_SECONDS)]) for _ in range(jobs)]:
        run.wait()
    return jobs * alone / (time.perf_counter() - started)


def main() -> int:
    """Print a row for each model; exit code 1 where a file differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    different = 0
    print("| model | one job, s | CPU s | MB | several, s | CPU s | MB | faster | ceiling | same file |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---|")
    for model in sorted(given.folder.glob("*.onnx")):
        data = next(iter(sorted(given.folder.glob(f"{model.stem}_calib*"))), None)
        if data is None or (given.names and model.stem not in given.names):
            continue
        turns = [
            (quantized(model, data, 1), ceiling(given.jobs), quantized(model, data, given.jobs))
            for _ in range(given.repeat)
        ]
        ratio = statistics.median(one.wall / several.wall for one, _, several in turns)
        most = statistics.median(found for _, found, _ in turns)
        cells = [
            f"{statistics.median(values):.1f}"
            for taken in ([one for one, _, _ in turns], [several for _, _, several in turns])
            for values in ([t.wall for t in taken], [t.processor for t in taken], [t.peak for t in taken])
        ]
        digests = {taken.digest for one, _, several in turns for taken in (one, several)}
        different += len(digests) > 1
        same = "yes" if len(digests) == 1 else "NO"
        print(f"| {model.stem} | {' | '.join(cells)} | {ratio:.2f}× | {most:.2f}× | {same} |", flush=True)
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
