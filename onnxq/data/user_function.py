"""A function that the user names as `package.module:function`.

Tests: `tests/data/test_samples.py`.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from onnxq.errors import DataError
from onnxq.text import did_you_mean

# Errors that a user's code may raise: a script may leave by sys.exit, which would end the command.
CALLED = (Exception, SystemExit)
CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_homes: list[str] = []  # folders at the front of `sys.path`, such as that of a project


@contextmanager
def searched_first(folder: Path) -> Iterator[None]:
    """Search a folder for modules before the working folder, as that of a project wherever onnxq is called."""
    place = str(folder.resolve())
    _homes.insert(0, place)
    sys.path.insert(0, place)
    try:
        yield
    finally:
        _homes.remove(place)
        if place in sys.path:
            sys.path.remove(place)


def import_named(source: str) -> Any:
    """Import `package.module:function`; the current folder is searched for the module, too.

    Raises:
        DataError: The module cannot be imported, or does not have the name.

    """
    module_name, _, attribute = source.partition(":")
    here = str(Path.cwd())
    sys.path.insert(len(_homes), here)
    try:
        _forget_another(module_name)
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


def _forget_another(name: str) -> None:
    """Forget a module that was imported from another place than a search finds now, such as another project."""
    loaded, parts, path = getattr(sys.modules.get(name), "__file__", None), name.split("."), None
    origin: str | None = None
    for end in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:end]), path)
        if spec is None:
            return
        origin, path = spec.origin, spec.submodule_search_locations
    if loaded is not None and origin is not None and loaded != origin:
        for other in [one for one in sys.modules if one == parts[0] or one.startswith(f"{parts[0]}.")]:
            del sys.modules[other]
