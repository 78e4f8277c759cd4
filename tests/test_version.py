"""Versions of packages that are installed, under one name or another."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import numpy as np
import pytest

from onnxq import version as versions


def test_a_package_under_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime-gpu has the modules of onnxruntime: two of its versions are not the same."""

    def installed(name: str) -> str:
        if name.startswith("onnxruntime") and name != "onnxruntime-gpu":
            raise PackageNotFoundError(name)
        return "1.30.0" if name == "onnxruntime-gpu" else version(name)

    monkeypatch.setattr(versions, "version", installed)
    assert versions.installed_version("onnxruntime") == "1.30.0"
    assert versions.installed_version("numpy") == np.__version__
    assert versions.installed_version("no-such-package") is None
