"""Prompts in float products, single tokens in 8-bit ones: MatMulNBits by the number of rows.

With `accuracy_level` 4, MatMulNBits rounds its input to 8 bits and sums up each block on its own. That is the fastest
way for one row. For many rows and small blocks, some processors are faster with float products of unpacked weights,
which are more accurate, too (`docs/benchmarks/decoders.md`, scales by block). The level is an attribute, so an `If` on
the number of rows holds the graph twice. Weights stay outside, and are stored once.

MatMulNBits unpacks weights of 8 bits slowly. So a DequantizeLinear does that for prompts, a scale for each block.

Tests: `tests/lowering/test_prompt_branch.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import NamedTuple

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from onnxq.ir import Model, Node, Value, infer_types
from onnxq.ir.graph import MICROSOFT
from onnxq.ir.tensor import Tensor

OPERATOR, LEVEL = "MatMulNBits", "accuracy_level"
BITS, UNPACKED_BITS, MOST_BLOCK = 4, 8, 64  # has fast float products, has none, and what is slow in 8 bits
MOST_UNPACKED = 256 << 20  # bytes of a weight of 8 bits in float, which a prompt has in memory
AXIS_OPSET = 13  # of DequantizeLinear with scales along an axis
IN_FLOAT, IN_CODES = 1, 4  # levels
LEAST_SHARE = 0.5  # of the elements of all such weights that gain
MOST_ADDED = 0.05  # bytes of nodes, of those of the weights
NODE = "onnxq_rows"  # the node that chooses, and what names of its inputs begin with
TOKEN, PROMPT = "_token", "_prompt"  # ends of names in the branches


def with_prompt_branch(model: Model, rows: int) -> Model:
    """Return a model that multiplies more rows than `rows` in float; the very same where that gains nothing.

    A fixed number of rows needs no branch: all products are of the level that is faster.

    Args:
        model: A quantized model, whose types are inferred.
        rows: Largest number of rows of products in 8 bits; 0 where these are always faster.

    """
    if not rows or model.has_functions or any(node.bodies for node in model.graph.nodes):
        return model
    gaining = _gaining(model)
    if not gaining:
        return model
    infer_types(model)
    counted = next((found for index in gaining if (found := _row_axes(model, model.graph.nodes[index]))), None)
    if counted is None or (counted.source is None and counted.fixed <= rows):
        return model
    made, weights = model.copy(), list[Tensor]()
    proto = ModelProto.FromString(made.skeleton(weights))
    graph = proto.graph
    if counted.source is not None:
        if sum(node.ByteSize() for node in graph.node) > MOST_ADDED * model.weight_bytes or _are_taken(graph):
            return model
        tokens, prompts = _branch(graph, TOKEN), _branch(graph, PROMPT)
        _compute_in_float(prompts, gaining, graph)
        asked = _asks_for_rows(graph, counted, rows)
        outputs = [value.name.removesuffix(TOKEN) for value in tokens.output]
        chosen = helper.make_node("If", [asked[-1].output[0]], outputs, NODE, then_branch=prompts, else_branch=tokens)
        del graph.node[:]
        graph.node.extend([*asked, chosen])
    else:
        _compute_in_float(graph, gaining, graph)
    made.read_skeleton(proto.SerializeToString(deterministic=True), weights)
    return made


def without_prompt_branch(model: Model) -> Model:
    """Return a model that computes all rows as single tokens; the very same where it has no branch for prompts."""
    last = model.graph.nodes[-1] if model.graph.nodes else None
    if last is None or last.op_type != "If" or last.name != NODE:
        return model
    made, weights = model.copy(), list[Tensor]()
    proto = ModelProto.FromString(made.skeleton(weights))
    graph = proto.graph
    body = next(attribute.g for attribute in graph.node[-1].attribute if attribute.name == "else_branch")
    names = {name: name.removesuffix(TOKEN) for node in body.node for name in node.output if name}
    nodes = [_renamed(node, names, TOKEN, "") for node in body.node]
    asked = [tensor for tensor in graph.initializer if tensor.name.startswith(f"{NODE}_")]
    for tensor in asked:
        graph.initializer.remove(tensor)
    del graph.node[:]
    graph.node.extend(nodes)
    made.read_skeleton(proto.SerializeToString(deterministic=True), weights)
    return made


def _gaining(model: Model) -> list[int]:
    """Return places of the products that float makes faster, the largest first; none where most weights are others'."""
    nodes = model.graph.nodes
    sizes = {index: node.attribute("K") * node.attribute("N") for index, node in enumerate(nodes) if _is_product(node)}
    gaining = [index for index in sizes if _gains(nodes[index], model.opset)]
    if sum(sizes[index] for index in gaining) < LEAST_SHARE * sum(sizes.values()):
        return []
    return sorted(gaining, key=lambda index: -sizes[index])


def _is_product(node: Node) -> bool:
    return node.op_type == OPERATOR and node.domain == MICROSOFT


def _gains(node: Node, opset: int) -> bool:
    if node.attribute("block_size") > MOST_BLOCK or node.attribute(LEVEL, 0) != IN_CODES:
        return False
    bits = node.attribute("bits", BITS)
    return bool(bits == BITS or (bits == UNPACKED_BITS and opset >= AXIS_OPSET and _can_be_unpacked(node)))


def _can_be_unpacked(node: Node) -> bool:
    """Whether a DequantizeLinear gives the weight: with zero points, in whole blocks, and no more than fit."""
    inner, columns = node.attribute("K"), node.attribute("N")
    if len(node.inputs) != 4 or node.inputs[3] is None or node.inputs[2] is None:
        return False
    is_float = node.inputs[2].dtype == TensorProto.FLOAT and node.inputs[3].dtype == TensorProto.UINT8
    return is_float and not inner % node.attribute("block_size") and 4 * inner * columns <= MOST_UNPACKED


class _Rows(NamedTuple):
    """The number of rows of products: the product of some axes of an input of the model, and of fixed sizes.

    Attributes:
        source: The input; None where all sizes are fixed.
        axes: Of the input.
        fixed: The product of the fixed sizes.

    """

    source: Value | None
    axes: list[int]
    fixed: int


def _row_axes(model: Model, product: Node) -> _Rows | None:
    """Return what the rows of a product are; None where no input of the model has their open axes."""
    shape = product.inputs[0].shape if product.inputs[0] is not None else None
    if shape is None:
        return None
    open_axes = [size for size in shape[:-1] if not isinstance(size, int)]
    fixed = prod(size for size in shape[:-1] if isinstance(size, int))
    if not open_axes:
        return _Rows(None, [], fixed)
    for value in model.graph.inputs:
        sizes = value.shape or ()
        if value.tensor is None and fixed and None not in open_axes and set(open_axes) <= set(sizes):
            return _Rows(value, [sizes.index(name) for name in open_axes], fixed)
    return None


def _compute_in_float(graph: GraphProto, places: Iterable[int], outside: GraphProto) -> None:
    """Let products at some places compute in float; constants for that are put into the graph around them."""
    chosen, nodes = set(places), list[NodeProto]()
    for place, node in enumerate(graph.node):
        settings = {attribute.name: attribute for attribute in node.attribute} if place in chosen else {}
        if "bits" in settings and settings["bits"].i == UNPACKED_BITS:
            nodes += _unpacked(node, settings["K"].i, settings["block_size"].i, outside)
            continue
        if settings:
            settings[LEVEL].i = IN_FLOAT
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _unpacked(node: NodeProto, inner: int, block: int, outside: GraphProto) -> list[NodeProto]:
    """Return nodes that multiply by the weight in float; onnxruntime fuses the Transpose with the MatMul."""
    known = {tensor.name for tensor in outside.initializer}

    def shape(*sizes: int) -> str:
        name = f"{NODE}_by_{sizes[-1]}" if len(sizes) > 1 else f"{NODE}_flat"
        if name not in known:
            known.add(name)
            outside.initializer.append(numpy_helper.from_array(np.array(sizes, np.int64), name))
        return name

    read, codes, scales, zeros = node.input
    by_block, of_block, zero, flat, weight, turned = (
        f"{NODE}_{node.output[0]}_{what}" for what in ("codes", "scales", "zeros", "blocks", "weight", "turned")
    )
    return [
        helper.make_node("Reshape", [codes, shape(-1, block)], [by_block], by_block),
        helper.make_node("Reshape", [scales, shape(-1)], [of_block], of_block),
        helper.make_node("Reshape", [zeros, shape(-1)], [zero], zero),
        helper.make_node("DequantizeLinear", [by_block, of_block, zero], [flat], flat, axis=0),
        helper.make_node("Reshape", [flat, shape(-1, inner)], [weight], weight),
        helper.make_node("Transpose", [weight], [turned], turned, perm=[1, 0]),
        helper.make_node("MatMul", [read, turned], [node.output[0]], node.name),
    ]


def _asks_for_rows(graph: GraphProto, counted: _Rows, rows: int) -> list[NodeProto]:
    """Return nodes whose last gives whether there are more rows, and put their constants into the graph."""
    assert counted.source is not None
    limit, axes = np.array(rows // counted.fixed, np.int64), np.array(counted.axes, np.int64)
    names = [f"{NODE}_{what}" for what in ("shape", "axes", "sizes", "count", "limit", "many")]
    shape, which, sizes, count, most, many = names
    graph.initializer.extend([numpy_helper.from_array(axes, which), numpy_helper.from_array(limit, most)])
    return [
        helper.make_node("Shape", [counted.source.name], [shape], shape),
        helper.make_node("Gather", [shape, which], [sizes], sizes),
        helper.make_node("ReduceProd", [sizes], [count], count, keepdims=0),
        helper.make_node("Greater", [count, most], [many], many),
    ]


def _are_taken(graph: GraphProto) -> bool:
    """Whether a name that a branch would give is one of the graph around it, such as that of a weight `cls_token`."""
    outside = {value.name for values in (graph.input, graph.initializer, graph.output) for value in values}
    return any(f"{name}{end}" in outside for node in graph.node for name in node.output for end in (TOKEN, PROMPT))


def _branch(graph: GraphProto, end: str) -> GraphProto:
    """Return the nodes of a graph as a branch, in which all that they make has another name.

    Outputs that no node makes, such as an input that is given back, are none of the branch.
    """
    names = {name: f"{name}{end}" for node in graph.node for name in node.output if name}
    outputs = []
    for value in (value for value in graph.output if value.name in names):
        output = ValueInfoProto()
        output.CopyFrom(value)
        output.name = names[value.name]
        outputs.append(output)
    return helper.make_graph([_renamed(node, names, "", end) for node in graph.node], f"{NODE}{end}", [], outputs)


def _renamed(node: NodeProto, names: Mapping[str, str], old: str, new: str) -> NodeProto:
    """Return a copy with other names of values, and another end of its own name."""
    copied = NodeProto()
    copied.CopyFrom(node)
    copied.name = f"{node.name.removesuffix(old)}{new}" if node.name else ""
    for slots in (copied.input, copied.output):
        slots[:] = [names.get(name, name) for name in slots]
    return copied
