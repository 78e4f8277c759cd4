"""Its place puts this folder on the path, so that tests in every folder below find `helpers`."""

import gc
import math
import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from node_cases import one_file

from onnxq.cli import terminal
from onnxq.data import generated_text
from onnxq.report import details
from onnxq.targets import host
from onnxq.verification import compare, decoding

BRIEF, OF_BENCHMARKS = 0.002, compare.TIMING_SECONDS  # seconds for each model
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))

# How fast examples are made says how busy the machine is, not whether the code is right.
settings.register_profile("patient", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("patient")


def pytest_configure(config: pytest.Config) -> None:
    """Let the workers of pytest-xdist share what is made once in a run, and look for cycles less often.

    All tests that were collected are looked through each time.
    """
    gc.set_threshold(10_000, 10, 10)
    stack = ExitStack()
    stack.enter_context(one_file())
    config.add_cleanup(stack.close)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let a worker of pytest-xdist that has no tests left take half of another's.

    By default, tests are handed out in advance, and cannot be taken back: one worker ended a quarter of a minute
    before the other. It also splits more modules, whose fixtures both workers then make.
    """
    if config.getvalue("dist") != "load":  # another one is asked for
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[pytest.CollectReport]:
    """Let every other worker of pytest-xdist read modules from the last one on.

    Where none is compiled, each worker compiles half of them, and finds the other half ready.
    """
    report: pytest.CollectReport = yield
    if isinstance(collector, pytest.Directory) and os.environ.get("PYTEST_XDIST_WORKER", "gw0")[-1] in "13579":
        report.result.reverse()
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have the same order in all workers."""
    if WORKERS > 1:
        items.sort(key=lambda item: item.path)


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop() -> Iterator[None]:
    """Let tests time models for a moment, write few texts, measure no memory of decoders, and leave no lines on steps.

    Models timed for as long as a user's took a quarter of the suite, all texts of decoders a third of their tests, and
    a process for the memory of each decoder 2 %. Tests of those ask for them. Workers of pytest-xdist share the
    processors: threads of each that waited for those of others took a sixth. Tests of several jobs ask for them.
    """
    gc.collect()
    gc.freeze()  # a collection looked through all tests, for 0.3 s
    share = set(range(max(host.available_processors() // WORKERS, 1)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(terminal, "PATIENCE", math.inf)
        patch.setattr(generated_text, "MOST_SEQUENCES", 16)
        patch.setattr(decoding, "load_memory", lambda source: None)
        patch.setattr(compare, "TIMING_SECONDS", BRIEF)
        patch.setattr(details, "TIMING_SECONDS", BRIEF)
        patch.setattr(host, "processor_quota", lambda: None)  # of the container that runs the tests
        if WORKERS > 1:
            patch.setattr(os, "sched_getaffinity", lambda _: share, raising=False)
        return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let no test inherit the limit of another, as `--jobs` limits the whole process; let benchmarks take their time.

    No fixture: one for each of ten thousand tests takes seconds.
    """
    host._limit = None
    compare.TIMING_SECONDS = OF_BENCHMARKS if item.get_closest_marker("bench") else BRIEF
