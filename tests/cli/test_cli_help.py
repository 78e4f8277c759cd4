import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from onnxq.cli.app import COMMANDS
from onnxq.version import __version__

HELPS = [["--help"], *([function.__name__, "--help"] for function in COMMANDS)]
HEAVY = {"onnx", "onnxruntime", "numpy", "ml_dtypes", "onnxq.ir"}
BARE = "import typer; app = typer.Typer(); app.command()(lambda: None); app(['--help'])"
LOADED = (
    "import sys; from onnxq.cli import main; code = main(sys.argv[1:]); print(sorted(sys.modules), file=sys.stderr); "
    "sys.exit(code)"
)


def _spent(code: str, *arguments: str) -> tuple[float, str]:
    """Processor time of a Python process in seconds, and what it wrote to stderr."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stderr


@pytest.mark.parametrize("arguments", [*HELPS, ["--version"]], ids=" ".join)
def test_help_imports_nothing_heavy_and_starts_quickly(arguments: list[str]) -> None:
    best = bare = 10.0
    for _ in range(10):  # beside other work, single runs take longer
        spent, err = _spent(LOADED, *arguments)
        best, bare = min(best, spent), min(bare, _spent(BARE)[0])
        loaded = set(err.strip("[]\n").replace("'", "").split(", "))
        assert "typer" in loaded
        assert not loaded & HEAVY
        if best < 1.6 * bare:  # seconds would be a limit for one kind of processor; NumPy alone would break this one
            return
    pytest.fail(f"{best:.2f} s of processor time, {bare:.2f} s of them for Typer")


@pytest.mark.parametrize("arguments", HELPS, ids=" ".join)
def test_help_says_what_a_command_does(cli, arguments: list[str]) -> None:
    result = cli(*arguments)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("Usage: onnxq")
    assert not re.search(r"<(list\[|str|path)", result.out)


def test_help_lists_every_command(cli) -> None:
    out = cli("--help").out
    assert all(f"\n  {function.__name__} " in out for function in COMMANDS)
    assert "130 interrupted" in out


def test_no_line_of_the_overview_is_cut(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert "..." not in cli("--help").out.partition("Commands:")[2]


def test_without_a_command_the_help_is_shown(cli) -> None:
    result = cli()
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Usage: onnxq")
    assert f"\n  {COMMANDS[0].__name__} " in result.err


def test_version(cli) -> None:
    assert cli("--version") == (0, f"onnxq {__version__}\n", "")


def test_python_dash_m_is_the_same() -> None:
    done = subprocess.run([sys.executable, "-m", "onnxq", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"onnxq {__version__}\n"


def test_one_file_a_command() -> None:
    folder = Path(__file__).parents[2] / "onnxq" / "cli"
    assert all((folder / f"{function.__name__}.py").is_file() for function in COMMANDS)
