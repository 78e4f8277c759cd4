"""A pattern matcher: an expression of operators, found in a graph by its last node, or the reason why it is not there.

    x = var("x")
    RECIPROCAL = op("Reciprocal", op("Sqrt", x, name="root"), once=True)
    PATTERN = op("Mul", var("y"), RECIPROCAL)

    found = match(PATTERN, node)
    found["y"], found["root"]                       # values by their names in the pattern

Rules that hold for every pattern:

* Operators of `ai.onnx` unless a domain is given, and in the scope of the last node: not in a body, nor around it.
* Add, Mul and other operators with two operands that commute match in either order.
* A name that stands twice means the same value twice.
* `once` asks that one place alone reads a value, bodies included, and that it is no output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any, NamedTuple

import numpy as np

from onnxq.ir.graph import Node, Value
from onnxq.ir.tensor import Tensor

COMMUTATIVE = frozenset(("Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal", "Max", "Mean", "Min"))
COMMUTATIVE |= frozenset(("Mul", "Or", "Sum", "Xor"))
MOST_ELEMENTS = 1 << 16  # of a constant whose elements are compared


@dataclass(frozen=True)
class Pattern:
    """A condition on a value.

    Attributes:
        name: What a match calls the value; empty if nothing asks for it.
        accepts: What it has to fulfil besides.
        says: What `accepts` asks for, as in "'x' is not …".

    """

    name: str = ""
    accepts: Callable[[Value], bool] | None = None
    says: str = "what the pass works on"


@dataclass(frozen=True)
class Constant(Pattern):
    """A value that is known: an initializer that is no graph input.

    Attributes:
        equals: The elements, as a number for a tensor of one element or as a list; None for any.
        size: How many elements there are; None for any number.
        fits: What the elements have to fulfil besides, as `says` says.
        once: Whether one place alone reads the value.

    """

    equals: float | Sequence[float] | None = None
    size: int | None = None
    fits: Callable[[Tensor], bool] | None = None
    once: bool = False


@dataclass(frozen=True)
class Optional(Pattern):
    """An input that may be absent."""

    pattern: Pattern = field(default_factory=Pattern)


@dataclass(frozen=True)
class Operator(Pattern):
    """A value that a node makes.

    Attributes:
        types: Names of operators, any of which it may be.
        inputs: What it reads; `...` at the end for any further inputs.
        domain: Operator set of the operator.
        once: Whether one place alone reads the value.
        output: Which output of the node it is.
        attributes: Attribute → value, or a test of the value that is given None where it is absent.

    """

    types: tuple[str, ...] = ()
    inputs: tuple[Pattern | EllipsisType, ...] = ()
    domain: str = ""
    once: bool = False
    output: int = 0
    attributes: tuple[tuple[str, Any], ...] = ()


def var(name: str = "", accepts: Callable[[Value], bool] | None = None, says: str = Pattern.says) -> Pattern:
    """Describe any value."""
    return Pattern(name, accepts, says)


def computed(name: str = "") -> Pattern:
    """Describe a value that is no constant."""
    return Pattern(name, lambda value: value.constant is None, "computed at run time")


def const(
    equals: float | Sequence[float] | None = None,
    name: str = "",
    *,
    size: int | None = None,
    fits: Callable[[Tensor], bool] | None = None,
    says: str = Pattern.says,
    once: bool = False,
) -> Constant:
    """Describe a constant: by its elements, by how many there are, by a test, or any."""
    return Constant(name, None, says, equals, size, fits, once)


def maybe(pattern: Pattern) -> Optional:
    """Describe an optional input: absent, or what the pattern says."""
    return Optional(pattern=pattern)


def op(
    types: str | tuple[str, ...],
    *inputs: Pattern | EllipsisType,
    name: str = "",
    domain: str = "",
    once: bool = False,
    output: int = 0,
    **attributes: Any,
) -> Operator:
    """Describe what a node makes; see `Operator`."""
    types = (types,) if isinstance(types, str) else types
    return Operator(name, None, "", types, inputs, domain, once, output, tuple(attributes.items()))


def unset_or(expected: Any) -> Callable[[Any], bool]:
    """Return a test of an attribute whose default is `expected`."""
    return lambda value: value is None or value == expected


@dataclass(frozen=True)
class Match:
    """The place of a pattern in a graph.

    Attributes:
        root: The last node of the expression.
        values: The values that the pattern names.
        claimed: The root, and the nodes whose results one place alone reads: two matches that share one cannot both be
            rewritten at once.

    """

    root: Node
    values: dict[str, Value]
    claimed: tuple[Node, ...]

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def get(self, name: str) -> Value | None:
        """Return a value that an optional input may have left out."""
        return self.values.get(name)

    def node(self, name: str) -> Node:
        """Return the node that makes a value."""
        made = self.values[name].producer
        if made is None:
            raise KeyError(f"no node makes '{name}'")
        return made

    def array(self, name: str) -> np.ndarray:
        """Return the elements of a constant."""
        return self.tensor(name).numpy()

    def tensor(self, name: str) -> Tensor:
        """Return a constant."""
        tensor = self.values[name].constant
        if tensor is None:
            raise KeyError(f"'{name}' is no constant")
        return tensor

    @property
    def result(self) -> Value:
        """The output of the root."""
        made = self.root.outputs[0]
        if made is None:
            raise KeyError("the root makes nothing")
        return made


@dataclass(frozen=True)
class Failure:
    """Why a pattern was not found at a node.

    Attributes:
        reason: A sentence without its full stop.
        depth: How many values had matched before; the reason is that of the way on which most did.

    """

    reason: str
    depth: int


class NoMatch(Exception):
    """Raised by what builds on a match, with the reason: the expression is there, but the rewrite does not apply."""


def match(pattern: Operator, node: Node) -> Match | None:
    """Find a pattern whose last node is a given one; None where it is not there."""
    if node.op_type not in pattern.types:  # as of most nodes of a graph
        return None
    return next(_Attempt(node).root(pattern), None)


def attempt(pattern: Operator, node: Node) -> Match | Failure:
    """Find a pattern whose last node is a given one, or say why it is not there."""
    tried = _Attempt(node)
    return next(tried.root(pattern), None) or Failure(tried.reason(), tried.depth)


@dataclass(frozen=True)
class _State:
    """Bindings so far, on one branch of the search."""

    values: dict[str, Value]
    claimed: tuple[Node, ...]
    depth: int = 0


class _Place(NamedTuple):
    """An input of a node; at -1 the node itself."""

    node: Node
    at: int

    def __str__(self) -> str:
        return f"input {self.at} of {_called(self.node)}" if self.at >= 0 else "it"


class _Attempt:
    """One search from one node, and the failure of the way on which most matched."""

    def __init__(self, root: Node) -> None:
        self.node = root
        self.depth = -1
        self._reason: Callable[[], str] = str

    def reason(self) -> str:
        """Say why the best way failed."""
        return self._reason()

    def fail(self, state: _State, reason: Callable[[], str]) -> bool:
        """Note why a way ends here, unless another got further; the sentence is made when it is asked for."""
        if state.depth > self.depth:
            self.depth, self._reason = state.depth, reason
        return False

    def root(self, pattern: Operator) -> Iterator[Match]:
        """Find all ways in which the pattern is there."""
        start = _State({}, (self.node,))
        made = self.node.outputs[pattern.output] if pattern.output < len(self.node.outputs) else None
        if made is None:
            self.fail(start, lambda: f"{_called(self.node)} does not make its output {pattern.output}")
            return
        for state in self._operator(pattern, made, self.node, start, _Place(self.node, -1)):
            yield Match(self.node, state.values, state.claimed)

    def _value(self, pattern: Pattern, value: Value | None, place: _Place, state: _State) -> Iterator[_State]:
        """Match what a node reads at a place."""
        if isinstance(pattern, Optional):
            yield from iter([state]) if value is None else self._value(pattern.pattern, value, place, state)
        elif value is None:
            self.fail(state, lambda: f"{place} is absent")
        elif isinstance(pattern, Operator):
            maker = value.producer
            if maker is None:
                self.fail(state, lambda: f"{place} is '{value.name}', which no node makes: {_wanted(pattern)} should")
            elif maker.graph is not self.node.graph:
                self.fail(state, lambda: f"{place} is made in another scope, by {_called(maker)}")
            elif pattern.once and value.only_use is None:
                self.fail(state, lambda: f"{place} is '{value.name}', which {_readers(value)}: one reader is needed")
            else:
                yield from self._operator(pattern, value, maker, state, place)
        elif not isinstance(pattern, Constant) or self._constant(pattern, value, place, state):
            yield from self._bound(pattern, value, state)

    def _operator(self, pattern: Operator, value: Value, maker: Node, state: _State, place: _Place) -> Iterator[_State]:
        """Match the node that makes a value, and what it reads."""
        if maker.op_type not in pattern.types or maker.domain != pattern.domain:
            self.fail(state, lambda: f"{place} is made by {_called(maker)}, not by {_wanted(pattern)}")
            return
        at = maker.outputs.index(value)
        if at != pattern.output:
            self.fail(state, lambda: f"{place} is output {at} of {_called(maker)}, not {pattern.output}")
            return
        for name, expected in pattern.attributes:
            given = maker.attribute(name)
            if not (expected(given) if callable(expected) else given == expected):
                self.fail(state, lambda name=name, given=given: _attribute(maker, name, given))  # type: ignore[misc]
                return
        claimed = (*state.claimed, maker) if pattern.once else state.claimed
        for bound in self._bound(pattern, value, _State(state.values, claimed, state.depth)):
            yield from self._inputs(pattern, maker, bound)

    def _inputs(self, pattern: Operator, maker: Node, state: _State) -> Iterator[_State]:
        """Match what a node reads, in either order where that does not matter."""
        wanted = [each for each in pattern.inputs if isinstance(each, Pattern)]
        given = list(maker.inputs)
        while given and given[-1] is None:
            given.pop()
        if len(given) > len(wanted) and len(wanted) == len(pattern.inputs):
            self.fail(state, lambda: f"{_called(maker)} has {len(given)} inputs, not {len(wanted)}")
            return
        given += [None] * (len(wanted) - len(given))
        orders = [range(len(wanted))]
        if len(wanted) == len(given) == 2 and maker.op_type in COMMUTATIVE and not maker.domain:
            orders.append(range(1, -1, -1))
        for order in orders:
            steps = [(each, given[at], _Place(maker, at)) for each, at in zip(wanted, order, strict=True)]
            yield from self._all(steps, state)

    def _all(self, steps: list[tuple[Pattern, Value | None, _Place]], state: _State) -> Iterator[_State]:
        if not steps:
            yield state
            return
        pattern, value, place = steps[0]
        for after in self._value(pattern, value, place, state):
            yield from self._all(steps[1:], after)

    def _constant(self, pattern: Constant, value: Value, place: _Place, state: _State) -> bool:
        tensor = value.constant
        if tensor is None:
            return self.fail(state, lambda: f"{place} is '{value.name}', which is no constant")
        if pattern.size is not None and tensor.size != pattern.size:
            return self.fail(state, lambda: f"'{value.name}' has {tensor.size} elements, not {pattern.size}")
        if pattern.once and value.only_use is None:
            return self.fail(state, lambda: f"{place} is '{value.name}', which {_readers(value)}: one reader is needed")
        if pattern.fits is not None and not pattern.fits(tensor):
            return self.fail(state, lambda: f"'{value.name}' is not {pattern.says}")
        if pattern.equals is None:
            return True
        expected = np.asarray(pattern.equals)
        fits = tensor.size == expected.size and (not expected.ndim or tensor.shape == expected.shape)
        if not fits or tensor.size > MOST_ELEMENTS or not (tensor.numpy().reshape(expected.shape) == expected).all():
            return self.fail(state, lambda: f"'{value.name}' is not {pattern.equals}")
        return True

    def _bound(self, pattern: Pattern, value: Value, state: _State) -> Iterator[_State]:
        """Name a value, if it may have that name."""
        if pattern.accepts is not None and not pattern.accepts(value):
            self.fail(state, lambda: f"'{value.name}' is not {pattern.says}")
            return
        known = state.values.get(pattern.name, value) if pattern.name else value
        if known is not value:
            self.fail(state, lambda: f"'{value.name}' and '{known.name}' have to be the same value")
            return
        values = {**state.values, pattern.name: value} if pattern.name else state.values
        yield _State(values, state.claimed, state.depth + 1)


def _called(node: Node) -> str:
    return f"{node.operator} '{node.display_name}'"


def _wanted(pattern: Operator) -> str:
    names = [f"{pattern.domain}.{name}" if pattern.domain else name for name in pattern.types]
    return " or ".join(names)


def _readers(value: Value) -> str:
    return "is an output of the graph" if value.is_output else f"is read in {len(value.uses)} places"


def _attribute(node: Node, name: str, given: Any) -> str:
    stated = "is absent from" if given is None else f"is {given} in"
    return f"attribute {name} {stated} {_called(node)}"
