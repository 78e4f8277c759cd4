"""Signals that come while an extension module is being loaded reach handlers once it is there."""

import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from onnxq.distributed import worker
from onnxq.runtime import processes

LOADING = """
class ExtensionFileLoader:
    def exec_module(self):
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0.1)
        done.append("loaded")
"""


@pytest.fixture(autouse=True)
def _terminates() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("module", [processes, worker])
def test_a_process_that_is_told_to_end_loads_the_module_first(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Projects printed `ImportError: initialization failed` with a traceback at a Ctrl-C in the first second."""
    monkeypatch.setattr(module.os, "dup2", lambda *_: None)  # of a worker's talk
    done: list[str] = []
    names: dict[str, Any] = {"signal": signal, "time": time, "done": done}
    exec(compile(LOADING, "<frozen importlib._bootstrap_external>", "exec"), names)
    signal.signal(signal.SIGTERM, module._end)

    def work() -> None:
        names["ExtensionFileLoader"]().exec_module()
        threading.Event().wait(10)  # as for a task

    started = time.monotonic()
    with pytest.raises(SystemExit) as ended:
        work()
    assert (done, ended.value.code) == (["loaded"], 128 + signal.SIGTERM)
    assert time.monotonic() - started < 5
