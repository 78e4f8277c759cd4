"""A real Dask scheduler and real workers, started as commands: same bytes, also where workers are killed."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from process_family import family

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="signals")]
ONNXQ = [sys.executable, "-m", "onnxq"]
KILLS = 20


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Cluster:
    """A scheduler and two workers."""

    def __init__(self, folder: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        port = self.address.partition(":")[2]
        self._folder = folder
        self.scheduler = self._start("scheduler", "--host", "127.0.0.1", "--port", port)
        self.workers = [self._start("worker", f"tcp://{self.address}", "--nthreads", "1") for _ in range(2)]

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dask", *arguments, "--no-dashboard"]
        with (self._folder / "dask.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)

    @property
    def engine(self) -> str:
        return f"dask://{self.address}"

    def kill_a_worker(self) -> None:
        """Kill the process that does tasks, below one of the nannies."""
        below = [pid for worker in self.workers for pid in family(worker.pid)]
        computing = [pid for pid in below if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(random.choice(computing), signal.SIGKILL)

    def end(self) -> None:
        below = [pid for worker in self.workers for pid in family(worker.pid)]
        for process in (*self.workers, self.scheduler):
            process.kill()
        for process in (*self.workers, self.scheduler):
            process.wait(30)
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def cluster_in(folder: Path) -> Iterator[Cluster]:
    made = Cluster(folder)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def cluster(farm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    pytest.importorskip("dask")
    with cluster_in(tmp_path_factory.mktemp("dask")) as made:
        yield made


def run(*arguments: str, during: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    process = subprocess.Popen(
        [*ONNXQ, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    if during is not None:
        during()
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def bytes_of_all(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.int8.onnx"))}


def tidy(folder: Path) -> bool:
    return not [path.name for path in folder.iterdir() if path.name.startswith(".")]


def wait_for_lease(folder: Path) -> None:
    deadline = time.monotonic() + 60
    while not list(folder.glob(".onnxq.*.lease")):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_projects_and_shards_have_the_bytes_of_one_process(farm: Path, cluster: Cluster) -> None:
    assert run("quantize", "--force", "--jobs", "1").returncode == 0
    before = bytes_of_all(farm)
    started = time.monotonic()
    assert run("quantize", "--force", "--executor", cluster.engine).returncode == 0
    print(f"project of {len(before)} on Dask: {time.monotonic() - started:.1f} s")
    assert bytes_of_all(farm) == before
    command = ["calibrate", "digits_cnn.onnx", "-d", "digits_calibration.npz"]
    assert run(*command, "-o", "one.stats").returncode == 0
    assert run(*command, "-o", "two.stats", "--executor", cluster.engine, "--shards", "4").returncode == 0
    assert Path("one.stats").read_bytes() == Path("two.stats").read_bytes()
    assert tidy(farm)


def test_workers_killed_at_random_moments_change_nothing(farm: Path, cluster: Cluster) -> None:
    assert run("quantize", "--force", "--jobs", "1").returncode == 0
    before = bytes_of_all(farm)
    for turn in range(KILLS):
        delay = random.Random(turn).uniform(0.0, 4.0)

        def kill(delay: float = delay) -> None:
            wait_for_lease(farm)
            time.sleep(delay)
            cluster.kill_a_worker()

        ended = run("quantize", "--force", "--executor", cluster.engine, during=kill)
        assert ended.returncode == 0, ended.stderr
        assert bytes_of_all(farm) == before
        assert tidy(farm)
        print(f"turn {turn}: killed after {delay:.1f} s")


def test_a_scheduler_that_goes_away_is_one_sentence(farm: Path, cluster: Cluster) -> None:
    def kill() -> None:
        wait_for_lease(farm)
        time.sleep(1)
        cluster.scheduler.kill()

    ended = run("quantize", "--force", "--executor", cluster.engine, during=kill)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert f"no scheduler answers at {cluster.engine}" in ended.stderr
    assert tidy(farm)


def test_ctrl_c_ends_the_tasks_of_workers(farm: Path, cluster: Cluster) -> None:
    def working() -> list[int]:
        below = [pid for worker in cluster.workers for pid in family(worker.pid)]
        return [pid for pid in below if b"onnxq.distributed" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    process = subprocess.Popen(
        [*ONNXQ, "quantize", "--force", "--executor", cluster.engine],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not working():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    while working():
        assert time.monotonic() < began + 30
        time.sleep(0.02)
    taken = time.monotonic() - began
    print(f"all ended {taken:.2f} s after Ctrl-C")
    assert process.returncode == 130
    assert said.strip().endswith(b"interrupted")  # the models that were not built are named before it
    assert taken < 2
    assert tidy(farm)
