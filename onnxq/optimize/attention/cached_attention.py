"""Attention with a cache or a mask among the inputs of the model, as Attention and RotaryEmbedding of opset 23.

Exports for generation read keys and values of earlier tokens, a mask and positions. `group_query_attention` needs none
of these. Attention takes a mask and a cache of any content, for any batch. GroupQueryAttention of `com.microsoft` fails
where several texts append several tokens to a cache.

Attention is recognised by its values. The nodes run on random projections and caches, and on random masks and places.
The operators have to give the same results and the same caches. The mask itself stays as it is. Only models whose
weights are in blocks are changed: onnxruntime has these operators from 1.23 on. The last bits of floats may change.

Tests: `tests/optimize/test_cached_attention.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto

from onnxq.ir.graph import Graph, Node, Value
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import Change, register_pass
from onnxq.ir.patch import Patch, named_after
from onnxq.ops.kernels.attention import attention as attend
from onnxq.ops.kernels.attention import rotary_embedding as rotate
from onnxq.optimize.attention.cached_region import CachedRegion, Side, find_cached_region
from onnxq.optimize.attention.chosen_shapes import chosen_shapes
from onnxq.optimize.attention.region import constant_factor
from onnxq.optimize.attention.sizes import NotKnown, Sizes, critical_lengths, sized_values

OPSET, SINCE = 23, (1, 23)  # versions of operators, and of onnxruntime, which has to run what is written
TOLD = re.compile("mask|pos(ition)?(_|s|$)|use_cache")  # inputs that say something about tokens, not which they are
PROBES = ((1, 1, 4), (2, 3, 5), (1, 9, 0), (2, 1, 7), (3, 5, 2), (1, 17, 16))  # batch, length, past
LONGEST = 1024  # of a probe: more takes too long
TOLERANCE = 2e-5  # of the greatest output
HIDING = np.float32(-1e30)  # what a token is hidden by in a row that sees nothing: such rows then keep their mean
CACHE = 4  # axes of a cache
STEP = 8  # what the size of a head has to be a multiple of


@dataclass(frozen=True)
class MaskedAttention:
    """The parameters of one operator.

    Attributes:
        region: What it takes the place of.
        heads, kv_heads: Of queries; of keys and values.
        scale: Of logits.
        mask: How it is written: `same`, `bounded` below, or as a condition, `seen`, `hidden`, `added`; "" for none.
        tables: Values that hold cosines and sines; none without rotation.
        rotated: How many elements of a head are rotated.
        sizes: For each node that measures a value of the region: numbers, `batch` or `length`.

    """

    region: CachedRegion
    heads: int
    kv_heads: int
    scale: float
    mask: str = ""
    tables: tuple[Value, ...] = ()
    rotated: int = 0
    sizes: tuple[tuple[int | str, ...], ...] = ()


@register_pass(order=185, timed=True, domain="com.microsoft", operators=("MatMulNBits",), types=True)
def cached_attention(model: Model) -> Iterator[Change]:
    """Describe one patch for all layers of a graph: they share tables and masks."""
    if tuple(int(part) for part in ort.__version__.split(".")[:2]) < SINCE:
        return
    for graph in [model.graph, *(graph for graph in model.graph.graphs() if graph is not model.graph)]:
        told = sized_values(graph, [value for value in model.graph.inputs if _says_something(value)])
        patch = Patch(graph, None, "attention is one operator")
        prover, writer = _Prover(max(model.opset, OPSET), graph, model.graph.inputs), _Writer(patch)
        for node in graph.nodes:
            region = find_cached_region(node, told) if node.op_type == "Softmax" and not node.domain else None
            found = None if region is None else prover.recognise(region)
            if found is not None:
                writer.write(found)
        if patch.replaced:
            yield Change(patch, opset=OPSET)


def _says_something(value: Value) -> bool:
    """Tell whether an input of the model is a mask, or says places."""
    integers = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)
    return value.tensor is None and value.dtype in integers and TOLD.search(value.name.lower()) is not None


def _holds_tokens(value: Value) -> bool:
    """Tell whether an input of the model has an integer for each token of a text."""
    integers = (TensorProto.INT64, TensorProto.INT32)
    named = "mask" not in value.name.lower() and value.tensor is None
    return named and value.dtype in integers and value.shape is not None and len(value.shape) == 2


class _Prover:
    """Compares regions with the operators."""

    def __init__(self, opset: int, graph: Graph, inputs: Sequence[Value]) -> None:
        self._opset, self._graph = opset, graph
        self._shapes: dict[tuple[int, int, int], dict[Value, tuple[int, ...]]] = {}
        self._told = [value for value in inputs if _says_something(value)]
        self._caches = [value for value in inputs if value.tensor is None and len(value.shape or ()) == CACHE]
        self._tokens = [value for value in inputs if _holds_tokens(value)]
        lengths = {value.shape[1] for value in self._tokens if value.shape is not None}
        self._length = lengths.pop() if len(lengths) == 1 else None  # projections may have lost it

    def recognise(self, region: CachedRegion) -> MaskedAttention | None:
        """Return the parameters of operators that compute what a region computes."""
        if any(
            value.dtype != TensorProto.FLOAT for side in region.sides for value in (side.entry, side.cache) if value
        ):
            return None
        try:
            cases = [self._case(region, *probe) for probe in self._probes(region)]
            sizes = tuple(_read_sizes(node, cases) for node in region.measured)
            for candidate in _candidates(region, cases[-1]):
                if all(_alike(candidate, case) for case in cases):
                    return replace(candidate, sizes=sizes)
        except (NotKnown, ValueError, IndexError):  # of shapes that do not fit together
            return None
        return None

    def _probes(self, region: CachedRegion) -> list[tuple[int, int, int]]:
        """Choose sizes, and lengths at which a constant of the region could change the rule."""
        longest = max(length + past for _, length, past in PROBES)
        further = sorted({size for size in critical_lengths(region.nodes) if size > longest})
        if further and further[-1] > LONGEST:
            raise NotKnown("a length is too great to be tried")
        probes = [*PROBES, *((1, 2, size) for size in further)]
        probes = probes if region.caches else [(batch, length + past, 0) for batch, length, past in probes]
        batch, length = (region.sides[0].entry.shape or (None, None))[:2]
        length = self._length if length is None or isinstance(length, str) else length
        past = (region.caches[0].cache.shape or (None,) * 3)[2] if region.caches and region.caches[0].cache else None
        fixed = [size if isinstance(size, int) else None for size in (batch, length, past)]
        chosen = [[size if own is None else own for own, size in zip(fixed, probe, strict=True)] for probe in probes]
        return list(dict.fromkeys((one, many, before) for one, many, before in chosen))

    def _case(self, region: CachedRegion, batch: int, length: int, past: int) -> _Case:
        """Choose random values for all that enters, and run the region on them."""
        case = _Case(batch, length, past)
        for value in self._caches:
            case.name(value, (batch, None, past, None))
        for value in self._tokens:
            case.name(value, (batch, length))
        for value in self._told:
            case.tell(value)
        if (batch, length, past) not in self._shapes:  # they are those of all layers
            found = chosen_shapes(self._graph, case.names, self._opset, case.given)
            self._shapes[batch, length, past] = found
        for place, side in enumerate(region.sides):
            heads = self._shapes[batch, length, past].get(side.entry, ())[2:]
            case.name(side.entry, (batch, length, *(heads or (None,) * (len(side.entry.shape or ()) - 2))))
            if side.cache is not None:
                case.name(side.cache, (batch, None, past, None))
            spread = 1.0 if place < 2 else 2.0
            case.fill(side, spread, place)
        case.sizes = Sizes(case.names, self._opset, case.given, self._shapes[batch, length, past])
        wanted = [region.result, *(side.grown for side in region.caches)]
        case.expected = [np.asarray(case.sizes.of(value)) for value in wanted if value is not None]
        case.logits = np.asarray(case.sizes.of(region.softmax.inputs[0])) if region.softmax.inputs[0] else None
        return case


class _Case:
    """One choice of sizes, random values of what enters, and what the region makes of them."""

    def __init__(self, batch: int, length: int, past: int) -> None:
        self.batch, self.length, self.past = batch, length, past
        self.names: dict[str, int] = {}
        self.given: dict[Value, Any] = {}
        self.sizes = Sizes({}, 0)
        self.expected: list[np.ndarray] = []
        self.logits: np.ndarray | None = None

    def name(self, value: Value, sizes: tuple[int | None, ...]) -> tuple[int, ...]:
        """Note the sizes of named axes, and return the shape.

        Raises:
            NotKnown: An axis has another size, or none that is known.

        """
        shape = value.shape or ()
        found = []
        for own, told in zip(shape, sizes, strict=True):
            size = self.names.get(own) if told is None and isinstance(own, str) else told
            if isinstance(own, str) and size is not None and self.names.setdefault(own, size) == size:
                found.append(size)
            elif isinstance(own, int) and size in (None, own):
                found.append(own)
            elif own is None and size is not None:
                found.append(size)
            else:
                raise NotKnown(f"an axis of '{value.name}' has another size")
        return tuple(found)

    def fill(self, side: Side, spread: float, seed: int) -> None:
        """Choose random values of what a projection makes, and of a cache."""
        rng = np.random.default_rng([seed, self.batch, self.length, self.past])
        shape = self.name(side.entry, (self.batch, self.length, *((None,) * (len(side.entry.shape or ()) - 2))))
        self.given[side.entry] = (spread * rng.standard_normal(shape)).astype(np.float32)
        if side.cache is not None:
            shape = self.name(side.cache, (self.batch, None, self.past, None))
            self.given[side.cache] = (spread * rng.standard_normal(shape)).astype(np.float32)

    def tell(self, value: Value) -> None:
        """Choose random places, or a mask that hides some tokens, for an input of the model.

        The last text of several starts with tokens that see nothing. Every second mask hides tokens in between, too.
        """
        rng = np.random.default_rng([9, self.batch, self.length, self.past])
        shape = value.shape
        if shape is None or len(shape) not in (0, 1, 2):
            return
        if len(shape) < 2:
            self.given[value] = np.zeros(self.name(value, (1,) * len(shape)), _numpy(value)) + (self.past > 0)
        elif "mask" in value.name.lower():
            mask = np.ones(self.name(value, (self.batch, self.past + self.length)), bool)
            mask[-1, : self.past + 1 if self.batch > 1 else 0] = False
            mask[:, :-1] &= (rng.random(mask[:, :-1].shape) < 0.7) | (self.length % 2 == 1)
            self.given[value] = mask.astype(_numpy(value))
        else:
            places = rng.integers(0, 99, self.name(value, (self.batch, self.length)))
            self.given[value] = places.astype(_numpy(value))


def _numpy(value: Value) -> Any:
    return np.int64 if value.dtype == TensorProto.INT64 else np.int32 if value.dtype == TensorProto.INT32 else np.bool_


def _read_sizes(node: Node, cases: Sequence[_Case]) -> tuple[int | str, ...]:
    """Tell which sizes a Shape gives, by what it gives in all cases.

    Raises:
        NotKnown: One of them is something else.

    """
    found: list[int | str] = []
    made = [np.asarray(case.sizes.of(value)) for case in cases for value in node.makes]
    named = {"batch": [case.batch for case in cases], "length": [case.length for case in cases]}
    for column in np.stack(made, axis=1).tolist():
        names = [name for name, sizes in named.items() if sizes == column]
        if len(set(column)) > 1 and len(names) != 1:
            raise NotKnown("sizes of values inside are neither fixed nor those of queries")
        found.append(column[0] if len(set(column)) == 1 else names[0])
    return tuple(found)


def _candidates(region: CachedRegion, case: _Case) -> Iterator[MaskedAttention]:
    """List parameters that could fit, by the sizes of a case."""
    if case.logits is None or case.logits.ndim != 4:
        return
    heads = case.logits.shape[1]
    queries, keys = (case.given[side.entry].reshape(case.batch, case.length, -1) for side in region.sides[:2])
    size = queries.shape[-1] // heads
    if not size or size % STEP or queries.shape[-1] % heads or keys.shape[-1] % size:
        return
    kv_heads = keys.shape[-1] // size
    if not kv_heads or heads % kv_heads:
        return
    for scale in _scales(region, size):
        for mask in _masks(region):
            plain = MaskedAttention(region, heads, kv_heads, scale, mask)
            yield from _rotated(plain, case, size)
            yield plain


def _masks(region: CachedRegion) -> tuple[str, ...]:
    """List ways to write the mask."""
    if region.mask is None:
        return ("",)
    return ("seen", "hidden", "added") if region.mask.dtype == TensorProto.BOOL else ("same", "bounded")


def _scales(region: CachedRegion, size: int) -> Iterator[float]:
    """Yield the usual scale, and the product of all numbers by which the nodes multiply."""
    yield float(size**-0.5)
    yield constant_factor(region.nodes)


def _rotated(plain: MaskedAttention, case: _Case, size: int) -> Iterator[MaskedAttention]:
    """Take two tables with a row for each place for cosines and sines, in either order."""
    roots = [root for root in dict.fromkeys(_root(value) for value in plain.region.rotations) if root is not None]
    widths = {root: np.asarray(case.sizes.of(root)) for root in roots}
    tables = [
        root
        for root in roots
        if widths[root].ndim in (2, 3, 4) and widths[root].size > 1 and _rows(widths[root], case) is not None
    ]
    if len(tables) != 2 or widths[tables[0]].shape[-1] != widths[tables[1]].shape[-1]:
        return
    width = widths[tables[0]].shape[-1]
    for rotated in dict.fromkeys((width, 2 * width)):
        if rotated <= size and rotated % 2 == 0:
            yield replace(plain, tables=(tables[0], tables[1]), rotated=rotated)
            yield replace(plain, tables=(tables[1], tables[0]), rotated=rotated)


def _root(value: Value) -> Value:
    """Return what a table is before axes were added to it: layers share that."""
    node = value.producer
    while node is not None and node.op_type in ("Identity", "Unsqueeze") and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer
    return value


def _rows(table: np.ndarray, case: _Case) -> np.ndarray | None:
    """Return a table as `[batch, length, width]`; None where it has another shape."""
    if table.ndim == 4:
        axis = next((axis for axis in (1, 2) if table.shape[axis] == 1 and table.shape[3 - axis] == case.length), None)
        if axis is None:
            return None
        table = table.squeeze(axis)
    table = table[None] if table.ndim == 2 else table
    if table.ndim != 3 or table.shape[1] != case.length or table.shape[0] not in (1, case.batch):
        return None
    return np.broadcast_to(table, (case.batch, *table.shape[1:]))


def _alike(attention: MaskedAttention, case: _Case) -> bool:
    """Tell whether the operators give what a region gives; rows of NaN may become anything."""
    region = attention.region
    flat = [case.given[side.entry].reshape(case.batch, case.length, -1) for side in region.sides]
    if attention.tables:
        half = attention.rotated // 2
        found = [_rows(np.asarray(case.sizes.of(table)), case) for table in attention.tables]
        tables = [table[..., :half] for table in found if table is not None]
        if len(tables) != 2:
            return False
        for place, heads in enumerate((attention.heads, attention.kv_heads)):
            cos, sin = tables
            flat[place] = rotate(flat[place], cos, sin, num_heads=heads, rotary_embedding_dim=attention.rotated)
    mask = None if region.mask is None else _written_mask(attention.mask, np.asarray(case.sizes.of(region.mask)))
    caches = [None if side.cache is None else case.given[side.cache] for side in region.sides[1:]]
    query, key, value = flat
    made = attend(
        query, key, value, mask, caches[0], caches[1], q_num_heads=attention.heads, kv_num_heads=attention.kv_heads,
        scale=attention.scale, output_count=3,
    )  # fmt: skip
    assert isinstance(made, tuple)
    grown = [array for side, array in zip(region.sides[1:], made[1:], strict=True) if side.grown is not None]
    return all(_close(ours, theirs) for ours, theirs in zip([made[0], *grown], case.expected, strict=True))


def _written_mask(written: str, mask: np.ndarray) -> np.ndarray:
    """Return a mask as it is written; see `MaskedAttention`."""
    if written == "added":
        return np.where(mask, np.float32(0), HIDING)
    if written == "hidden":
        return ~mask
    return np.maximum(mask, HIDING) if written == "bounded" else mask


def _close(ours: np.ndarray, theirs: np.ndarray) -> bool:
    if ours.shape != theirs.shape:
        return False
    told = ~np.isnan(theirs)
    return bool(
        np.abs(np.where(told, ours - theirs, 0)).max(initial=0) <= TOLERANCE * np.abs(theirs[told]).max(initial=0)
    )


class _Writer:
    """Writes operators into one patch, what they share once."""

    def __init__(self, patch: Patch) -> None:
        self._patch = patch
        self._tables: dict[tuple[Value, int], Value] = {}
        self._masks: dict[tuple[Value, str], Value] = {}

    def write(self, attention: MaskedAttention) -> None:
        """Let operators take the place of a region."""
        region, patch = attention.region, self._patch
        entries = [self._flat(side.entry) for side in region.sides]
        if attention.tables:
            tables = [self._table(table, attention.rotated // 2, entries[0]) for table in attention.tables]
            for place, heads in enumerate((attention.heads, attention.kv_heads)):
                entries[place] = patch.op(
                    "RotaryEmbedding", entries[place], *tables, hint=f"{entries[place].name}_rotated",
                    num_heads=heads, rotary_embedding_dim=attention.rotated,
                )  # fmt: skip
        mask = None if region.mask is None else self._mask(region.mask, attention.mask)
        caches = [side.cache for side in region.sides[1:]] if region.caches else []
        inputs: list[Value | None] = [*entries, mask, *caches]
        while inputs[-1] is None:
            inputs.pop()
        grown = [side.grown for side in region.sides[1:] if side.grown is not None]
        made = patch.node(
            "Attention", inputs, outputs=[region.result.name, *(value.name for value in grown)],
            q_num_heads=attention.heads, kv_num_heads=attention.kv_heads, scale=float(attention.scale),
        )  # fmt: skip
        if region.result.producer is not None:
            named_after(patch, region.result.producer)
        for side in region.caches:
            self._measure(side)
        for node, sizes in zip(region.measured, attention.sizes, strict=True):
            self._state_sizes(node, sizes, region.sides[0].entry)
        for old, new in zip([region.result, *grown], made, strict=True):
            patch.replace(old, new)

    def _measure(self, side: Side) -> None:
        """Compute the sizes of a grown cache from what it is made of: the mask may depend on them."""
        patch, grown = self._patch, side.grown
        for node in grown.consumers() if grown is not None else []:
            if node.op_type != "Shape" or node.graph is not patch.graph or node.outputs[0] is None:
                continue
            many = patch.op("Shape", side.entry, start=1, end=2, hint="attention_length")
            before, behind = (patch.constant(np.zeros(n, np.int64), "attention_zeros") for n in (2, 1))
            more = patch.op("Concat", before, many, behind, axis=0, hint="attention_growth")
            sizes = patch.op("Add", patch.op("Shape", side.cache, hint="cache_sizes"), more, hint="grown_sizes")
            start, end = node.attribute("start", 0), node.attribute("end", CACHE)
            if (start, end) != (0, CACHE):
                ends = [patch.constant(np.array([place], np.int64), "sizes_end") for place in (start, end, 0)]
                sizes = patch.op("Slice", sizes, *ends, hint="some_sizes")
            patch.replace(node.outputs[0], sizes)

    def _state_sizes(self, node: Node, sizes: tuple[int | str, ...], entry: Value) -> None:
        """Write the sizes of a value that is no more."""
        patch, parts = self._patch, []
        for size in sizes:
            if isinstance(size, int):
                parts.append(patch.constant(np.array([size], np.int64), "attention_size"))
            else:
                start = ("batch", "length").index(size)
                parts.append(patch.op("Shape", entry, start=start, end=start + 1, hint=f"attention_{size}"))
        if node.outputs[0] is not None:
            patch.replace(node.outputs[0], patch.op("Concat", *parts, axis=0, hint="attention_sizes"))

    def _flat(self, entry: Value) -> Value:
        """Join the heads of a value of four axes."""
        if len(entry.shape or ()) == 3:
            return entry
        shape = self._patch.constant(np.array([0, 0, -1], np.int64), "attention_joined")
        return self._patch.op("Reshape", entry, shape, hint=f"{entry.name}_joined")

    def _mask(self, mask: Value, written: str) -> Value:
        """Write a mask once for all layers."""
        if written in ("same", "seen"):
            return mask
        if (mask, written) not in self._masks:
            patch, name = self._patch, f"{mask.name}_{written}"
            if written == "hidden":
                made = patch.op("Not", mask, hint=name)
            elif written == "bounded":
                made = patch.op("Max", mask, patch.constant(np.array(HIDING), "attention_hiding"), hint=name)
            else:
                numbers = [patch.constant(np.array(number, np.float32), "attention_hiding") for number in (0, HIDING)]
                made = patch.op("Where", mask, *numbers, hint=name)
            self._masks[mask, written] = made
        return self._masks[mask, written]

    def _table(self, table: Value, half: int, entry: Value) -> Value:
        """Write a table as `[batch, length, half]`."""
        if (table, half) not in self._tables:
            patch, shape, made = self._patch, table.shape or (), table
            if len(shape) == 4:
                axis = patch.constant(np.array([1 if shape[1] == 1 else 2], np.int64), "table_axis")
                made = patch.op("Squeeze", made, axis, hint=f"{table.name}_rows")
            if shape[-1] != half:
                ends = [patch.constant(np.array([place], np.int64), "table_end") for place in (0, half, -1)]
                made = patch.op("Slice", made, *ends, hint=f"{table.name}_half")
            if len(shape) == 2 or shape[0] != (entry.shape or (None,))[0]:
                sizes = patch.op("Shape", entry, start=0, end=2, hint="attention_sizes")
                width = patch.constant(np.array([half], np.int64), "table_width")
                whole = patch.op("Concat", sizes, width, axis=0, hint="table_shape")
                made = patch.op("Expand", made, whole, hint=f"{table.name}_each")
            self._tables[table, half] = made
        return self._tables[table, half]
