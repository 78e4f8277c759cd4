"""The node suite that the onnx package generates, 1,884 models of one operator each, made once in a run of the tests.

The generators take 1.5 s of processor time. Workers of one run share the cases in a file. Three pools of 32 × 32 × 32
numbers, in Python, would take 4 s more; theirs get fewer.
"""

from __future__ import annotations

import fcntl
import inspect
import os
import pickle
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np

FILE = "ONNXQ_TEST_NODE_CASES"  # environment variable
LARGE, SMALL = (1, 3, 32, 32, 32), (1, 3, 8, 8, 8)  # shapes of what pools read


@cache
def node_cases() -> list[Any]:
    """Return all cases, in the order of onnx."""
    if FILE not in os.environ:
        return _generate()
    with open(os.environ[FILE], "a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the second worker waits for the first
        if file.tell():
            file.seek(0)
            return list(pickle.load(file))
        cases = _generate()
        pickle.dump(cases, file)
    return cases


@contextmanager
def one_file() -> Iterator[None]:
    """Let this process and those that it starts share the cases, until the end."""
    if FILE in os.environ:  # a process that one with such a file started
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ[FILE] = f"{folder}/cases.pickle"
        yield
        del os.environ[FILE]


def _generate() -> list[Any]:
    def randn(*shape: int) -> Any:
        return drawn(*SMALL if shape == LARGE else shape)

    drawn = np.random.randn
    with (
        warnings.catch_warnings(),
        patch.object(inspect, "getsource", lambda _: "@staticmethod\ndef export"),
        patch.object(np.random, "randn", randn),
    ):
        warnings.simplefilter("ignore")  # the generators divide by zero on purpose
        from onnx.backend.test.case.node import collect_testcases  # it reads its own source for the docs of onnx

        return list(collect_testcases(None))
