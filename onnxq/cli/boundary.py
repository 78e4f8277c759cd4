"""The one place where errors become words and exit codes.

Tests: `tests/cli/test_cli_errors.py`.
"""

from __future__ import annotations

import atexit
import codecs
import gc
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from types import FrameType

from onnxq.cli.crash import say_goodbye, watched
from onnxq.errors import ExitCode, OnnxqError
from onnxq.runtime.delayed_signals import delay, send_later
from onnxq.runtime.interruption import end_on_signals
from onnxq.runtime.ownership import COLLECTED, own_process
from onnxq.text import write_plainly
from onnxq.version import installed_version

BROKEN_PIPE = 141  # 128 + SIGPIPE, what a shell reports for a program whose reader went away
# The code that a shell reports for a program that ended, or whose terminal was closed: 128 and the signal
ENDED: dict[int, str] = {signal.SIGTERM: "terminated"}
if hasattr(signal, "SIGHUP"):
    ENDED[signal.SIGHUP] = "terminal closed"
PLAINLY = "onnxq"  # an error handler: a name that the terminal's encoding lacks is no reason to fail
DISK = "Check that the disk has room, and that you may read and write there."
PACKAGES = ("onnxq", "onnx", "onnxruntime", "numpy", "ml_dtypes", "protobuf", "typer", "rich")


class _Interrupts:
    """Remembers a signal: an extension module that is interrupted by one may turn it into an error of its own."""

    def __init__(self) -> None:
        self.seen: int | None = None
        self._to_the_end = False
        self._last: bool = False  # whether no other signal is to raise

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt: temporary files go, and the terminal's cursor comes back.

        If the process ends behind it, a second Ctrl-C must not stop that. It ends soon, whatever it is in.
        """
        self.seen = self.seen or number
        if self._last or delay(number, frame):
            return
        self._last = self._to_the_end
        raise KeyboardInterrupt

    @contextmanager
    def _ignored_no_more(self) -> Iterator[None]:
        """Raise again what Python ignores, and prints, in callbacks of weak references and in finalizers."""
        before = sys.unraisablehook

        def again(found: sys.UnraisableHookArgs) -> None:
            if self.seen is None or not isinstance(found.exc_value, KeyboardInterrupt):
                before(found)
                return
            self._last = False
            send_later(self.seen)

        sys.unraisablehook = again
        try:
            yield
        finally:
            sys.unraisablehook = before

    @contextmanager
    def watched(self, *, to_the_end: bool) -> Iterator[None]:
        """Watch for Ctrl-C, SIGTERM and SIGHUP, unless another handler does or they are ignored, as in a background
        job.

        Args:
            to_the_end: The process ends behind this: what is done is done, and a Ctrl-C while the interpreter ends
                would only print a traceback.

        """
        self._to_the_end = to_the_end
        defaults: dict[int, object] = {signal.SIGINT: signal.default_int_handler}
        if to_the_end:  # else the process belongs to another program, which wants all of it to end
            defaults |= dict.fromkeys(ENDED, signal.SIG_DFL)
        if threading.current_thread() is not threading.main_thread():
            defaults = {}
        watched = {number: default for number, default in defaults.items() if signal.getsignal(number) is default}
        for number in watched:
            signal.signal(number, self.handle)
        try:
            ignored = self._ignored_no_more() if watched else nullcontext()
            with ignored, end_on_signals(watched if to_the_end else (), _end_bar):
                yield
        finally:
            for number, default in watched.items():
                signal.signal(number, signal.SIG_IGN if to_the_end and number == signal.SIGINT else default)


def run(argv: Sequence[str] | None) -> int:
    """Run the command line and turn whatever happens into an exit code and, at most, three lines on stderr."""
    arguments = _meant(list(sys.argv[1:] if argv is None else argv))
    _open_closed_streams()
    with watched(partial(_crashed, arguments)) if argv is None else nullcontext():
        return _run(argv, arguments)


def _run(argv: Sequence[str] | None, arguments: list[str]) -> int:
    codecs.register_error(PLAINLY, write_plainly)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=PLAINLY)
    if argv is None:
        if not sys.warnoptions:  # NumPy's words to programmers; those about code of the user's stay
            warnings.filterwarnings("ignore", module=r"onnxq\.")
        gc.set_threshold(COLLECTED)
        atexit.register(gc.freeze)  # no search for cycles among all that was loaded: a tenth of a short command's time
    interrupts = _Interrupts()
    try:
        with interrupts.watched(to_the_end=argv is None), own_process() if argv is None else nullcontext():
            code = _invoke(arguments)
            sys.stdout.flush()
            return code
    except KeyboardInterrupt:
        return _interrupted(interrupts.seen, at_once=argv is None)
    except BrokenPipeError:
        return _without_stdout(BROKEN_PIPE)
    except MemoryError:
        _say("there is not enough memory for this model", "Close other programs, or use a machine with more.")
        return int(ExitCode.ERROR)
    except Exception as error:
        if interrupts.seen:  # a run that was told to stop
            return _interrupted(interrupts.seen, at_once=argv is None)
        return _failed(error, arguments)


def _failed(error: Exception, arguments: list[str]) -> int:
    """Say what went wrong, and return the exit code."""
    if isinstance(error, OnnxqError):
        _say(error.message, error.hint, error.warnings)
        if error.exit_code is ExitCode.BUG:
            _tell_log(_traceback(error), arguments)
        return int(error.exit_code)
    if isinstance(error, OSError):  # a disk that is full, a file that went away: a log would tell no more
        if not _has_folder():
            _say("the working folder has been deleted", "Go to another folder, and run it again.")
            return int(ExitCode.ERROR)
        _say(f"{error.filename or 'a file or stdout'} cannot be read or written ({error.strerror or error})", DISK)
        return _without_stdout(ExitCode.ERROR)
    if isinstance(error, ModuleNotFoundError) and error.name in PACKAGES:
        with suppress(OSError):  # what prints in colour may be missing, too
            sys.stderr.write(f"error: the package {error.name} is not installed for {sys.executable}\n")
            sys.stderr.write(f"hint: Install onnxq with all that it needs: {sys.executable} -m pip install onnxq\n")
        return int(ExitCode.ERROR)
    lines = str(error).strip().splitlines()
    _say(f"onnxq hit a bug: {type(error).__name__}: {lines[0] if lines else ''}".rstrip(" :"), "")
    _tell_log(_traceback(error), arguments)
    return int(ExitCode.BUG)


def _has_folder() -> bool:
    try:
        return bool(os.getcwd())
    except OSError:
        return False


def _meant(arguments: list[str]) -> list[str]:
    """Take `onnxq version` and `onnxq help COMMAND`, which other programs have, for the options of that name."""
    match arguments:
        case ["version"]:
            return ["--version"]
        case ["help", *words] if len(words) <= 1:
            return [*words, "--help"]
    return arguments


def _open_closed_streams() -> None:
    """Open a place to write to for a program that was started with stdout or stderr closed (`>&-`).

    The number of the closed stream would go to the next file opened, and what libraries print to that number, into it.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  (it stays open to the end)


def _invoke(arguments: list[str]) -> int:
    import typer

    from onnxq.cli.app import command
    from onnxq.cli.completion import answer, without_shell

    built = command()
    if answer(built):
        return int(ExitCode.OK)
    arguments = without_shell(arguments)
    for before, word in zip(["", *arguments], arguments, strict=False):
        if word == "" or (word.startswith("--") and word.endswith("=")):  # it would count as the working folder
            what = word.rstrip("=") or (before if before.startswith("-") else "an argument")
            _say(f"{what} is empty", "Leave it out, or give a value: a variable of the shell may be unset.")
            return int(ExitCode.ERROR)
    try:
        with built.make_context("onnxq", arguments) as context:
            context.command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except Exception as error:
        # Wrong arguments. The class has moved between versions of typer; what it offers has not.
        if not hasattr(error, "format_message") or getattr(error, "exit_code", None) != ExitCode.ERROR:
            raise
        message = str(error.format_message()).strip()
        if not message or message.startswith("Usage: "):  # a command is missing: the help says which there are
            sys.stderr.write(f"{message}\n" if message else "")  # empty where typer has printed it
            return int(ExitCode.ERROR)
        from onnxq.cli.usage import usage_error

        _say(*usage_error(error, arguments))
        return int(ExitCode.ERROR)
    return int(ExitCode.OK)


def _say(message: str, hint: str, warnings: Sequence[object] = ()) -> None:
    from onnxq.cli.terminal import say

    with suppress(OSError):  # stderr is full or gone, and the exit code is all that is left to say it with
        for warning in warnings:
            say("warning", str(warning), "bold yellow")
        say("error", message, "bold red")
        if hint:
            say("hint", hint, "cyan")


def _interrupted(number: int | None, *, at_once: bool) -> int:
    """Say that it was interrupted, and return or end with the exit code.

    At once, that is without waiting for threads inside onnxruntime or for an interpreter that was interrupted.
    CPython ends with the signal instead of the exit code where the interrupt hit code that `exec` ran from a string, as
    `dataclasses` does.
    """
    _remove_temporary()
    _say_interrupted(number or 0)
    code = 128 + number if number in ENDED else int(ExitCode.INTERRUPTED)
    if at_once:
        os._exit(code)
    return code


def _remove_temporary() -> None:
    """Remove folders that belong to the process; the exception has passed through the owners of all others."""
    module = sys.modules.get("onnxq.ir.storage.temporary")  # nothing has been named where it is not loaded
    if module is not None:
        module.remove_temporary()


def _say_interrupted(number: int) -> None:
    say_goodbye()
    with suppress(OSError):
        sys.stderr.write(f"{ENDED.get(number, 'interrupted')}\n")
        sys.stderr.flush()


def _end_bar(number: int) -> None:
    """Say that it was interrupted, in place of a progress bar that nothing else takes away any more."""
    from onnxq.cli.terminal import erase_bar

    with suppress(OSError):
        erase_bar()
    _say_interrupted(number)


def _without_stdout(code: int) -> int:
    """Let nothing be written any more: the interpreter flushes stdout once again when it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return int(code)


def _crashed(arguments: list[str], message: str, hint: str, fault: str) -> None:
    """Say what ended the process, in the copy that has watched it, and at once: Rich would take a while to load."""
    from onnxq.cli.terminal import erase_line

    with suppress(OSError):
        erase_line()
        sys.stderr.write(f"error: {message}\n" + (f"hint: {hint}\n" if hint else ""))
        sys.stderr.flush()
    if fault:
        _tell_log(fault.splitlines(), arguments)


def _traceback(error: BaseException) -> list[str]:
    import traceback

    return traceback.format_exception(error)


def _tell_log(trace: Sequence[str], arguments: list[str]) -> None:
    from onnxq.cli.terminal import say

    try:
        say("hint", f"Please report it with {_write_log(trace, arguments)}", "cyan")
    except OSError as problem:
        say("hint", f"Please report it; a log could not be written ({problem.strerror}).", "cyan")


def _write_log(trace: Sequence[str], arguments: list[str]) -> str:
    """Write the traceback and what ran where to a file in the system's temporary folder, and give its path."""
    import platform
    import shlex
    import tempfile

    lines = [
        f"command: {shlex.join(['onnxq', *arguments])}",
        f"python: {platform.python_version()} on {platform.platform()}",
        *(f"{package}: {installed_version(package) or 'not installed'}" for package in PACKAGES),
        "",
        *trace,
    ]
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", prefix="onnxq-", suffix=".log", delete=False, errors="backslashreplace"
    ) as file:
        file.write("\n".join(lines))
    return file.name
