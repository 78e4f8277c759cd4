"""Signals that come while an extension module is being loaded reach handlers once it is there."""

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from interrupted_import import load_at_signal

from onnxq.distributed import worker
from onnxq.runtime import processes


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
    signal.signal(signal.SIGTERM, module._end)
    started = time.monotonic()
    with pytest.raises(SystemExit) as ended:
        load_at_signal(signal.SIGTERM, done)
    assert (done, ended.value.code) == (["loaded"], 128 + signal.SIGTERM)
    assert time.monotonic() - started < 5
