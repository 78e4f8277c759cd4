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
# Each argument is a command line. A line on stderr tells what it took in seconds, and what is loaded behind it
COMMAND_LINES = """
import sys, time
from onnxq.cli import main
for line in sys.argv[1:]:
    begun = time.process_time()
    assert main(line.split()) == 0
    print(time.process_time() - begun, *sys.modules, file=sys.stderr)
"""


def _spent(code: str, *arguments: str) -> tuple[float, str]:
    """Processor time of a Python process in seconds, and what it wrote to stderr."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stderr


def test_help_imports_nothing_heavy_and_starts_quickly() -> None:
    """A command of its own takes the start of a process, and what it takes in a process that has started."""
    lines = [" ".join(words) for words in [*HELPS, ["--version"]]]
    start = bare = 10.0
    most = dict.fromkeys(lines, 10.0)
    for _ in range(10):  # beside other work, single runs take longer
        spent, err = _spent(COMMAND_LINES, *lines)
        bare = min(bare, _spent(BARE)[0])
        rows = [row.split() for row in err.splitlines()]
        assert "typer" in rows[0]
        for line, (taken, *loaded) in zip(lines, rows, strict=True):
            assert not HEAVY & set(loaded), line
            most[line] = min(most[line], float(taken))
        start = min(start, spent - sum(float(row[0]) for row in rows))
        slow = [f"{line}: {start + taken:.2f} s" for line, taken in most.items() if start + taken > 1.6 * bare]
        if not slow:  # seconds would be a limit for one kind of processor; NumPy alone would break this one
            return
    pytest.fail(f"{', '.join(slow)} of processor time, {bare:.2f} s of them for Typer")


MISTAKES = [
    *(f"{function.__name__} --nonsense" for function in COMMANDS),
    *(f"{name} gone.onnx" for name in ("quantize", "inspect", "verify", "plan", "data", "check")),
    *(f"{name} there.onnx -d gone.npz" for name in ("quantize", "verify", "plan", "data")),
    "verify there.onnx --against gone.onnx",
]


def test_a_wrong_option_or_path_is_told_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    (tmp_path / "there.onnx").touch()
    code = COMMAND_LINES.replace("== 0", "== 2")
    done = subprocess.run([sys.executable, "-c", code, *MISTAKES], cwd=tmp_path, capture_output=True, text=True)
    rows = [line.split() for line in done.stderr.splitlines() if line[:1].isdigit()]
    assert len(rows) == len(MISTAKES), done.stderr
    for line, (_, *loaded) in zip(MISTAKES, rows, strict=True):
        assert not HEAVY & set(loaded), line


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
