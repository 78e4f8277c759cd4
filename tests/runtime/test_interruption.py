"""An interrupt ends a process that onnxruntime does not come back to, and what it has made goes with it."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from onnxq.runtime import interruption
from onnxq.runtime.interruption import InterruptibleRun, SignalThread, end_on_signals

# A process in a call that no exception reaches, with a temporary file and a process of its own
STUCK = """
import signal, subprocess, sys, threading
from pathlib import Path
from onnxq.ir.storage.temporary import named_temporary, temporary_folder
from onnxq.runtime.interruption import end_on_signals, note_process

signal.signal(signal.SIGINT, lambda number, frame: None)  # a KeyboardInterrupt could come while another is handled
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
note_process(child.pid)
Path("whole.tmp").touch()
with end_on_signals([signal.SIGINT], lambda number: print("ended by", number, flush=True), 0.2):
    with named_temporary(Path("whole.tmp")), temporary_folder(parent=Path(".")):
        print(child.pid, flush=True)
        threading.Event().wait()
"""


def endless() -> onnx.ModelProto:
    """A model with a Loop that does not end."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["still"]), helper.make_node("Tanh", ["x"], ["y"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1]),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [1]),
        ],
    )
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Loop", ["", "go", "x"], ["z"], body=body)],
        "endless",
        [value("x", TensorProto.FLOAT, [1])],
        [value("z", TensorProto.FLOAT, [1])],
        [helper.make_tensor("go", TensorProto.BOOL, [], [True])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(autouse=True)
def not_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruption, "_ending", False)


def run_endless() -> None:
    """Run it, with an interrupt a moment later."""
    session = ort.InferenceSession(endless().SerializeToString(), providers=["CPUExecutionProvider"])
    options = ort.RunOptions()
    options.log_severity_level = 4
    later = threading.Timer(0.1, interruption._stop_runs)
    with InterruptibleRun(options):
        later.start()
        session.run(None, {"x": [0.5]}, options)


def test_a_run_that_does_not_end_is_stopped() -> None:
    with pytest.raises(Exception, match=r"running Loop node.* terminate flag"):
        run_endless()
    assert not interruption._runs


def test_a_run_that_begins_after_an_interrupt_stops_at_once() -> None:
    interruption._stop_runs()
    with pytest.raises(Exception, match="terminate flag"):
        run_endless()


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such signals")
def test_a_process_that_is_stuck_ends_with_all_that_it_made(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert len(list(tmp_path.iterdir())) == 2
        started = time.monotonic()
        for _ in range(3):  # impatience is no reason to leave something behind
            process.send_signal(signal.SIGINT)
        assert process.wait(10) == 128 + signal.SIGINT
        assert time.monotonic() - started < 5
        assert process.stdout.read() == "ended by 2\n"
    assert not list(tmp_path.iterdir())
    while Path(f"/proc/{child}/cmdline").exists() and Path(f"/proc/{child}/cmdline").read_bytes():
        assert time.monotonic() - started < 10  # a killed process stays until its new parent has looked


def test_nothing_is_left_of_a_thread_that_no_signal_came_to() -> None:
    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    with end_on_signals([signal.SIGTERM]):
        (thread,) = (each for each in threading.enumerate() if isinstance(each, SignalThread))
    thread.join(5)
    assert not thread.is_alive()
    assert signal.set_wakeup_fd(before) == -1
