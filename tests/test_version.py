"""Versions of packages that are installed, under one name or another."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import pytest

from onnxq import version as versions

ROOT = str(Path(__file__).parents[1])


def test_a_package_under_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime-gpu has the modules of onnxruntime: two of its versions are not the same."""

    def installed(name: str) -> str:
        if name.startswith("onnxruntime") and name != "onnxruntime-gpu":
            raise PackageNotFoundError(name)
        return "1.30.0" if name == "onnxruntime-gpu" else version(name)

    monkeypatch.setattr("importlib.metadata.version", installed)
    assert versions.installed_version("onnxruntime") == "1.30.0"
    assert versions.installed_version("numpy") == np.__version__
    assert versions.installed_version("no-such-package") is None


def test_the_package_is_imported_without_what_reads_versions() -> None:
    """It is half of the time of `import onnxq`, in which a Ctrl-C would leave a traceback."""
    code = "import sys, onnxq, onnxq.cli; sys.exit('importlib.metadata' in sys.modules)"
    assert subprocess.run([sys.executable, "-S", "-c", code], env={**os.environ, "PYTHONPATH": ROOT}).returncode == 0
