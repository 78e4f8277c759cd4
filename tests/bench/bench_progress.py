"""How good the estimate of the time left is while a model is quantized, and how long the bar stands still.

    python tests/bench/bench_progress.py sample_models/digits_cnn.onnx:sample_models/digits_calibration.npz ...

Each argument is MODEL or MODEL:DATA; without any, the models of the arena beside the repository, if it is there, and
else the sample models. After the first fifth of a run, the estimated whole (elapsed and left) is to be within 25 % of
what the run takes in the end. The columns are the largest and the median error from there on, the one at a fifth, and
the longest time in which neither the share that is done nor a count of the step at work moved.

By default seconds are those of the processor in one process, so that other programs on the machine do not count.
`--wall` runs as the command line does, with copies of the process, and takes the seconds of the clock.
`--trace FILE` writes every estimate as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from statistics import median

import onnxq
from onnxq.progress import Progress
from onnxq.runtime.ownership import own_process

ROOT = Path(__file__).parents[2]
ARENA = ROOT.parent.parent / "shared" / "arena"
EVERY = 0.1  # seconds between looks
FIRST, MOST_ERROR = 0.2, 0.25


class Drawer(threading.Thread):
    """A thread that only looks, as the one does that draws a bar: copies are made beside it."""

    __module__ = "rich.drawer"


class Looker(Progress):
    """A progress that is looked at from time to time, as a bar does."""

    def __init__(self, *, wall: bool) -> None:
        self.wall = wall
        super().__init__(clock=time.perf_counter if wall else time.process_time)
        self.seen: list[tuple[float, float | None, float, str]] = []
        self.moves: list[float] = []
        self._over = threading.Event()

    def progress(self, done: int, total: int | None) -> None:
        """Note that something moved."""
        super().progress(done, total)
        self.moves.append(self.elapsed)

    def look(self) -> None:
        """Note the estimate, again and again, until the run is over."""
        while not self._over.wait(EVERY):
            left, share = self.left, self.share
            if self.seen and f"{share:.2%}" != f"{self.seen[-1][2]:.2%}":
                self.moves.append(self.elapsed)
            self.seen.append((self.elapsed, left, share, self.name))

    def follow(self, model: Path, data: Path | None) -> float:
        """Quantize a model, and return the seconds that it took."""
        thread = Drawer(target=self.look)
        own = own_process() if self.wall else nullcontext()
        with tempfile.TemporaryDirectory() as folder, own:
            thread.start()
            try:
                onnxq.quantize(model, output=Path(folder) / "q.onnx", data=data or (), observer=self)
            finally:
                took = self.elapsed
                self._over.set()
                thread.join()
        return took

    def errors(self, took: float) -> list[tuple[float, float]]:
        """Return pairs of the share of the run that is over and the error of the estimated whole, as a share of it."""
        return [
            (elapsed / took, (elapsed + left) / took - 1)
            for elapsed, left, *_ in self.seen
            if left is not None and elapsed <= took
        ]

    def stillness(self, took: float) -> float:
        """Return the longest time without movement in seconds."""
        times = [0.0, *sorted(self.moves), took]
        return max(later - earlier for earlier, later in pairwise(times))


def models(arguments: list[str]) -> list[tuple[Path, Path | None]]:
    """Read the arguments, or find models."""
    pairs = [argument.partition(":") for argument in arguments]
    if pairs:
        return [(Path(model), Path(data) if data else None) for model, _, data in pairs]
    if ARENA.is_dir():
        names = {"digits_mbv2": "digits", "ultraface_rfb320": "face", "super_resolution": "superres"}
        names |= {"magika_v3_3": "magika"}
        found = sorted((ARENA / "models").glob("*.onnx"))
        return [(path, ARENA / "data" / f"{names.get(path.stem, path.stem)}_calib.npz") for path in found]
    samples = ROOT / "sample_models"
    return [(path, samples / "digits_calibration.npz") for path in sorted(samples.glob("*.onnx"))]


def main() -> int:
    """Quantize each model once, and print how good the estimates were."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL[:DATA]")
    parser.add_argument("--wall", action="store_true")
    parser.add_argument("--trace", type=Path)
    options = parser.parse_args()
    traces, failed = {}, False
    print("| model | seconds | largest error after a fifth | median | at a fifth | longest standstill |", flush=True)
    print("|---|---:|---:|---:|---:|---:|", flush=True)
    for model, data in models(options.models):
        looker = Looker(wall=options.wall)
        took = looker.follow(model, data)
        errors = looker.errors(took)
        late = [error for share, error in errors if share >= FIRST] or [0.0]
        worst = max(late, key=abs)
        failed |= abs(worst) > MOST_ERROR
        print(
            f"| {model.stem} | {took:.1f} | {worst:+.0%} | {median(map(abs, late)):.0%} | {late[0]:+.0%} "
            f"| {looker.stillness(took):.1f} s |",
            flush=True,
        )
        traces[model.stem] = {"took": took, "seen": looker.seen, "seconds": looker.seconds()}
    if options.trace is not None:
        options.trace.write_text(json.dumps(traces))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
