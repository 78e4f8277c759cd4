"""The version of onnxq, and those of packages that it needs.

Tests: `tests/cli/test_cli_help.py`, `tests/test_version.py`.
"""

from __future__ import annotations

from contextlib import suppress

__version__ = "0.1.0"

OTHER_NAMES = {"onnxruntime": ("onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino")}


def installed_version(package: str) -> str | None:
    """Return the version of a package that is installed, without importing it; None if that is not known.

    Args:
        package: Its name, under which another one may be installed that has the same modules.

    """
    from importlib.metadata import PackageNotFoundError, version  # most of the time of `import onnxq` otherwise

    for name in (package, *OTHER_NAMES.get(package, ())):
        with suppress(PackageNotFoundError):
            return version(name)
    return None
