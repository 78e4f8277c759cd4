"""Its place puts this folder on the path, so that tests in every folder below find `helpers`."""

import math
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from node_cases import one_file

from onnxq.cli import terminal
from onnxq.data import generated_text
from onnxq.targets import host
from onnxq.verification import compare

# How fast examples are made says how busy the machine is, not whether the code is right.
settings.register_profile("patient", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("patient")


def pytest_configure(config: pytest.Config) -> None:
    """Let the workers of pytest-xdist share what is made once in a run."""
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


@pytest.fixture(autouse=True)
def _no_lines_about_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no run, however slow the machine, leave lines about its steps: tests of those ask for them."""
    monkeypatch.setattr(terminal, "PATIENCE", math.inf)


@pytest.fixture(autouse=True)
def _brief_timing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time models for a moment: half a second for each model took a quarter of the suite. Benchmarks take it."""
    if request.node.get_closest_marker("bench") is None:
        monkeypatch.setattr(compare, "TIMING_SECONDS", 0.05)


@pytest.fixture(autouse=True)
def brief_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let decoders write a quarter of their texts, which took a third of their tests. Tests of the texts write all."""
    monkeypatch.setattr(generated_text, "MOST_SEQUENCES", 16)


@pytest.fixture(autouse=True)
def _all_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test inherit the limit of another, nor that of a container: `--jobs` limits the whole process."""
    monkeypatch.setattr(host, "_limit", None)
    monkeypatch.setattr(host, "processor_quota", lambda: None)
