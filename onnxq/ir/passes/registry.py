"""Where passes announce themselves, and the runner that holds each one to its promise.

Tests: `tests/ir/test_passes.py`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache

from onnxq.errors import InvalidResult
from onnxq.ir.commit import commit
from onnxq.ir.invariants import problems
from onnxq.ir.model import Model
from onnxq.ir.patch import Patch

Describe = Callable[[Model], Iterator[Patch]]
Rebuild = Callable[[Model], int]


@dataclass(frozen=True)
class Pass:
    """A normalising pass.

    Attributes:
        name: Name of its module.
        order: Passes run in ascending order.
        note: What it did, for the report; `{}` stands for how often, `{s}` for the plural's s.
        run: Changes the model and gives how often it did.

    """

    name: str
    order: int
    note: str
    run: Rebuild


_PASSES: dict[str, Pass] = {}


def describes(*, order: int, note: str) -> Callable[[Describe], Describe]:
    """Register a pass that describes one patch for each change; the runner commits them at once."""

    def register(function: Describe) -> Describe:
        def run(model: Model) -> int:
            patches = list(function(model))
            commit(patches)
            return len(patches)

        _add(function.__module__, order, note, run)
        return function

    return register


def rebuilds(*, order: int, note: str) -> Callable[[Rebuild], Rebuild]:
    """Register a pass that gives the model new content and says how many changes that was."""

    def register(function: Rebuild) -> Rebuild:
        _add(function.__module__, order, note, function)
        return function

    return register


def _add(module: str, order: int, note: str, run: Rebuild) -> None:
    name = module.rpartition(".")[2]
    _PASSES[name] = Pass(name, order, note, run)


@cache
def find_passes() -> tuple[Pass, ...]:
    """Import every module of this folder and give the passes in the order they run in."""
    package = importlib.import_module("onnxq.ir.passes")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"onnxq.ir.passes.{module.name}")
    return tuple(sorted(_PASSES.values(), key=lambda item: (item.order, item.name)))


def normalise(model: Model, needs: Collection[str] | None = None) -> list[str]:
    """Run the passes that are needed on a model, in place.

    Args:
        model: The model. Its graph may be another object afterwards, and types have to be inferred anew.
        needs: Names of passes; None for all of them.

    Returns:
        What was done, a sentence for each pass that changed something.

    Raises:
        ModelError: The model cannot be brought into the form that a pass is for.
        InvalidResult: A pass broke the graph.
        ValueError: `needs` names a pass that does not exist.

    """
    passes = find_passes()
    unknown = set(needs or ()) - {item.name for item in passes}
    if unknown:
        raise ValueError(f"no pass is named {', '.join(sorted(unknown))}")
    done: list[str] = []
    for item in passes:
        if needs is not None and item.name not in needs:
            continue
        count = item.run(model)
        if count:
            broken = next(problems(model), None)
            if broken is not None:
                raise InvalidResult(f"the pass {item.name} broke {model.name}: {broken}", "Report this model.")
            done.append(item.note.format(count, s="" if count == 1 else "s"))
    return done
