"""Import optional packages on demand, and name the pip command of a missing one.

Tests: `tests/data/test_extras.py`.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from onnxq.errors import DataError


def need(module: str, extra: str, what: str) -> ModuleType:
    """Import a module of an extra.

    Args:
        module: Its name, such as `PIL.Image`.
        extra: The extra of onnxq that brings it.
        what: What needs it, such as `reading pictures`.

    Raises:
        DataError: It is not installed, or does not work here.

    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        hint = f"Install it: pip install 'onnxq[{extra}]'"
        name = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] == name:
            raise DataError(f"{what} needs {PACKAGES.get(name, name)}, which is not installed", hint) from error
        raise DataError(f"{what} needs {PACKAGES.get(name, name)}, which does not load: {error}", hint) from error
    except OSError as error:  # a library of the system that is missing
        raise DataError(
            f"{what} needs {PACKAGES.get(module, module)}, which does not load: {error}",
            f"Install it again: pip install --force-reinstall 'onnxq[{extra}]'",
        ) from error


PACKAGES = {"PIL": "Pillow"}
