"""An Einsum of an activation and a constant is written as MatMul, for which there are integer kernels.

Keras writes an EinsumDense as `abc,cde->abde` in front of attention and `abcd,cde->abe` behind it, Flax and
torch.einsum likewise. The constant is reshaped into a matrix ahead of time. A Reshape stands in front if several axes
are summed over, and behind if the constant gives several. A Transpose stands on one side at most: with one on both
sides nothing is gained. A letter of both inputs that stays makes a stack of matrices of the constant.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from onnxq.ir.graph import Graph, Node, Value
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import Patch, named_after
from onnxq.ir.shape_inference.symbolic import Shapes, shapes_of
from onnxq.ir.tensor import ArrayTensor, DeferredTensor, Tensor
from onnxq.simplify.regions.axis_tracking import dims_of

EQUATION = re.compile(r"((?:\.{3})?[A-Za-z]+),((?:\.{3})?[A-Za-z]+)(?:->((?:\.{3})?[A-Za-z]+))?")


@dataclass(frozen=True)
class Terms:
    """An equation by what its inputs are: the letters of activation, constant and output."""

    data: str
    weight: str
    output: str


@dataclass(frozen=True)
class ProductLayout:
    """How a product of matrices computes an equation.

    Attributes:
        rows: Letters of the activation that stay, in the order that the product has them.
        stack: Those of `rows` that the constant has, too: all but the last, from the back.
        summed: Letters that are summed over, as the activation has them.
        columns: Letters of the constant only, as the output has them.

    """

    rows: str
    stack: str
    summed: str
    columns: str


@dataclass(frozen=True)
class Product:
    """An Einsum that is a product of matrices; `slot` is that of the constant, `sizes` are those of its letters."""

    node: Node
    slot: int
    terms: Terms
    layout: ProductLayout
    sizes: dict[str, int]

    def shape(self, letters: str) -> tuple[int, ...]:
        """Return the sizes of letters of the constant."""
        return tuple(self.sizes[letter] for letter in letters)


@register_pass(order=70, note="rewrote {} Einsum with a constant as MatMul")
def einsum_to_matmul(model: Model) -> Iterator[Patch]:
    """Describe one change for each Einsum of an activation and a constant that is a product of matrices."""
    for graph in model.graph.graphs():
        nodes = [node for node in graph.nodes if node.op_type == "Einsum" and not node.domain]
        shapes = shapes_of(model, graph) if nodes else None
        matrices: dict[tuple[Value, tuple[int, ...], tuple[int, ...]], Value] = {}
        for node in nodes:
            product = _product(node, shapes) if shapes is not None else None
            if product is not None:
                yield _written(graph, product, matrices)


# -- reading ----------------------------------------------------------------------------------------------------------


def _product(node: Node, shapes: Shapes) -> Product | None:
    """Read an Einsum; None where it is no product of matrices, or sizes may differ from those of the constant.

    An axis of size 1 would be repeated where the constant has another size, so that a size must be known to be equal.
    """
    slots = [slot for slot, value in enumerate(node.inputs) if value is not None and value.constant is not None]
    if len(node.inputs) != 2 or len(slots) != 1 or node.outputs[0] is None:
        return None
    data, weight = node.inputs[1 - slots[0]], node.inputs[slots[0]]
    tensor = weight.constant if weight is not None else None
    dims = dims_of(data, shapes)
    if weight is None or tensor is None or data is None or dims is None or data.dtype != TensorProto.FLOAT:
        return None
    if tensor.dtype != TensorProto.FLOAT or (weight.graph is not node.graph and len(weight.uses) > 1):
        return None
    terms = _terms(node.attribute("equation", ""), slots[0], len(dims))
    if terms is None or len(terms.data) != len(dims) or len(terms.weight) != len(tensor.shape):
        return None
    sizes = dict(zip(terms.weight, tensor.shape, strict=True))
    if 0 in tensor.shape or any(sizes.get(letter, size) != size for letter, size in zip(terms.data, dims, strict=True)):
        return None
    layout = _layout(terms)
    return None if layout is None else Product(node, slots[0], terms, layout, sizes)


def _terms(equation: str, slot: int, rank: int) -> Terms | None:
    """Read an equation of two terms, the second or the first of which is that of the constant."""
    found = EQUATION.fullmatch(equation.replace(" ", ""))
    if found is None:
        return None
    data, weight, output = found[2 - slot], found[1 + slot], found[3]
    if output is None:
        # Letters of both cases are in another order in NumPy than in onnxruntime.
        if "..." in data or not (equation.islower() or equation.isupper()):
            return None
        output = "".join(sorted(letter for letter in data + weight if (data + weight).count(letter) == 1))
    if "..." in data:  # the other axes of the activation, and of the output
        unused = [letter for letter in string.ascii_letters if letter not in equation]
        rest = "".join(unused[: max(rank - len(data) + 3, 0)])
        data, output = data.replace("...", rest), output.replace("...", rest)
    terms = Terms(data, weight, output)
    letters = (set(data), set(weight), set(output))
    whole = all(len(term) == len(distinct) for term, distinct in zip((data, weight, output), letters, strict=True))
    stated = "." not in weight + output and letters[2] <= letters[0] | letters[1]
    return terms if whole and stated and letters[0] ^ letters[1] <= letters[2] else None


def _layout(terms: Terms) -> ProductLayout | None:
    """Find the order of rows that needs the fewest Transpose; None where two are needed or it is no product."""
    summed = "".join(letter for letter in terms.data if letter in terms.weight and letter not in terms.output)
    columns = "".join(letter for letter in terms.output if letter not in terms.data)
    best: tuple[int, ProductLayout] | None = None
    for order in (terms.output, terms.data):
        rows = "".join(letter for letter in order if letter in terms.data and letter in terms.output)
        stack = "".join(letter for letter in rows if letter in terms.weight)
        if not summed or not columns or not rows[:-1].endswith(stack) or rows[-1:] in stack:
            continue
        turned = (rows + summed != terms.data) + (rows + columns != terms.output)
        if turned < 2 and (best is None or turned < best[0]):
            best = (turned, ProductLayout(rows, stack, summed, columns))
    return None if best is None else best[1]


# -- writing ----------------------------------------------------------------------------------------------------------


def _written(
    graph: Graph, product: Product, matrices: dict[tuple[Value, tuple[int, ...], tuple[int, ...]], Value]
) -> Patch:
    """Describe MatMul and what stands around it."""
    node, layout, terms = product.node, product.layout, product.terms
    value, end = node.inputs[1 - product.slot], node.outputs[0]
    assert value is not None
    assert end is not None
    patch, name = Patch(graph, node, "it is a product of matrices"), end.name
    if layout.rows + layout.summed != terms.data:
        perm = [terms.data.index(letter) for letter in layout.rows + layout.summed]
        value = patch.op("Transpose", value, hint=f"{name}_turned", perm=perm)
    if len(layout.summed) > 1:
        value = _reshaped(patch, value, layout.rows, (math.prod(product.shape(layout.summed)),), f"{name}_rows")
    made = patch.op("MatMul", value, _matrix(patch, product, matrices), hint=f"{name}_product")
    named_after(patch, node)
    if len(layout.columns) > 1:
        adds, bias = _bias(product) if layout.rows + layout.columns == terms.output else (None, None)
        if adds is not None and bias is not None and adds.outputs[0] is not None:
            end = adds.outputs[0]
            made = patch.op("Add", made, patch.constant(bias, f"{name}_bias"), hint=f"{name}_biased")
            named_after(patch, adds)
        made = _reshaped(patch, made, layout.rows, product.shape(layout.columns), f"{name}_columns")
    if layout.rows + layout.columns != terms.output:
        perm = [(layout.rows + layout.columns).index(letter) for letter in terms.output]
        made = patch.op("Transpose", made, hint=name, perm=perm)
    patch.replace(end, made)
    return patch


def _reshaped(patch: Patch, value: Value, rows: str, tail: tuple[int, ...], hint: str) -> Value:
    """Leave the axes of the rows as they are, whatever their sizes, and state those behind."""
    target = patch.constant(np.array([0] * len(rows) + list(tail), np.int64), f"{hint}_shape")
    return patch.op("Reshape", value, target, hint=hint)


def _matrix(
    patch: Patch, product: Product, matrices: dict[tuple[Value, tuple[int, ...], tuple[int, ...]], Value]
) -> Value:
    """Return the constant as a matrix or a stack of them: itself where it is one, and once for all that read it so."""
    layout, weight = product.layout, product.node.inputs[product.slot]
    assert weight is not None
    tensor = weight.elements
    perm = tuple(product.terms.weight.index(letter) for letter in layout.stack + layout.summed + layout.columns)
    matrix = (math.prod(product.shape(layout.summed)), math.prod(product.shape(layout.columns)))
    shape = (*product.shape(layout.stack), *matrix)
    if shape == tensor.shape and perm == tuple(range(len(perm))):
        return weight
    key = (weight, perm, shape)
    if key not in matrices:
        matrices[key] = patch.constant(_turned(tensor, perm, shape), f"{weight.name}_matrix")
    return matrices[key]


def _turned(tensor: Tensor, perm: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
    return DeferredTensor(
        tensor.dtype, shape, lambda: np.ascontiguousarray(tensor.numpy().transpose(perm)).reshape(shape)
    )


def _bias(product: Product) -> tuple[Node, Tensor] | tuple[None, None]:
    """Return the Add behind and a number a column, where it alone reads the result and adds the same to all rows.

    In front of the Reshape, it is part of the kernel that multiplies.
    """
    output, sizes = product.node.outputs[0], product.shape(product.layout.columns)
    use = output.only_use if output is not None else None
    if use is None or use.node.op_type != "Add" or use.node.domain or use.node.graph is not product.node.graph:
        return None, None
    added = use.node.inputs[1 - use.slot]
    tensor = added.constant if added is not None else None
    if tensor is None or len(tensor.shape) > len(product.terms.output):
        return None, None
    lead, tail = tensor.shape[: -len(sizes)], tensor.shape[-len(sizes) :]
    if set(lead) - {1} or any(one not in (1, size) for one, size in zip(tail[::-1], sizes[::-1], strict=False)):
        return None, None
    return use.node, ArrayTensor(np.broadcast_to(tensor.numpy().reshape(tail), sizes).reshape(-1))
