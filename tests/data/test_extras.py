"""Packages of extras: named with their pip command when missing, imported only when needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from onnxq.data.extras import need
from onnxq.errors import DataError


def test_a_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "PIL.Image", raising=False)
    with pytest.raises(DataError) as caught:
        need("PIL.Image", "images", "reading pictures")
    assert caught.value.message == "reading pictures needs Pillow, which is not installed"
    assert caught.value.hint == "Install it: pip install 'onnxq[images]'"


def test_a_package_that_is_there_is_imported() -> None:
    assert need("json", "images", "x").dumps([]) == "[]"


def test_a_package_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    (tmp_path / "broken_package.py").write_text("import a_module_that_is_not_there\n")
    (tmp_path / "broken_library.py").write_text("raise OSError('libsomething.so is missing')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DataError, match="does not load: No module named 'a_module_that_is_not_there'"):
        need("broken_package", "audio", "reading sounds")
    with pytest.raises(DataError, match=r"does not load: libsomething\.so is missing"):
        need("broken_library", "audio", "reading sounds")


def test_nothing_is_imported_before_it_is_used() -> None:
    code = (
        "import sys; import onnxq.data.samples, onnxq.data.opening; "
        "sys.exit(any(name in sys.modules for name in ('PIL', 'tokenizers', 'soundfile', 'yaml')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
