"""Where simplifying passes announce themselves, and the runner that raises the opset where one needs that."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache

from onnxq.errors import InvalidResult, ModelError
from onnxq.ir.commit import commit
from onnxq.ir.invariants import problems
from onnxq.ir.model import Model
from onnxq.ir.opset import raise_opset
from onnxq.ir.passes import normalise
from onnxq.ir.patch import Patch
from onnxq.ir.shape_inference.types import infer_types

SLOW_POOLS = 19  # from here on, AveragePool has dilations, and onnxruntime's kernel takes five to six times as long
ROUNDS = 8  # one pass can make work for another; so deep a nesting has no exporter shown yet


@dataclass(frozen=True)
class Change:
    """One thing that a pass would do.

    Attributes:
        patch: How. Values that stay keep their names, and a name keeps its meaning: layers are compared by it.
        note: What it is, for the report, the same sentence for all of a kind; `{}` stands for how many there were,
            `{s}` for the plural's s.
        opset: The operator set of `ai.onnx` that the patch needs. The model is converted to it, and the pass asked
            again; where it cannot be converted, the change is left out.
        count: How many of its kind it is.

    """

    patch: Patch
    note: str
    opset: int = 0
    count: int = 1


Describe = Callable[[Model], Iterator[Change]]


@dataclass(frozen=True)
class Simplification:
    """A simplifying pass.

    Attributes:
        name: Name of its module.
        order: Passes run in ascending order.
        describe: Gives the changes for a model whose types are inferred; no two of them touch the same node.
        integer: Whether it pays only where products are going to compute in 8 bit.

    """

    name: str
    order: int
    describe: Describe
    integer: bool = False


@dataclass(frozen=True)
class Simplified:
    """What became of a model.

    Attributes:
        model: The simplified one, types inferred: the same object, or another if the opset had to be raised.
        original: A copy of what it was before, weights shared, types not inferred; None if nothing was changed.
        notes: What was done, a sentence for each kind of change.

    """

    model: Model
    original: Model | None = None
    notes: tuple[str, ...] = ()


_PASSES: dict[str, Simplification] = {}


def simplifies(*, order: int, integer: bool = False) -> Callable[[Describe], Describe]:
    """Register a simplifying pass; its module stands in this folder."""

    def register(function: Describe) -> Describe:
        name = function.__module__.rpartition(".")[2]
        _PASSES[name] = Simplification(name, order, function, integer)
        return function

    return register


@cache
def find_simplifications() -> tuple[Simplification, ...]:
    """Import every module of this folder and give the passes in the order they run in."""
    package = importlib.import_module("onnxq.simplify")
    for module in pkgutil.walk_packages(package.__path__, prefix="onnxq.simplify."):
        importlib.import_module(module.name)
    return tuple(sorted(_PASSES.values(), key=lambda item: (item.order, item.name)))


def simplify(model: Model, only: Collection[str] | None = None, *, integer: bool = True) -> Simplified:
    """Run the simplifying passes until none finds anything more.

    Args:
        model: A normalised model, types inferred; it is changed.
        only: Names of passes; None for all of them.
        integer: Whether products are going to compute in 8 bit.

    Raises:
        InvalidResult: A pass broke the graph.
        ValueError: `only` names a pass that does not exist.

    """
    passes = find_simplifications()
    unknown = set(only or ()) - {item.name for item in passes}
    if unknown:
        raise ValueError(f"no simplifying pass is named {', '.join(sorted(unknown))}")
    chosen = [item for item in passes if (only is None or item.name in only) and (integer or not item.integer)]
    work = _Work(model)
    for _ in range(ROUNDS):
        found = [work.run(item) for item in chosen]
        if not any(found):
            break
    return Simplified(work.model, work.original, tuple(work.notes()))


class _Work:
    """A model on its way, and what has been done to it."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.original: Model | None = None
        self._opset = model.opset
        self._done = Counter[str]()

    def run(self, item: Simplification) -> bool:
        """Carry out what a pass finds; tell whether that was anything."""
        changes = list(item.describe(self.model))
        newest = max((change.opset for change in changes), default=0)
        if newest > self.model.opset:
            changes = self._raised(item, sorted({change.opset for change in changes}, reverse=True))
        if not changes:
            return False
        if self.original is None:
            self.original = self.model.copy()
        commit([change.patch for change in changes])
        broken = next(problems(self.model), None)
        if broken is not None:
            raise InvalidResult(f"the pass {item.name} broke {self.model.name}: {broken}", "Report this model.")
        infer_types(self.model)
        for change in changes:
            self._done[change.note] += change.count
        return True

    def _raised(self, item: Simplification, opsets: list[int]) -> list[Change]:
        """Convert the model as far as it can be for these changes, and give those that are possible then."""
        for opset in opsets:
            if opset <= self.model.opset:
                break
            if self.model.opset < SLOW_POOLS <= opset and _averages(self.model):
                continue
            try:
                newer = raise_opset(self.model, opset)
            except ModelError:  # then it stays spelled out
                continue
            normalise(newer)
            infer_types(newer)
            changes = _possible(item, newer)
            if changes:
                self.original = self.model if self.original is None else self.original
                self.model = newer
                return changes
        return _possible(item, self.model)

    def notes(self) -> Iterator[str]:
        """Say what was done, in the order in which it was first done."""
        for note, count in self._done.items():
            yield note.format(count, s="" if count == 1 else "s")
        if self.model.opset != self._opset:
            yield f"opset raised from {self._opset} to {self.model.opset}"


def _averages(model: Model) -> bool:
    return any(node.op_type == "AveragePool" and not node.domain for node in model.graph.walk())


def _possible(item: Simplification, model: Model) -> list[Change]:
    return [change for change in item.describe(model) if change.opset <= model.opset]
