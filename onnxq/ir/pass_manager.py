"""The pass manager: one registry of all passes over a graph, and the one runner that checks what each of them did.

A pass is one module with one function under `register_pass`. Its name is that of its module, its summary the first
sentence of the module's docstring. Its phase follows from its package.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeVar

from onnxq.errors import InvalidResult
from onnxq.ir.commit import commit
from onnxq.ir.invariants import problems
from onnxq.ir.model import Model
from onnxq.ir.patch import Patch
from onnxq.ir.shape_inference.types import infer_types

# Phases in the order in which a model passes them, and the packages whose modules are their passes
NORMALISE, SIMPLIFY, OPTIMIZE = "normalise", "simplify", "optimize"
PACKAGES = {NORMALISE: "onnxq.ir.passes", SIMPLIFY: "onnxq.simplify", OPTIMIZE: "onnxq.optimize"}


@dataclass(frozen=True)
class Change:
    """One change that a pass describes, where a patch alone does not say enough.

    Attributes:
        patch: How. Values that stay keep their names, and a name keeps its meaning: layers are compared by it.
        note: What it is, in place of the note of the pass.
        opset: The operator set of `ai.onnx` that the patch needs. The model is converted to it, and the pass asked
            again; where it cannot be converted, the change is left out.
        count: How many of its kind it is.

    """

    patch: Patch
    note: str = ""
    opset: int = 0
    count: int = 1


class Capabilities(Protocol):
    """Capabilities of a target that the manager asks for; `onnxq.targets.target.Target` has it."""

    @property
    def name(self) -> str:
        """Its name for `--target`."""

    @property
    def timed(self) -> bool:
        """Whether its kernel times are known."""

    @property
    def domains(self) -> Collection[str]:
        """Operator sets that it knows."""


@dataclass(frozen=True)
class Pass:
    """A pass.

    Attributes:
        name: Name of its module.
        phase: `normalise`, `simplify` or `optimize`.
        order: Passes of a phase run in ascending order.
        summary: What it does, in a sentence.
        run: Yields patches or changes, no two of which touch the same node; or changes the model and returns how often
            it did.
        note: What it did, for the report; `{}` stands for how often, `{s}` for the plural's s; empty for nothing.
        opset: The operator set of `ai.onnx` from which on it runs.
        operators: It runs where the model has one of these operators, always without any.
        timed: Whether it needs a target whose kernel times are known.
        domain: Operator set that the target has to know.
        integer: Whether it pays only where products are going to compute in 8 bit.
        types: Whether types have to be inferred before it.
        for_target: Whether it is given the target.

    """

    name: str
    phase: str
    order: int
    summary: str
    run: Callable[..., Iterator[Patch | Change] | int]
    note: str = ""
    opset: int = 0
    operators: tuple[str, ...] = ()
    timed: bool = False
    domain: str = ""
    integer: bool = False
    types: bool = False
    for_target: bool = False

    def obstacle(
        self,
        model: Model,
        target: Capabilities | None = None,
        *,
        integer: bool = True,
        operators: Collection[str] | None = None,
    ) -> str:
        """Say why the pass does not run on a model at all; empty where it does.

        Args:
            model: The model.
            target: The runtime that the model is for, where that is known.
            integer: Whether products are going to compute in 8 bit.
            operators: Those of the model, where they are known; otherwise its graph is searched for them.

        """
        if model.opset < self.opset:
            return f"it needs operator set {self.opset}, and the model has {model.opset}"
        if self.integer and not integer:
            return "it pays only where products compute in 8 bit"
        if self.timed and target is not None and not target.timed:
            return f"it follows kernel times, and none are known of {target.name}"
        if self.domain and target is not None and self.domain not in target.domains:
            return f"{target.name} does not know the operators of {self.domain}"
        if self.operators:
            there = operators_of(model) if operators is None else operators
            if all(operator not in there for operator in self.operators):
                return f"the model has no {' or '.join(self.operators)}"
        return ""


def operators_of(model: Model) -> frozenset[str]:
    """Return the names of all operators of a model, those of bodies included."""
    return frozenset(node.op_type for node in model.graph.walk())


_PASSES: dict[str, Pass] = {}
Function = TypeVar("Function", bound=Callable[..., Any])


def register_pass(*, order: int, note: str = "", **needs: Any) -> Callable[[Function], Function]:
    """Register a function as a pass.

    It yields a patch, or a `Change`, for each place, and the runner commits all of them at once. A pass that patches
    cannot describe changes the model itself and returns how often it did.

    Args:
        order: Passes of a phase run in ascending order.
        note: See `Pass`.
        needs: Attributes of `Pass` that say where it runs and what it is given; and `run`, where that is something else
            than the function.

    """

    def register(function: Function) -> Function:
        module = function.__module__
        name = module.rpartition(".")[2]
        phase = next((phase for phase, package in PACKAGES.items() if module.startswith(f"{package}.")), "")
        if not phase or name in _PASSES:
            raise ValueError(f"{module} is no module of a phase, or its name is that of another pass")
        sentence = (function.__globals__["__doc__"] or "").split("\n\n")[0].partition(". ")[0]
        summary = " ".join(sentence.split())
        _PASSES[name] = Pass(name, phase, order, summary, note=note, **{"run": function, **needs})
        return function

    return register


@cache
def find_passes(phase: str) -> tuple[Pass, ...]:
    """Import every module of a phase's package and return its passes in the order they run in."""
    package = importlib.import_module(PACKAGES[phase])
    for module in pkgutil.walk_packages(package.__path__, prefix=f"{PACKAGES[phase]}."):
        importlib.import_module(module.name)
    found = [item for item in _PASSES.values() if item.phase == phase]
    return tuple(sorted(found, key=lambda item: (item.order, item.name)))


def select_passes(phase: str, only: Collection[str] | None) -> list[Pass]:
    """Return the passes of a phase of these names, all of them for None.

    Raises:
        ValueError: A name is not that of a pass of the phase.

    """
    passes = find_passes(phase)
    unknown = set(only or ()) - {item.name for item in passes}
    if unknown:
        raise ValueError(f"no {phase} pass is named {', '.join(sorted(unknown))}")
    return [item for item in passes if only is None or item.name in only]


@dataclass(frozen=True)
class Outcome:
    """The result of passes on a model.

    Attributes:
        model: The same object, or another if the opset had to be raised; types inferred where they were before.
        original: A copy from before, weights shared, types not inferred; None if nothing was changed or none was kept.
        notes: What was done, a sentence for each kind of change.

    """

    model: Model
    original: Model | None = None
    notes: tuple[str, ...] = ()


# (model, operator set) → the model in that operator set, types inferred; None where it cannot be converted
Convert = Callable[[Model, int], Model | None]


def run_passes(
    model: Model,
    passes: Sequence[Pass],
    *,
    target: Capabilities | None = None,
    rounds: int = 1,
    typed: bool = False,
    keep: bool = False,
    convert: Convert | None = None,
) -> Outcome:
    """Run passes in the order given, and check the graph behind each one that changed something.

    Args:
        model: A model; it is changed.
        passes: What runs. A pass with an `obstacle` is left out.
        target: The runtime that the model is for.
        rounds: How often they all run at most, where one makes work for another; they end when none finds anything.
        typed: Whether types are inferred, and have to be again behind each pass that changes something.
        keep: Whether to copy the model before the first change.
        convert: Converts the model to another operator set where a change needs that; such changes are left out
            without it.

    Raises:
        InvalidResult: A pass broke the graph.

    """
    work = _Run(model, target, typed=typed, keep=keep, convert=convert)
    for _ in range(rounds):
        found = [work.step(item) for item in passes]
        if not any(found):
            break
    if typed:
        work.infer()
    return Outcome(work.model, work.original, tuple(work.notes()))


def apply_changes(model: Model, changes: Iterable[Patch | Change]) -> int:
    """Commit changes all at once, import the operator sets that they need, and return how many there were."""
    patches = [_as_change(change).patch for change in changes]
    commit(patches)
    for node in (node for patch in patches for node in patch.nodes if node.domain):
        model.opsets.setdefault(node.domain, 1)
    return len(patches)


def _as_change(given: Patch | Change) -> Change:
    return given if isinstance(given, Change) else Change(given)


class _Run:
    """A model on its way, and what has been done to it."""

    def __init__(
        self, model: Model, target: Capabilities | None, *, typed: bool, keep: bool, convert: Convert | None
    ) -> None:
        self.model = model
        self.original: Model | None = None
        self._target = target
        self._typed = self._keeps_types = typed
        self._keep = keep
        self._convert = convert
        self._start = model.opset
        self._raised = False
        self._done = Counter[str]()
        self._operators = operators_of(model)

    def step(self, item: Pass) -> bool:
        """Carry out what a pass finds; tell whether that was anything."""
        if item.obstacle(self.model, self._target, operators=self._operators):
            return False
        if item.types or self._keeps_types:
            self.infer()
        found = self._asked(item, self.model)
        if isinstance(found, int):
            self._done[item.note] += found
            return self._changed(item) if found else False
        changes = self._possible(item, found)
        if not changes:
            return False
        if self._keep and self.original is None:
            self.original = self.model.copy()
        apply_changes(self.model, changes)
        for change in changes:
            self._done[change.note or item.note] += change.count
        return self._changed(item)

    def _asked(self, item: Pass, model: Model) -> list[Change] | int:
        found = item.run(model, self._target) if item.for_target else item.run(model)
        return found if isinstance(found, int) else [_as_change(each) for each in found]

    def _changed(self, item: Pass) -> bool:
        broken = next(problems(self.model), None)
        if broken is not None:
            raise InvalidResult(f"the pass {item.name} broke {self.model.name}: {broken}", "Report this model.")
        self._typed = False
        self._operators = operators_of(self.model)
        return True

    def _possible(self, item: Pass, changes: list[Change]) -> list[Change]:
        """Convert the model as far as it can be for some changes, and return those that are possible then."""
        newest = max((change.opset for change in changes), default=0)
        if newest <= self.model.opset:
            return changes
        for opset in sorted({change.opset for change in changes}, reverse=True):
            if opset <= self.model.opset:
                break
            newer = self._convert(self.model, opset) if self._convert is not None else None
            found = self._of_opset(item, newer) if newer is not None else []
            if newer is not None and found:
                self.original = self.model if self.original is None else self.original
                self.model, self._raised, self._typed = newer, True, True
                return found
        return self._of_opset(item, self.model)

    def _of_opset(self, item: Pass, model: Model) -> list[Change]:
        found = self._asked(item, model)
        return [] if isinstance(found, int) else [change for change in found if change.opset <= model.opset]

    def infer(self) -> None:
        """Infer types where something has changed since they were."""
        if not self._typed:
            infer_types(self.model)
            self._typed = True

    def notes(self) -> Iterator[str]:
        """Say what was done, in the order in which it was first done."""
        for note, count in self._done.items():
            if note and count:
                yield note.format(count, s="" if count == 1 else "s")
        if self._raised:
            yield f"opset raised from {self._start} to {self.model.opset}"
