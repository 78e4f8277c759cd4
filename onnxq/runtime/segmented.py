"""A large model in onnxruntime, one segment after the other, over weights that stay mapped from their files.

onnxruntime can read a weight in the caller's memory. The caller gives it as an `OrtValue`, the model calls it external
data, and weights are not packed in advance. A session over 436 MB of weights then takes 9 MB and opens in 10 ms
(1.31.1). Only optimisations that look at the elements themselves fail then. Without the folding of constants, most such
segments still open: a weight that is cast or turned is so in each run. A segment that has int8 weights made uint8 ones,
for exact products with AVX2, gets copies and is opened for each run. None is made where products are exact anyway.

MatMulNBits computes in integers on packed weights alone, as it does for users. So a segment with it is packed, unless
scales come from another one: then packed weights give wrong numbers. Sessions of packed segments stay open as long as
all of them take little memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto

from onnxq.ir import DeferredTensor, Model, Node, Use, Value, infer_types
from onnxq.ir.segment import Segment, cut_segments, encode_segment
from onnxq.ops.forms.saturating_pairs import has_saturating_pair, inner_rows
from onnxq.runtime.memory import trim_heap
from onnxq.runtime.ort_session import SessionError, Settings, load_native
from onnxq.runtime.workers import run_in_order
from onnxq.targets.host import host_saturates

SEGMENT = 128 << 20  # bytes of weights that are in memory at a time
BESIDE = 1 << 18  # bytes from which on a weight stays in its file, and is not copied twice when a segment is opened
PACKING = "MatMulNBits"  # the operator that computes otherwise without packed weights
PARAMETERS = slice(2, 4)  # of its inputs: scales and zero points
PACKED = 64 << 20  # bytes of weights of a segment with those, which are in memory twice while it is opened
MOST_PACKED = 64 << 20  # bytes of packed weights that stay in memory; with twice as many, a run takes 6 % less time
PRODUCTS = ("DynamicQuantizeMatMul", "Gemm", "MatMul", "MatMulInteger")  # whose second input is the weight
# Readers of codes that do not multiply by them as they are
NO_PRODUCTS = (("Cast", 0), ("DequantizeLinear", 2), ("Gather", 0), ("MatMulInteger", 3), ("QuantizeLinear", 2))
# To open a session: whether over copies of the weights, and without which optimisations
WAYS: tuple[tuple[bool, tuple[str, ...]], ...] = ((False, ()), (False, ("ConstantFolding",)), (True, ()))

Result = TypeVar("Result")
Run = Callable[[ort.InferenceSession, Sequence[str], Mapping[str, Any]], list[Any]]


@dataclass(frozen=True)
class Argument:
    """An input or output as `InferenceSession.get_inputs` and `get_outputs` describe it."""

    name: str
    type: str
    shape: list[Any]


@dataclass
class _Part:
    """A segment; its session stays open where that takes no memory.

    Attributes:
        segment: The segment.
        packs: Whether its weights are packed in advance.
        ended: Values that no segment reads behind it.
        way: The first of `WAYS` that its session may be opened in.
        opened: Its session; None where that is opened for each run.

    """

    segment: Segment
    packs: bool
    ended: set[str] = field(default_factory=set)
    way: int = 0
    opened: _Opened | None = None

    def release(self) -> None:
        """Release the pages of the files that a run read, and what the run or a closed session has left."""
        for value in self.segment.constants:
            if value.tensor is not None:
                value.tensor.release()
        trim_heap(self.nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes of its weights."""
        return sum(value.tensor.nbytes for value in self.segment.constants if value.tensor is not None)


class _Opened(NamedTuple):
    """A session, and the weights that it does not own."""

    session: ort.InferenceSession
    weights: Mapping[str, ort.OrtValue]
    in_place: bool


class InSegments(NamedTuple):
    """A model that onnxruntime is to run in segments, whatever its size, as what a large model became.

    Attributes:
        model: The model; it must not change as long as its session is in use.
        taps: Values of the main graph that runs can give besides the outputs.
        checked: Whether all segments are opened at first, and not only when they run.

    """

    model: Model
    taps: Sequence[Value] = ()
    checked: bool = True


class StreamedSession:
    """The counterpart of `InferenceSession` for a model that does not fit into memory.

    Args:
        model: The model; it must not change as long as the session is in use.
        settings: How the sessions of its segments are made.
        taps: Values of the main graph that `run` can give besides the outputs.
        besides: Bytes that the caller takes for nodes of a segment, apart from their weights.
        checked: Whether all segments are opened once, so that what does not load is told here, and not by a run.

    Raises:
        SessionError: onnxruntime cannot load a segment.
        ModelError: A weight cannot be read.

    """

    def __init__(
        self,
        model: Model,
        settings: Settings,
        taps: Sequence[Value] = (),
        besides: Mapping[Node, int] | None = None,
        *,
        checked: bool = True,
    ) -> None:
        infer_types(model)
        self._model, self._settings = model, settings
        packs = any(node.op_type == PACKING for node in model.graph.nodes)
        segments = cut_segments(model, min(PACKED, SEGMENT) if packs else SEGMENT, taps, besides)
        folds = settings.optimize != "none"
        self._parts = [_Part(segment, _can_pack(segment, folds=folds)) for segment in segments if segment.outputs]
        self._listed = [value.name for value in model.graph.outputs]
        self._wanted = {value.name for value in (*model.graph.outputs, *taps)}
        seen: set[str] = set()
        for part in reversed(self._parts):
            read = {value.name for value in (*part.segment.inputs, *part.segment.outputs)}
            part.ended = read - seen
            seen |= read
        self._arguments: dict[str, Argument] = {}
        self._packed = 0
        for part in self._parts if checked else ():
            self._open(part)
            part.release()

    def get_inputs(self) -> list[Argument]:
        """Describe the inputs that have no default."""
        return [self._argument(value) for value in self._model.graph.inputs if value.tensor is None]

    def get_outputs(self) -> list[Argument]:
        """Describe the outputs."""
        return [self._argument(value) for value in self._model.graph.outputs]

    def run(self, outputs: Sequence[str] | None, feeds: Mapping[str, Any], run_options: Any = None) -> list[Any]:
        """Run the model and give the named outputs or taps, all outputs for None."""

        def run(session: ort.InferenceSession, names: Sequence[str], inputs: Mapping[str, Any]) -> list[Any]:
            return list(session.run(names, inputs, run_options))

        values: dict[str, Any] = dict(feeds)
        for part in self._parts:
            opened = self._open(part)
            _advance(part, opened, run, values, self._wanted)
            del opened
            part.release()
        return self._given(outputs, values)

    def run_side_by_side(
        self,
        outputs: Sequence[str] | None,
        several: Sequence[Mapping[str, Any]],
        run: Run,
        use: Callable[[int, list[Any]], Result],
    ) -> Iterator[Result]:
        """Run several samples, some at a time; each segment is opened once for all of them.

        Args:
            outputs: As for `run`.
            several: The inputs of each. What a segment leaves for others is in memory for all.
            run: Gives named outputs of a session for inputs.
            use: Given the place of a sample and what `run` gives for it, which then leaves memory; in a thread.

        Yields:
            What that makes of each, in order.

        """
        states: list[dict[str, Any]] = [dict(feeds) for feeds in several]

        def through(part: _Part, opened: _Opened, place: int) -> None:
            _advance(part, opened, run, states[place], self._wanted)

        def ended(part: _Part, opened: _Opened, place: int) -> Result:
            _advance(part, opened, run, states[place], self._wanted)
            found = self._given(outputs, states[place])
            states[place].clear()
            return use(place, found)

        for part in self._parts:
            opened = self._open(part)
            try:
                if part is self._parts[-1]:
                    with closing(run_in_order(partial(ended, part, opened), range(len(states)))) as done:
                        yield from done
                else:
                    deque(run_in_order(partial(through, part, opened), range(len(states))), 0)
            finally:
                del opened
                part.release()

    def run_together(
        self,
        samples: Sequence[Mapping[str, Any]],
        run: Callable[[int], Run],
        keep: Callable[[np.ndarray], np.ndarray],
        look: Callable[[Sequence[Node], Mapping[str, Any]], None],
    ) -> Iterator[Sequence[Node]]:
        """Advance all samples through one segment after another, and pause behind each.

        Args:
            samples: The samples, all of which are in memory.
            run: Tells, by the place of a sample, what gives named outputs of a session for inputs.
            keep: Puts what a segment leaves for others out of memory.
            look: Shown the nodes of a segment, and the inputs and outputs of it for a sample.

        Yields:
            The nodes of the segment that all samples have gone through.

        """
        states = [dict(sample) for sample in samples]
        for part in self._parts:
            opened = self._open(part)
            for place, state in enumerate(states):
                look(part.segment.nodes, _advance(part, opened, run(place), state, keep=keep))
            del opened
            part.release()
            yield part.segment.nodes

    def _given(self, outputs: Sequence[str] | None, values: Mapping[str, Any]) -> list[Any]:
        names = self._listed if outputs is None else outputs
        tensors = [self._model.graph.values[name].tensor for name in names]
        return [values[name] if tensor is None else tensor.numpy() for name, tensor in zip(names, tensors, strict=True)]

    def _argument(self, value: Value) -> Argument:
        if value.name in self._arguments:
            return self._arguments[value.name]
        kind = "undefined" if value.dtype is None else onnx.TensorProto.DataType.Name(value.dtype).lower()
        return Argument(value.name, f"tensor({kind})", list(value.shape or ()))

    def _open(self, part: _Part) -> _Opened:
        """Return the session of a segment, which stays open where that takes no memory."""
        if part.opened is not None:
            return part.opened
        opened = self._load(part)
        for argument in (*opened.session.get_inputs(), *opened.session.get_outputs()):
            self._arguments.setdefault(argument.name, Argument(argument.name, argument.type, argument.shape))
        packed = part.nbytes if part.packs else 0
        if opened.in_place and self._packed + packed <= MOST_PACKED:
            part.opened, self._packed = opened, self._packed + packed
        return opened

    def _load(self, part: _Part) -> _Opened:
        """Open a session over the weights where they are; over copies where an optimisation looks at them.

        Constants that it would fold are computed in each run then: the turned table of a tied head, twice in memory.
        """
        encoded, beside = encode_segment(self._model, part.segment, BESIDE)
        weights = {name: ort.OrtValue.ortvalue_from_numpy(tensor.numpy()) for name, tensor in beside.items()}
        mapped = not any(isinstance(tensor, DeferredTensor) for tensor in beside.values())
        own, first = self._settings, part.way
        if own.exact and host_saturates() and first < len(WAYS) - 1:
            saturating = {value.name for value in part.segment.constants if _could_saturate(value)}
            if not saturating:
                own = replace(own, exact=False)  # which would make uint8 copies of the weights
            elif not saturating.isdisjoint(beside):
                first = len(WAYS) - 1  # for which it looks at them
        for way in range(first, len(WAYS)):
            copy, without = WAYS[way]
            if without and part.packs:  # scales have to be known
                continue
            settings = replace(own, without=(*own.without, *without))
            try:
                opened = load_native(encoded, settings, weights=weights, copy=copy, pack=part.packs)
            except SessionError:
                if not weights or way == len(WAYS) - 1:
                    raise
            else:
                part.way = way
                return _Opened(opened, weights, mapped and not copy)
        raise AssertionError


def _advance(
    part: _Part,
    opened: _Opened,
    run: Run,
    values: dict[str, Any],
    wanted: Collection[str] = (),
    keep: Callable[[Any], Any] = lambda array: array,
) -> Mapping[str, Any]:
    """Take the values of a sample through a segment, drop those that no one wants behind it, and return all of it."""
    names = [value.name for value in part.segment.outputs]
    inputs = {value.name: values[value.name] for value in part.segment.inputs}
    made = dict(zip(names, run(opened.session, names, inputs), strict=True))
    ended = part.ended.difference(wanted)
    values.update((name, keep(array)) for name, array in made.items() if name not in ended)
    for name in ended:
        values.pop(name, None)
    return inputs | made


def _could_saturate(value: Value) -> bool:
    """Whether some product of int8 codes might leave 16 bits; of a known few ways to read them, it is looked up."""
    if value.dtype != TensorProto.INT8 or value.tensor is None:
        return False
    products: list[Use] = []
    for use in value.uses:
        if use.node.op_type == "DequantizeLinear" and use.slot == 0:
            products += use.node.outputs[0].uses if use.node.outputs[0] is not None else []
        elif (use.node.op_type, use.slot) not in NO_PRODUCTS:
            products.append(use)
    if any(use.node.op_type not in PRODUCTS or use.slot != 1 for use in products):
        return True
    turned = {bool(use.node.attribute("transB", 0)) for use in products}
    found = (inner_rows("MatMul", value.tensor.numpy(), transposed=way) for way in turned)
    return any(rows is None or has_saturating_pair(rows) for rows in found)


def _can_pack(segment: Segment, *, folds: bool) -> bool:
    """Whether onnxruntime knows all scales and zero points of a segment when it packs weights, and there are any.

    Args:
        segment: The segment.
        folds: Whether what nodes make of constants is known by then.

    """
    known = {value for value in segment.constants if not value.is_input}
    parameters: list[Value | None] = []
    for node in segment.nodes:
        if node.op_type == PACKING:
            parameters += node.inputs[PARAMETERS]
        elif folds and node.inputs and not node.bodies and known.issuperset(filter(None, node.inputs)):
            known.update(filter(None, node.outputs))
    return bool(parameters) and known.issuperset(filter(None, parameters))
