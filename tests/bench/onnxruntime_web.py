"""Run ONNX models in the real onnxruntime-web, in Node: WebAssembly with SIMD, one thread, as a browser has it.

    python tests/bench/onnxruntime_web.py --install     # npm install onnxruntime-web, into a folder of the cache

Needs Node 18 or newer. The package is looked for in the folder that the environment variable `ONNXQ_WEB` names, else in
`onnxq/web` below the cache of the user; nothing but `--install` downloads anything. Tests and benchmarks share this.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from onnx import TensorProto, helper

SCRIPT = Path(__file__).with_suffix(".mjs")
VERSION = "1.30.0"  # what --install asks npm for
TYPES = ("float32", "float64", "int64", "uint64", "int32", "uint32", "int16", "uint16", "int8", "uint8", "bool")
LEAST = 200.0  # nanoseconds of a kernel
CHAIN = 100  # nodes
WARM = 2  # runs that do not count
# V8 compiles what runs often a second time, in the background, and better; here it does all of it that way, at once.
OPTIMIZED = "--no-liftoff"
# The measuring process has one core of its own and goes before others, where the machine allows it.
PRIORITY = ["chrt", "-r", "50", "taskset", "-c", "0"]  # round robin, or threads that compile never get the core


class WebError(Exception):
    """onnxruntime-web refused a model or failed to run it."""


def folder() -> Path:
    """Return the folder in which npm has the package, or would have it."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("ONNXQ_WEB") or Path(cache) / "onnxq" / "web")


def missing() -> str:
    """Say what is missing to run onnxruntime-web here; nothing gives an empty string."""
    if shutil.which("node") is None:
        return "Node is not installed"
    if not (folder() / "node_modules" / "onnxruntime-web" / "package.json").exists():
        return f"onnxruntime-web is not in {folder()}: python tests/bench/onnxruntime_web.py --install"
    return ""


def install() -> None:
    """Let npm fetch the package."""
    folder().mkdir(parents=True, exist_ok=True)
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder()), f"onnxruntime-web@{VERSION}"]
    subprocess.run(command, check=True)


@dataclass(frozen=True)
class Session:
    """A model that is loaded in onnxruntime-web."""

    id: int
    profiled: bool


class Web(AbstractContextManager["Web"]):
    """One Node process with onnxruntime-web; leave the context to end it.

    Args:
        priority: Run it on the first core with real-time priority, for measurements; as any process where the machine
            does not allow that.
        optimized: Compile WebAssembly as what runs often is, which takes seconds; results are the same.

    """

    def __init__(self, *, priority: bool = False, optimized: bool = True) -> None:
        self.scratch = tempfile.TemporaryDirectory(prefix="onnxq-web.")
        self.files = ExitStack()
        self.printed = self.files.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115
        self.log = self.files.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115
        answers, given = os.pipe()
        command = ["node", *([OPTIMIZED] if optimized else []), str(SCRIPT), str(folder()), str(given)]
        if priority and allowed():
            command = [*PRIORITY, *command]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=self.printed, stderr=self.log, pass_fds=[given], text=True
        )
        os.close(given)
        self.answers = self.files.enter_context(os.fdopen(answers))

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.files.close()
        self.scratch.cleanup()

    def versions(self) -> dict[str, str]:
        """Return the versions of onnxruntime-web, Node and its engine V8."""
        return dict(self._ask("versions"))

    def load(self, model: bytes | str | Path, *, profile: bool = False, optimize: str = "all") -> Session:
        """Load a model.

        Args:
            model: Its bytes, or the path of a file that holds all of it.
            profile: Whether the time of every node is written down.
            optimize: disabled, basic, extended or all.

        Raises:
            WebError: onnxruntime-web does not load it.

        """
        path = Path(self.scratch.name) / "model.onnx"
        if isinstance(model, bytes):
            path.write_bytes(model)
        else:
            path = Path(model).resolve()
        return Session(self._ask("open", file=str(path), profile=profile, optimize=optimize)["id"], profile)

    def run(self, session: Session, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run a model on one set of inputs and return its outputs by name."""
        answer = self._ask("run", id=session.id, inputs=self._inputs(feeds), folder=self.scratch.name)
        return {entry["name"]: _array(entry) for entry in answer["outputs"]}

    def times(
        self, sessions: Sequence[Session], feeds: Mapping[str, np.ndarray], runs: int, *, seconds: float = 1e9
    ) -> np.ndarray:
        """Time runs of several models in turn.

        Args:
            sessions: Models with the same inputs.
            feeds: What to run them on.
            runs: How often, each.
            seconds: Stop after so long, though not before four runs.

        Returns:
            Milliseconds, one row a model.

        """
        ids = [session.id for session in sessions]
        answer = self._ask("time", ids=ids, inputs=self._inputs(feeds), runs=runs, least=4, seconds=seconds)
        return np.array(answer["times"])

    def close(self, session: Session) -> list[dict[str, Any]]:
        """Free a model, and return the events of its profile: none if it was not profiled."""
        start = self.printed.seek(0, os.SEEK_END)
        self._ask("close", id=session.id, profiled=session.profiled)
        if not session.profiled:
            return []
        self.printed.seek(start)
        events: list[dict[str, Any]] = json.loads(self.printed.read())
        return events

    def _inputs(self, feeds: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
        entries = []
        for at, (name, array) in enumerate(feeds.items()):
            if array.dtype.name not in TYPES:
                raise WebError(f"input {name} is of type {array.dtype}, which the harness does not pass on")
            path = Path(self.scratch.name) / f"input{at}"
            path.write_bytes(np.ascontiguousarray(array).tobytes())
            entries.append({"name": name, "type": array.dtype.name, "dims": list(array.shape), "file": str(path)})
        return entries

    def _ask(self, what: str, **given: object) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"what": what, **given}) + "\n")
        self.process.stdin.flush()
        line = self.answers.readline()
        if not line:
            self.log.seek(0)
            raise WebError(f"Node ended with exit code {self.process.wait()}: {self.log.read()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WebError(answer["error"])
        return answer


def _array(entry: Mapping[str, Any]) -> np.ndarray:
    return np.frombuffer(Path(entry["file"]).read_bytes(), np.dtype(entry["type"])).reshape(entry["dims"])


def allowed() -> bool:
    """Return whether this user may give a process real-time priority."""
    if shutil.which("chrt") is None or shutil.which("taskset") is None:
        return False
    return subprocess.run([*PRIORITY, "true"], capture_output=True, check=False).returncode == 0


def kernel_times(
    web: Web,
    model: bytes,
    feeds: Mapping[str, np.ndarray],
    *,
    warm: int = WARM,
    runs: int = 40,
    seconds: float = 0.5,
    profiling: float = 0.0,
) -> dict[str, float]:
    """Time each kernel type of a model in nanoseconds, summed over the nodes of that type in one run.

    The fastest quarter of the runs counts, as in `onnxq.planning.benchmark.kernel_times`; the first `warm` ones do not.
    Of each node, `profiling` nanoseconds are taken off.
    """
    session = web.load(model, profile=True)
    web.times([session], feeds, warm)
    measured = web.times([session], feeds, runs, seconds=seconds).shape[1]
    taken: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in web.close(session):
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            taken[event["name"], event["args"]["op_name"]].append(event["dur"] * 1000.0)
    times: dict[str, float] = defaultdict(float)
    for (_, kind), durations in taken.items():
        fastest = sorted(durations[-measured:])[: max(measured // 4, 1)]
        times[kind] += max(float(np.mean(fastest)) + 500.0 - profiling, LEAST)  # cut to whole microseconds
    return times


def _chain(length: int) -> bytes:
    graph = helper.make_graph(
        [helper.make_node("Softsign", [f"v{i}" if i else "x"], [f"v{i + 1}"]) for i in range(length)],
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [32])],
        [helper.make_tensor_value_info(f"v{length}", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


class WebEngine:
    """onnxruntime-web for `kernel_turns`: one process for all models."""

    target = "web"
    small = (2, 4)  # there weights are packed in every run, which counts

    def __init__(self) -> None:
        self.web = Web(priority=True)
        self.profiling = 0.0  # nanoseconds that the profiler adds to each node
        feeds = {"x": np.ones(32, np.float32)}
        chain, single = _chain(CHAIN), _chain(1)
        node = (self.run_time(chain, feeds, 40) - self.run_time(single, feeds, 40)) / (CHAIN - 1)
        self.profiling = self.kernel_times(chain, feeds, 1.0)["Softsign"] / CHAIN - node

    def describe(self) -> str:
        """Return its name and version."""
        versions = self.web.versions()
        return f"onnxruntime-web {versions['onnxruntime_web']} in Node {versions['node']}"

    def kernel_times(self, model: bytes, feeds: Mapping[str, np.ndarray], seconds: float) -> dict[str, float]:
        """Return the nanoseconds of each kernel type, summed over the nodes of that type in one run."""
        return kernel_times(self.web, model, feeds, seconds=seconds, profiling=self.profiling)

    def run_time(self, model: bytes, feeds: Mapping[str, np.ndarray], runs: int) -> float:
        """Return the least nanoseconds of a whole run of a model as it stands, not optimised."""
        session = self.web.load(model, optimize="disabled")
        times = self.web.times([session], feeds, runs)
        self.web.close(session)
        return float(times.min()) * 1e6


def main(args: Sequence[str]) -> int:
    """Install the package, or say what is missing."""
    if args == ["--install"]:
        install()
    why = missing()
    print(why or f"onnxruntime-web is in {folder()}")
    return 2 if why else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
