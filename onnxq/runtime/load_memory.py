"""Measure the memory of loading a model in onnxruntime, in a process of its own.

Tests: `tests/runtime/test_load_memory.py`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from onnxq.ir.storage.temporary import temporary_folder
from onnxq.runtime.session import ModelSource, source_model

STATUS = Path("/proc/self/status")  # where Linux says how much memory a process takes, and took at most
PATIENCE = 60.0  # seconds
SCRIPT = """
import re, sys
import onnxruntime
def kilobytes(key):
    with open("/proc/self/status", encoding="ascii") as file:
        return int(re.search(key + r":\\s+(\\d+) kB", file.read())[1])
options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.log_severity_level = 1, 4
before = kilobytes("VmRSS")
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
print(kilobytes("VmHWM") - before)
"""


def load_memory(source: ModelSource) -> int | None:
    """Return the bytes that a process takes more at most while it loads a model.

    Args:
        source: A model without external data; it is written to a temporary file.

    Returns:
        The bytes; None where the system does not say, or the model does not load so.

    """
    if not STATUS.exists() or not sys.executable:
        return None
    try:
        with temporary_folder() as folder:
            path = folder / "model.onnx"
            path.write_bytes(source if isinstance(source, bytes) else source_model(source).serialize())
            done = subprocess.run(
                [sys.executable, "-c", SCRIPT, str(path)],
                capture_output=True, text=True, timeout=PATIENCE, check=True, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        return int(done.stdout) << 10
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
