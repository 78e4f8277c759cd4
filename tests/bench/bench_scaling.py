"""Where more workers stop helping: a simulation on times that are measured here.

    python tests/bench/bench_scaling.py

Measured in one process on one processor: what a task, a start of a process, a sample, a shard's file and its merging
take, on the sample models. Assumed:

* all workers are like this processor, and a task starts on the first one that is free;
* the folder that they share is read and written as fast by many as by one;
* the engine takes 10 ms for each task, one after another;
* other projects have the same mixture of tasks as the sample models, in turn.

A count of workers stops helping where doubling it shortens the run by less than a tenth. The serial parts are what the
command itself does before the first task and after the last one.
"""

from __future__ import annotations

import heapq
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnxq.calibration.blocks import Blocks
from onnxq.calibration.shard_file import load_shard, merge_shards, save_shard
from onnxq.calibration.stats_file import fingerprint, save_stats
from onnxq.distributed.builds import BuildTask
from onnxq.distributed.shards import Calibration, open_calibration
from onnxq.ir import load
from onnxq.pipeline.options import QuantizeOptions
from onnxq.progress import Silent
from onnxq.project.entry import Entry
from onnxq.project.provenance import gather
from onnxq.targets.host import limit_processors, processor_name

SAMPLES = Path(__file__).parents[2] / "sample_models"
DISPATCH = 0.010  # seconds of the engine for each task
MODELS, IMAGES = 200, 100_000
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Job:
    """Seconds of the serial parts by name, and of each task."""

    serial: dict[str, float]
    tasks: Sequence[float]

    def seconds(self, workers: int) -> float:
        """Simulate a run."""
        free = [0.0] * workers
        end = 0.0
        for number, task in enumerate(self.tasks, 1):
            begun = max(heapq.heappop(free), number * DISPATCH)
            heapq.heappush(free, begun + task)
            end = max(end, begun + task)
        return sum(self.serial.values()) + end


def timed(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def start_seconds() -> float:
    """Measure a process that imports what a build needs."""
    command = [sys.executable, "-c", "import onnxq.distributed.builds"]
    return min(timed(lambda: subprocess.run(command, check=True)) for _ in range(3))


def project(start: float, folder: Path) -> Job:
    """Measure a project: the sample models, in turn."""
    gathering, tasks = [], []
    for source in sorted(SAMPLES.glob("digits_*.onnx")):
        options = QuantizeOptions(data=("digits_calibration.npz",))
        entry = Entry(SAMPLES, source, folder / source.name, options)
        wanted = gather(entry, load(source))
        gathering.append(timed(lambda entry=entry: gather(entry, load(entry.source))))
        task = BuildTask(entry, wanted, str(SAMPLES))
        tasks.append(start + timed(pickle.loads(pickle.dumps(task)).run))
    many = [tasks[at % len(tasks)] for at in range(MODELS)]
    hashing = 2 * sum(gathering) / len(gathering) * MODELS  # for the state of each model, and for its task
    return Job({"start of the command": start, "hashing what each model is built from": hashing}, many)


def calibration(start: float, folder: Path) -> Callable[[int], Job]:
    """Measure a calibration, and return it for any number of workers: a shard each, at least 16."""
    asked = Calibration(SAMPLES / "digits_cnn.onnx", (str(SAMPLES / "digits_calibration.npz"),), recipe="static-int8")
    opening = timed(lambda: open_calibration(asked, Silent()))
    opened = open_calibration(asked, Silent())
    blocks = opened.blocks
    sample = timed(lambda: opened.measure(range(blocks.count), Silent())) / blocks.samples
    shards = [opened.shard(number, 16, Silent()) for number in range(1, 17)]
    paths = [folder / f"{shard.number}.stats" for shard in shards]
    saving = sum(timed(lambda s=s, p=p: save_shard(p, s)) for s, p in zip(shards, paths, strict=True)) / 16
    reading = sum(timed(lambda p=p: load_shard(p)) for p in paths) / 16
    merging = max(timed(lambda: merge_shards(paths)) / 16, reading)
    whole, source = merge_shards(paths)
    writing = timed(lambda: save_stats(folder / "all.stats", whole, fingerprint(source, whole.names)))

    def job(workers: int) -> Job:
        count = min(max(workers, 16), Blocks(IMAGES).count)
        task = start + opening + sample * IMAGES / count + saving
        serial = {
            "start of the command and planning": start + opening,
            "merging of shards": merging * count,
            "writing of the statistics": writing,
        }
        return Job(serial, [task] * count)

    return job


def table(name: str, job: Callable[[int], Job], counts: Iterable[int] = WORKERS) -> None:
    """Print what each number of workers takes, where it stops helping, and the largest serial part."""
    alone = job(1).seconds(1)
    seconds = {count: job(count).seconds(count) for count in counts}
    print(f"\n{name}\n\n| workers | seconds | times faster |\n|---:|---:|---:|")
    for count, taken in seconds.items():
        print(f"| {count} | {taken:.1f} | {alone / taken:.1f} |")
    last = next((count for count in seconds if seconds.get(2 * count, 0.0) > 0.9 * seconds[count]), max(seconds))
    serial = job(last).serial
    largest = max(serial, key=lambda part: serial[part])
    print(f"\nMore than {last} workers help by less than a tenth for each doubling.")
    print(f"Largest serial part at {last}: {largest}, {serial[largest]:.1f} s of {seconds[last]:.1f} s.")
    print(f"Longest task: {max(job(last).tasks):.1f} s; engine: {DISPATCH * len(job(last).tasks):.1f} s.")


def main() -> None:
    limit_processors(1)
    start = start_seconds()
    print(f"{processor_name()}, one processor; a process starts in {start:.2f} s")
    with tempfile.TemporaryDirectory() as name:
        made = project(start, Path(name))
        table(f"A project of {MODELS} models", lambda workers: made)
        table(f"A calibration with {IMAGES} samples", calibration(start, Path(name)))


if __name__ == "__main__":
    main()
