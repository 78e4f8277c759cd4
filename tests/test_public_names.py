"""The names of `import onnxq`, as a type checker sees them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, get_args, get_type_hints

import onnxq
from onnxq.cli.app import COMMANDS

MISSPELT = 'import onnxq\n\nonnxq.quantise("x")\n'
RIGHT = 'import onnxq\n\nreport: onnxq.Report = onnxq.quantize("x")\n'


def type_errors(folder: Path, programs: dict[str, str]) -> str:
    """Run `mypy --strict` on programs, and return what it says of them alone.

    onnxq is a package beside them here. For a user it is an installed one, of which mypy reports nothing, so its
    modules are followed silently, and packages that it uses not at all, nor their stubs: to read those takes half of
    the time. There is no cache: that of this repository was written under other settings.
    """
    skipped = "numpy.*,onnx.*,onnxruntime.*,google.*,ml_dtypes.*,PIL.*"
    lines = ["[mypy]", f"[mypy-{skipped}]", "follow_imports = skip", "follow_imports_for_stubs = True"]
    (folder / "mypy.ini").write_text("\n".join(lines))
    for name, text in programs.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    settings = ["--strict", "--no-error-summary", f"--config-file={folder / 'mypy.ini'}", "--follow-imports=silent"]
    command = [sys.executable, "-m", "mypy", *settings, f"--cache-dir={os.devnull}"]
    command += [str(folder / f"{name}.py") for name in programs]
    return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1]).stdout


def named(kind: Any) -> Iterator[type]:
    """Classes of onnxq that an annotation names."""
    if isinstance(kind, type) and kind.__module__.startswith("onnxq."):
        yield kind
    for part in get_args(kind):
        for each in part if isinstance(part, list) else [part]:
            yield from named(each)


def test_every_type_in_a_public_signature_is_public() -> None:
    functions = [found for name in onnxq.__all__ if isinstance(found := getattr(onnxq, name), FunctionType)]
    assert len(functions) > 20
    kinds = {kind for function in functions for hint in get_type_hints(function).values() for kind in named(hint)}
    assert {kind for kind in kinds if getattr(onnxq, kind.__name__, None) is not kind} == set()


def test_every_command_has_a_function() -> None:
    other = {"data": "examine", "recipes": "recipe_names"}
    commands = {function.__name__ for function in COMMANDS} - {"init"}  # which writes a file to start from
    assert {other.get(name, name) for name in commands} <= set(onnxq.__all__)


def test_a_misspelt_name_fails_a_type_check_and_right_ones_pass(tmp_path: Path) -> None:
    """One run for all, since mypy reads onnxq anew each time."""
    page = (Path(__file__).parents[1] / "docs" / "how-to" / "python.md").read_text(encoding="utf-8")
    (example,) = (block.partition("```")[0] for block in page.split("```python\n")[1:])
    found = type_errors(tmp_path, {"misspelt": MISSPELT, "right": RIGHT, "example": example})
    (line,) = found.splitlines()
    assert "misspelt.py" in line
    assert 'Module has no attribute "quantise"' in line


def test_every_public_name_is_there_and_has_words() -> None:
    for name in onnxq.__all__:
        assert getattr(onnxq, name) is not None
        assert name == "__version__" or getattr(onnxq, name).__doc__, name
