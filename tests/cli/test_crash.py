"""A process that a fault or a kill ends says so: nothing goes wrong in silence."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onnxq.cli.crash import crash

ENDS = """
import ctypes, os, signal
import numpy as np

def fault():
    ctypes.string_at(0)
    yield

def kill():
    os.kill(os.getpid(), signal.SIGKILL)
    yield

def copy_faults():
    process = os.fork()
    if not process:
        ctypes.string_at(0)
    os.waitpid(process, 0)
    yield {"image": np.ones((1, 1, 8, 8), np.float32)}

def leave(group=False):
    import time
    from onnxq.ir.storage.temporary import temporary_file, temporary_folder
    from onnxq.runtime.fork import in_copy
    from onnxq.runtime.processes import Processes
    from pathlib import Path

    def copy():
        with temporary_folder("of-copy-") as folder:
            (folder / "file").touch()
            time.sleep(60)

    with temporary_file(Path("q.onnx")) as file, temporary_folder("of-first-"), in_copy(copy), Processes(1) as others:
        file.touch()
        others.submit(wait_in_folder)
        while len(list(Path().glob("of-*"))) < 3:
            time.sleep(0.01)
        (os.killpg if group else os.kill)(os.getpid(), signal.SIGKILL)
    yield

def leave_all():
    yield from leave(group=True)

def wait_in_folder():
    import time
    from onnxq.ir.storage.temporary import temporary_folder

    with temporary_folder("of-other-"):
        time.sleep(60)
"""
RUN = """Fatal Python error: Segmentation fault

Thread 0x00007f7d8b6c06c0 (most recent call first):
  File "/home/me/onnxq/runtime/interruption.py", line 89 in run

Current thread 0x00007f7d8b3bfb80 (most recent call first):
  File "/venv/onnxruntime/capi/onnxruntime_inference_collection.py", line 300 in %s
  File "/home/me/onnxq/runtime/session.py", line 190 in run_session
"""


def onnxq(folder: Path, function: str) -> subprocess.CompletedProcess[str]:
    (folder / "ends.py").write_text(ENDS)
    return subprocess.run(
        [sys.executable, "-m", "onnxq", "data", "digits_cnn.onnx", "-d", f"ends:{function}"],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder)},
        timeout=60,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("function", "sentence"), [("run", "ran the model"), ("_create_inference_session", "loaded the model")]
)
def test_a_fault_in_onnxruntime_is_named(function: str, sentence: str) -> None:
    found = crash(RUN % function)
    assert found.message == f"onnxruntime crashed while it {sentence} (segmentation fault)"
    assert "another version of onnxruntime" in found.hint


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no copy of the process can watch it")
def test_a_fault_is_told_in_a_sentence_and_its_functions_in_a_log(folder: Path) -> None:
    ended = onnxq(folder, "fault")
    assert ended.returncode == -signal.SIGSEGV
    told = re.fullmatch(
        r"error: a library crashed \(segmentation fault\)\nhint: Please report it with (.+\.log)\n", ended.stderr
    )
    assert told is not None
    assert 'ends.py", line 6 in fault' in Path(told[1]).read_text()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no copy of the process can watch it")
def test_a_kill_is_told(folder: Path) -> None:
    ended = onnxq(folder, "kill")
    assert ended.returncode == -signal.SIGKILL
    assert ended.stderr.startswith(
        "error: the process was killed\nhint: If that was not on purpose, the system was short of"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="there are no copies of processes")
@pytest.mark.parametrize("function", ["leave", "leave_all"])
def test_a_killed_process_leaves_neither_files_nor_processes(folder: Path, function: str) -> None:
    """Neither those of its copies, nor of other processes that it has started."""
    before = {*folder.iterdir(), folder / "ends.py", folder / "__pycache__"}
    ended = onnxq(folder, function)  # it waits for all who have its stderr
    assert ended.returncode == -signal.SIGKILL
    assert "the process was killed" in ended.stderr
    for _ in range(500):
        if set(folder.iterdir()) <= before:
            break
        time.sleep(0.01)
    assert set(folder.iterdir()) <= before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no copies of processes")
def test_a_fault_in_a_copy_that_does_a_task_is_not_told(folder: Path) -> None:
    """The process goes on without it."""
    ended = onnxq(folder, "copy_faults")
    assert ended.returncode == 0
    assert "crashed" not in ended.stderr
    assert not list(folder.glob("*.log"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no copy of the process can watch it")
def test_closed_streams_are_no_end(folder: Path) -> None:
    """The first file that is opened gets the number of stdin."""
    command = f"{sys.executable} -m onnxq recipes <&- 2>err"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, cwd=folder, timeout=60)
    assert (ended.returncode, (folder / "err").read_text()) == (0, "")
