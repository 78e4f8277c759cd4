"""A function that the user names as `package.module:function`.

Tests: `tests/data/test_samples.py`.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from onnxq.errors import DataError
from onnxq.text import did_you_mean

# Errors that a user's code may raise: a script may leave by sys.exit, which would end the command.
CALLED = (Exception, SystemExit)
CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def import_named(source: str) -> Any:
    """Import `package.module:function`; the current folder is searched for the module, too.

    Raises:
        DataError: The module cannot be imported, or does not have the name.

    """
    module_name, _, attribute = source.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        found = importlib.import_module(module_name)
    except CALLED as error:  # a user's module may raise anything while it is imported
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        absent = isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]
        hint = "The module is looked for here and on PYTHONPATH." if absent else "Mend the module: it fails by itself."
        raise DataError(f"{source} cannot be imported: {text}", hint) from error
    finally:
        if here in sys.path:
            sys.path.remove(here)
        if here not in sys.path:  # a function may import its neighbours once it is called; at the end it hides none
            sys.path.append(here)
    for part in attribute.split("."):
        if not hasattr(found, part):
            where = getattr(found, "__file__", None) or module_name
            names = [name for name in vars(found) if not name.startswith("_")] if hasattr(found, "__dict__") else []
            hint = did_you_mean(part, names, cutoff=0.6) or "Check the name of the function."
            raise DataError(f"{source}: there is no '{part}' in {where}", hint)
        found = getattr(found, part)
    return found
