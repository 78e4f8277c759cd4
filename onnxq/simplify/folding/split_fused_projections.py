"""A product whose columns are taken apart again, as queries, keys and values are: one product for each part.

Exporters write `MatMul, Add, Reshape, Transpose, Split, Squeeze`, or `Split` right behind the product, or a `Gather`
or `Slice` for each part in its place. Split copies what the product has just written. In 8 bit the copy takes a
quarter of the product's own time. `[128, 256]` times `[256, 768]` with attention behind it takes 262 µs on one thread
of onnxruntime 1.31. Three products, which read the same codes, take 240 µs. In float they take 402 and 432 µs: the
single product is faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto

from onnxq.ir import ArrayTensor, Model, Node, Patch, Tensor, Value
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.tensor import DeferredTensor

LEAST_COLUMNS = 64  # of a part, and rows of the weight: below, a product costs more than the copy


@dataclass(frozen=True)
class Chain:
    """A product, and how its columns travel until they are taken apart.

    Attributes:
        product: MatMul or Gemm.
        bias: The constant behind it, a number a column.
        end: The value that is taken apart.
        lead: What a Reshape is to be told of the axes before those that the columns became; None where there is none.
        tail: The axes that the columns became.
        perm: Of a Transpose behind; None where there is none.

    """

    product: Node
    bias: Tensor | None
    end: Value
    lead: tuple[int, ...] | None
    tail: tuple[int, ...]
    perm: tuple[int, ...] | None = None

    @property
    def first(self) -> int:
        """Number of axes before those that the columns became."""
        rank = len(self.end.shape or ())
        return rank - len(self.tail)


@dataclass(frozen=True)
class ColumnSlice:
    """A range of an axis at the end of a chain; the axis itself is removed where `squeezed`."""

    axis: int
    start: int
    size: int
    value: Value
    squeezed: bool


@register_pass(order=290, integer=True, note="split {} fused projection{s}")
def split_fused_projections(model: Model) -> Iterator[Patch]:
    """Describe one change for each product that is read in parts only."""
    for node in model.graph.walk():
        chain = _chain(node) if node.op_type in ("MatMul", "Gemm") and not node.domain else None
        parts = _parts(chain) if chain is not None else []
        if chain is not None and len(parts) > 1 and all(_columns(chain, part).size >= LEAST_COLUMNS for part in parts):
            patch = Patch(node.graph, node, f"split {node.label} into the parts that are read")
            for part in parts:
                patch.replace(part.value, _written(patch, chain, part))
            for reader in chain.end.consumers():  # a Split stays where one of its outputs never had a reader
                patch.remove(reader)
            yield patch


# -- reading ----------------------------------------------------------------------------------------------------------


def _chain(product: Node) -> Chain | None:
    """Follow the columns of a product with a constant matrix up to where they are taken apart."""
    chain = _product(product)
    for follow in (_added, _reshaped, _transposed):
        if chain is None:
            return None
        reader = _only_reader(chain.end)
        chain = chain if reader is None else follow(chain, reader)
    return chain


def _product(product: Node) -> Chain | None:
    """Begin a chain at a product with a matrix that nothing else reads, and with a constant bias or none."""
    weight, output = product.inputs[1], product.outputs[0]
    tensor = weight.constant if weight is not None and weight.graph is product.graph else None
    if (
        weight is None
        or tensor is None
        or len(weight.uses) > 1
        or tensor.dtype != TensorProto.FLOAT
        or len(tensor.shape) != 2
        or output is None
    ):
        return None
    axis = _column_axis(product)
    columns, rows = tensor.shape[axis], tensor.shape[1 - axis]
    given = product.input(2)
    if rows < LEAST_COLUMNS or output.shape is None or (given is not None and given.constant is None):
        return None
    bias = given.constant if given is not None else None
    if bias is not None and bias.shape != (columns,):
        return None
    return Chain(product, bias, output, None, (columns,))


def _added(chain: Chain, node: Node) -> Chain | None:
    """Take the Add of a bias behind a MatMul along; None where it adds something else."""
    if node.op_type != "Add" or chain.product.op_type != "MatMul":
        return chain
    constants = node.constants
    if len(constants) != 1 or constants[0].shape != chain.tail or node.outputs[0] is None:
        return None
    return replace(chain, bias=constants[0], end=node.outputs[0])


def _transposed(chain: Chain, node: Node) -> Chain:
    """Take a Transpose along."""
    if node.op_type != "Transpose" or node.outputs[0] is None:
        return chain
    perm = tuple(node.attribute("perm") or reversed(range(len(chain.end.shape or ()))))
    return replace(chain, end=node.outputs[0], perm=perm)


def _column_axis(product: Node) -> int:
    return 0 if product.op_type == "Gemm" and product.attribute("transB", 0) else 1


def _only_reader(value: Value) -> Node | None:
    """Return the one node that reads a value as its data, in the same scope."""
    use = value.only_use
    return use.node if use is not None and not use.node.domain and use.node.graph is value.graph else None


def _reshaped(chain: Chain, node: Node) -> Chain | None:
    """Follow the columns through a Reshape; None where it does not leave the rows whole."""
    if node.op_type != "Reshape":
        return chain
    before, after, output = chain.end.shape, node.outputs[0].shape if node.outputs[0] else None, node.outputs[0]
    target = node.constant(1)
    if before is None or after is None or output is None or _means_zero(node):
        return None
    columns, rows = chain.tail[0], len(before) - 1
    if after[:rows] == before[:rows] and None not in before[:rows] and len(after) > rows:
        tail = _filled(after[rows:], columns)
        return None if tail is None else replace(chain, end=output, lead=(0,) * rows, tail=tail)
    for first in range(len(after)):
        tail = tuple(size for size in after[first:] if isinstance(size, int))
        if len(tail) != len(after) - first or math.prod(tail) != columns:
            continue
        lead = tuple(size if isinstance(size, int) else -1 for size in after[:first])
        if target is not None:
            lead = tuple(int(size) for size in target.numpy()[:first])
        usable = lead.count(-1) <= 1 and 0 not in lead[rows:]
        return replace(chain, end=output, lead=lead, tail=tail) if usable else None
    return None


def _means_zero(node: Node) -> bool:
    """Whether a 0 in the target of a Reshape is a size; PyTorch says so to every Reshape, most of which have none."""
    target = node.constant(1)
    return bool(node.attribute("allowzero", 0)) and (target is None or 0 in target.numpy())


def _filled(sizes: Sequence[int | str | None], columns: int) -> tuple[int, ...] | None:
    """Return axes that hold so many columns, of which one size may be unknown."""
    known = math.prod(size for size in sizes if isinstance(size, int))
    unknown = sum(not isinstance(size, int) for size in sizes)
    if known == 0 or columns % known or unknown > 1 or (not unknown and known != columns):
        return None
    return tuple(size if isinstance(size, int) else columns // known for size in sizes)


def _parts(chain: Chain) -> list[ColumnSlice]:
    """List what is taken of the end of a chain; empty where something else reads it, or takes no columns."""
    readers = chain.end.consumers()
    if chain.end.is_output or not readers or any(use.slot or use.node.domain for use in chain.end.uses):
        return []
    if any(node.graph is not chain.end.graph for node in readers):  # a body computes its part where it runs
        return []
    if {node.op_type for node in readers} == {"Split"} and len(readers) == 1:
        found = _split(chain, readers[0])
    elif {node.op_type for node in readers} == {"Gather"}:
        found = [_gathered(chain, node) for node in readers]
    elif {node.op_type for node in readers} == {"Slice"}:
        found = [_sliced(chain, node) for node in readers]
    else:
        return []
    parts = [part for part in found if part is not None]
    axes = {_source_axis(chain, part.axis) for part in parts}
    if not parts or len(parts) != len(found) or any(axis < chain.first for axis in axes):
        return []
    return parts if sum(part.size for part in parts) <= chain.tail[next(iter(axes)) - chain.first] else []


def _source_axis(chain: Chain, axis: int) -> int:
    return axis if chain.perm is None else chain.perm[axis]


def _split(chain: Chain, node: Node) -> list[ColumnSlice | None]:
    rank = len(chain.end.shape or ())
    axis = node.attribute("axis", 0) % rank
    whole = _source_axis(chain, axis) - chain.first
    count = len(node.outputs)
    stated = node.constant(1)
    if whole < 0 or (stated is None and node.input(1) is not None):
        return [None]
    if stated is not None:
        sizes = [int(size) for size in stated.numpy()]
    else:
        equal = -(-chain.tail[whole] // count)
        sizes = list(node.attribute("split") or [equal] * (count - 1) + [chain.tail[whole] - equal * (count - 1)])
    starts = [sum(sizes[:place]) for place in range(count)]
    return [
        _squeezed(ColumnSlice(axis, start, size, value, squeezed=False))
        for start, size, value in zip(starts, sizes, node.outputs, strict=True)
        if value is not None and (value.uses or value.is_output)
    ]


def _squeezed(part: ColumnSlice) -> ColumnSlice:
    """Take the Squeeze behind a part along, where it does nothing else than to drop the axis."""
    reader = _only_reader(part.value)
    if part.size != 1 or reader is None or reader.op_type != "Squeeze" or reader.outputs[0] is None:
        return part
    stated = reader.constant(1)
    axes = stated.numpy().reshape(-1).tolist() if stated is not None else reader.attribute("axes") or ()
    rank = len(part.value.shape or ())
    if [axis % rank for axis in axes] != [part.axis] if rank else True:
        return part
    return replace(part, value=reader.outputs[0], squeezed=True)


def _gathered(chain: Chain, node: Node) -> ColumnSlice | None:
    index = node.constant(1)
    if index is None or index.shape or node.outputs[0] is None:
        return None
    axis = node.attribute("axis", 0) % len(chain.end.shape or (0,))
    whole = _source_axis(chain, axis) - chain.first
    return (
        ColumnSlice(axis, int(index.numpy()) % chain.tail[whole], 1, node.outputs[0], squeezed=True)
        if whole >= 0
        else None
    )


def _sliced(chain: Chain, node: Node) -> ColumnSlice | None:
    stated = [node.constant(slot) for slot in range(1, 4 if node.input(4) is None else 5)]
    bounds = [tensor.numpy().reshape(-1).tolist() for tensor in stated if tensor is not None]
    if len(bounds) != len(stated) or any(len(numbers) != 1 for numbers in bounds) or bounds[3:] not in ([], [[1]]):
        return None
    axis = bounds[2][0] % len(chain.end.shape or (0,))
    whole = _source_axis(chain, axis) - chain.first
    if whole < 0 or node.outputs[0] is None:
        return None
    start, end, _ = slice(bounds[0][0], bounds[1][0]).indices(chain.tail[whole])
    return _squeezed(ColumnSlice(axis, start, end - start, node.outputs[0], squeezed=False)) if end > start else None


# -- writing ----------------------------------------------------------------------------------------------------------


def _columns(chain: Chain, part: ColumnSlice) -> np.ndarray:
    """Number the columns of the product that a part holds, in its order."""
    numbers = np.arange(math.prod(chain.tail)).reshape(chain.tail)
    axis = _source_axis(chain, part.axis) - chain.first
    return numbers.take(range(part.start, part.start + part.size), axis).reshape(-1)


def _written(patch: Patch, chain: Chain, part: ColumnSlice) -> Value:
    """Write the product of one part."""
    product, name, columns = chain.product, part.value.name, _columns(chain, part)
    weight = product.inputs[1]
    assert weight is not None
    inputs = [product.inputs[0], patch.constant(_taken(weight, columns, _column_axis(product)), f"{weight.name}_part")]
    bias = None if chain.bias is None else patch.constant(ArrayTensor(chain.bias.numpy()[columns]), f"{name}_bias")
    if product.op_type == "Gemm":
        attributes = {key: product.attribute(key) for key in ("alpha", "beta", "transA", "transB")}
        given = {key: value for key, value in attributes.items() if value is not None}
        made = patch.op("Gemm", *inputs, *([] if bias is None else [bias]), hint=f"{name}_product", **given)
    else:
        made = patch.op("MatMul", *inputs, hint=f"{name}_product")
        made = made if bias is None else patch.op("Add", made, bias, hint=f"{name}_biased")
    axis = _source_axis(chain, part.axis)
    if chain.lead is not None:
        tail = list(chain.tail)
        tail[axis - chain.first : axis - chain.first + 1] = [] if part.squeezed else [part.size]
        target = patch.constant(np.array([*chain.lead, *tail], np.int64), f"{name}_shape")
        made = patch.op("Reshape", made, target, hint=f"{name}_reshaped")
    if chain.perm is None:
        return made
    perm = list(chain.perm)
    if part.squeezed:
        perm = [place - (place > axis) for place in perm if place != axis]
    return patch.op("Transpose", made, hint=name, perm=perm)


def _taken(weight: Value, columns: np.ndarray, axis: int) -> Tensor:
    tensor = weight.elements
    shape = tuple(len(columns) if place == axis else size for place, size in enumerate(tensor.shape))
    return DeferredTensor(tensor.dtype, shape, lambda: np.ascontiguousarray(tensor.numpy().take(columns, axis)))
