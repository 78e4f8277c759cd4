"""The processor at hand: which of the families of targets it belongs to, and how many this process may use.

Tests: `tests/targets/test_host.py`, `tests/targets/test_targets.py`.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import local

import numpy as np

ARM64 = ("aarch64", "arm64")
CPU_INFO = Path("/proc/cpuinfo")
DOT_PRODUCT = "asimddp"  # what Linux calls it
WIDTH = 32
# The time that a container gets, and of how much, in microseconds: of control groups version 2 and 1
QUOTA = Path("/sys/fs/cgroup/cpu.max")
OLD_QUOTA = tuple(Path(f"/sys/fs/cgroup/cpu/cpu.cfs_{name}_us") for name in ("quota", "period"))
_limit: int | None = None
_lent: Callable[[], int] | None = None  # in a copy of a process: how many others leave to it, which may grow
_thread = local()  # `alone`: whether this thread shares the processors with others that do the same


def available_processors() -> int:
    """Return how many processors this process may use: at least 1, and 1 in a thread that is one of several.

    A container that gets the time of two processors has two, however many the machine has.
    """
    if getattr(_thread, "alone", False):
        return 1
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = count, _limit, processor_quota(), None if _lent is None else _lent()
    return min(limit for limit in limits if limit is not None)


@cache
def processor_quota() -> int | None:
    """Return the processors whose time the control group of this process gets, rounded up; None without a limit.

    Sources: `cpu.max` of https://docs.kernel.org/admin-guide/cgroup-v2.html, `cpu.cfs_quota_us` of
    https://docs.kernel.org/scheduler/sched-bwc.html.
    """
    try:
        quota, period = QUOTA.read_text("ascii").split()
    except (OSError, ValueError):
        try:
            quota, period = (path.read_text("ascii").strip() for path in OLD_QUOTA)
        except (OSError, ValueError):
            return None
    if not quota.isdigit() or not period.isdigit() or not int(period):  # `max`, or -1
        return None
    return max(math.ceil(int(quota) / int(period)), 1)


def processor_limit() -> int:
    """Return how many processors `limit_processors` leaves, 1 in a thread that is one of several; 0 without a limit.

    It is no more than there are: onnxruntime would start as many threads as it is told. It is 1 in a process to which
    others lend theirs, for a session keeps its threads.
    """
    if is_lent():
        return 1
    return available_processors() if _limit or getattr(_thread, "alone", False) else 0


def is_lent() -> bool:
    """Tell whether this process is one of several, to which others lend processors that they have no use for."""
    return _lent is not None


@contextmanager
def lent_processors(count: Callable[[], int]) -> Iterator[None]:
    """Let this process, one of several that share some work, use as many processors as others leave to it, at least 1.

    Args:
        count: Tells how many those are at the moment.

    """
    global _lent  # a fact about the process
    before, alone = _lent, getattr(_thread, "alone", False)
    _lent, _thread.alone = count, False
    try:
        yield
    finally:
        _lent, _thread.alone = before, alone


@contextmanager
def one_processor() -> Iterator[None]:
    """Let this thread start no threads of its own: it is one of several that share the processors."""
    before = getattr(_thread, "alone", False)
    _thread.alone = True
    try:
        yield
    finally:
        _thread.alone = before


def limit_processors(count: int) -> None:
    """Let this process use no more than so many processors from now on: it is one of several that share them."""
    global _limit  # a fact about the process, as its affinity is
    _limit = count


@cache
def host_saturates() -> bool:
    """Return whether onnxruntime adds two products of uint8 and int8 in 16 bits on this processor, which saturates."""
    import onnxruntime as ort  # names of targets do without it
    from onnx import TensorProto, helper, numpy_helper

    inner = WIDTH
    weight = numpy_helper.from_array(np.full((inner, WIDTH), 127, np.int8), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w"], ["y"])],
        "probe",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [WIDTH, inner])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [WIDTH, WIDTH])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = session.run(None, {"x": np.full((WIDTH, inner), 255, np.uint8)})[0]
    return bool((np.asarray(found) != 255 * 127 * inner).any())


@cache
def host_family() -> str:
    """Return the target of the processor at hand: by its kind, and by whether its integer products saturate.

    An x86-64 processor with exact products counts as one with VNNI. An Arm processor without a list of features counts
    as one with dot products, which all of Apple's have.
    """
    if platform.machine().lower() in ARM64:
        return "cpu-arm64" if _has_dot_products(CPU_INFO) else "cpu-armv8"
    return "cpu-avx2" if host_saturates() else "cpu-vnni"


@cache
def processor_name(info: Path = CPU_INFO) -> str:
    """Return what the processor at hand calls itself, such as `AMD EPYC 9654`; its architecture where it does not say.

    Args:
        info: Where Linux describes the processor.

    """
    named = cpu_fields(info)
    return named.get("model name") or named.get("Model") or platform.processor() or platform.machine() or "unknown"


def processor_words() -> str:
    """Describe the processor at hand for people: its name, and whether it has what integer kernels need."""
    extra = {"cpu-vnni": "with VNNI", "cpu-avx2": "no VNNI", "cpu-arm64": "with dot products"}.get(host_family(), "")
    return ", ".join(filter(None, (processor_name(), extra)))


def _has_dot_products(info: Path) -> bool:
    features = cpu_fields(info).get("Features")
    return features is None or DOT_PRODUCT in features.split()


def cpu_fields(info: Path = CPU_INFO) -> dict[str, str]:
    """Return what Linux says of the last core of a processor, by its words; nothing where it does not say."""
    try:
        lines = info.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    return {key.strip(): " ".join(value.split()) for key, _, value in (line.partition(":") for line in lines)}
