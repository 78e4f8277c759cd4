"""Engines that run tasks elsewhere, by name: a Dask scheduler, or a function of the user that gives an executor.

Tests: `tests/distributed/test_executor_engines.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any

from onnxq.data.user_function import CALLABLE, CALLED, import_named
from onnxq.errors import DataError, EngineError, RecipeError

DASK = "dask://"
CONNECTING = 10.0  # seconds for a scheduler to answer
ENDING = 1.2  # seconds for an executor to end


@contextmanager
def started(name: str) -> Iterator[Executor]:
    """Start an executor, and end it whatever happens: tasks that wait are cancelled.

    Args:
        name: `dask://HOST:PORT`, or `package.module:function` that gives a `concurrent.futures.Executor`.

    Raises:
        RecipeError: The name is neither, or the function does not exist.
        EngineError: The scheduler does not answer, or the function fails.

    """
    if name.startswith(DASK):
        with _dask(name) as executor:
            yield executor
        return
    executor = _call(name)
    try:
        yield executor
    finally:  # tasks have ended by themselves, for their lease is gone
        own: dict[int, Any] = dict(getattr(executor, "_processes", None) or {})  # of a pool of the standard library
        _bounded(lambda: executor.shutdown(wait=True, cancel_futures=True))
        for process in own.values():  # one that was just starting would wait for work for ever
            with suppress(Exception):
                process.kill()


def check_name(name: str) -> None:
    """Refuse what names no engine, before any work.

    Raises:
        RecipeError: It is neither a scheduler nor a function.

    """
    if not (name.startswith(DASK) and name.rpartition(":")[2].isdecimal()) and not CALLABLE.fullmatch(name):
        raise RecipeError(
            f"--executor {name} names no engine",
            "Give dask://HOST:PORT, or package.module:function that returns a concurrent.futures.Executor.",
        )


def _call(name: str) -> Executor:
    try:
        function = import_named(name)
    except DataError as error:
        raise RecipeError(f"--executor: {error.message}", error.hint) from error
    try:
        executor = function()
    except CALLED as error:
        raise EngineError(f"{name} failed: {type(error).__name__}: {error}".splitlines()[0], GIVES) from error
    if not callable(getattr(executor, "submit", None)) or not callable(getattr(executor, "shutdown", None)):
        raise RecipeError(f"{name} gives {type(executor).__name__}, which is no executor", GIVES)
    found: Executor = executor
    return found


GIVES = "It must be callable without arguments and return a concurrent.futures.Executor."


@contextmanager
def _dask(name: str) -> Iterator[Executor]:
    try:
        import dask
        from distributed import Client
    except ImportError:
        raise RecipeError("dask:// needs dask.distributed", "Install it: pip install 'onnxq[dask]'") from None
    for each in ("distributed", "asyncio", "tornado", *logging.root.manager.loggerDict):
        if each.partition(".")[0] in ("distributed", "asyncio", "tornado"):  # a scheduler that goes is one sentence
            logging.getLogger(each).setLevel(logging.CRITICAL + 1)
    address = "tcp://" + name.removeprefix(DASK)
    try:
        with dask.config.set({"distributed.comm.timeouts.connect": CONNECTING}):
            client = Client(address, timeout=CONNECTING, set_as_default=False)
    except (OSError, ValueError) as error:
        raise EngineError(
            f"no scheduler answers at {name}", "Start one with `dask scheduler`, and check host and port."
        ) from error
    try:
        yield client.get_executor(pure=False)
    finally:
        with suppress(Exception):  # the scheduler may be gone
            _bounded(lambda: client.close(timeout=ENDING))


def _bounded(end: Callable[[], object]) -> None:
    """Wait for an end no longer than a moment; a thread that still waits does not keep the process alive."""

    def quietly() -> None:
        with suppress(Exception):
            end()

    thread = Thread(target=quietly, daemon=True)
    thread.start()
    thread.join(ENDING)
