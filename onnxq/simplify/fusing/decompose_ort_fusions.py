"""Decompose operators that onnxruntime had fused before a model was saved into operators of ONNX.

Integer kernels exist for products alone: within a fused operator, weights are no more than stored. Whatever onnxruntime
still fuses of the rest, it fuses when it loads the quantized model. Inputs and attributes: ContribOperators.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from onnx import TensorProto
from onnx.helper import tensor_dtype_to_np_dtype

from onnxq.ir.graph import MICROSOFT, Node, Value
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import Change, register_pass
from onnxq.ir.patch import Patch, named_after
from onnxq.ir.tensor import ArrayTensor
from onnxq.simplify.opset_builders import add_scalar

OPSET, AXES_OPSET = 17, 18  # the first with LayerNormalization, and whose ReduceMean has its axes as an input
EPSILON = 1e-12  # where none is stated
MASKED = -10000.0
NO_ACTIVATION, CLIP_OPSET = "", 11  # from where on the ends of a Clip are inputs
OPSETS = {"FusedConv": CLIP_OPSET, "FusedGemm": CLIP_OPSET, "FusedMatMul": 1}  # of others than `OPSET`
KINDS = (None, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)  # None: not known, and taken for float
PARAMETERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((NO_ACTIVATION, "Relu", "Sigmoid", "Tanh"), ()),
    "Clip": ("min", "max"),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
}


@register_pass(order=10, integer=True, note="decomposed {} fused operator{s} of onnxruntime")
def decompose_ort_fusions(model: Model) -> Iterator[Change]:
    """Describe the operators that take the place of each fused one, in a form that is known here."""
    for graph in model.graph.graphs():
        for node in graph.nodes:
            write = WRITERS.get(node.op_type) if node.domain == MICROSOFT else None
            patch = Patch(graph, node, f"{node.op_type} is written as operators of ONNX")
            if write is _skip_layer_normalization:
                write = partial(write, newer=model.opset >= AXES_OPSET)
            if write is not None and write(patch, node):
                named_after(patch, node)
                yield Change(patch, opset=OPSETS.get(node.op_type, OPSET))


def _made(node: Node, *slots: int) -> list[Value | None] | None:
    """Return some outputs, None for those without readers; None if another output has a reader."""
    read = [value if value is not None and (value.uses or value.is_output) else None for value in node.outputs]
    if any(value is not None for slot, value in enumerate(read) if slot not in slots):
        return None
    return [read[slot] if slot < len(read) else None for slot in slots]


def _skip_layer_normalization(patch: Patch, node: Node, *, newer: bool = False) -> bool:
    """Y = LayerNormalization(x + bias + skip), and the sum; `newer` says that ReduceMean has its axes as an input."""
    made, gamma = _made(node, 0, 3), node.input(2)
    simplified = node.op_type.startswith("SkipSimplified")
    total = _sum(patch, node, node.input(3 if simplified else 4))
    if made is None or made[0] is None or gamma is None or total is None or gamma.dtype not in KINDS:
        return False
    if simplified:
        normalised = _root_mean_square(patch, node, total, gamma, newer=newer)
    else:
        normalised = _normalised(patch, node, total, gamma, node.input(3))
    patch.replace(made[0], normalised)
    if made[1] is not None:
        patch.replace(made[1], total)
    return True


def _sum(patch: Patch, node: Node, bias: Value | None) -> Value | None:
    value, skip = node.input(0), node.input(1)
    if value is None or skip is None:
        return None
    name = node.label
    value = value if bias is None else patch.op("Add", value, bias, hint=f"{name}_biased")
    return patch.op("Add", value, skip, hint=f"{name}_sum")


def _normalised(patch: Patch, node: Node, value: Value, gamma: Value, beta: Value | None) -> Value:
    inputs = (value, gamma) if beta is None else (value, gamma, beta)
    epsilon = float(node.attribute("epsilon", EPSILON))
    return patch.op("LayerNormalization", *inputs, hint=f"{node.label}_normalised", axis=-1, epsilon=epsilon)


def _root_mean_square(patch: Patch, node: Node, value: Value, gamma: Value, *, newer: bool) -> Value:
    """Divide a value by its root mean square, which is computed in float32 at least, as onnxruntime does."""
    name, half = node.label, gamma.dtype == TensorProto.FLOAT16
    wide = patch.op("Cast", value, hint=f"{name}_wide", to=TensorProto.FLOAT) if half else value
    kind = TensorProto.FLOAT if half else gamma.dtype
    square = patch.op("Pow", wide, _number(patch, 2, kind, f"{name}_two"), hint=f"{name}_squares")
    if newer:
        axes = patch.constant(np.array([-1], np.int64), f"{name}_axes")
        mean = patch.op("ReduceMean", square, axes, hint=f"{name}_mean", keepdims=1)
    else:
        mean = patch.op("ReduceMean", square, hint=f"{name}_mean", axes=[-1], keepdims=1)
    epsilon = _number(patch, float(node.attribute("epsilon", EPSILON)), kind, f"{name}_epsilon")
    root = patch.op("Sqrt", patch.op("Add", mean, epsilon, hint=f"{name}_more"), hint=f"{name}_root")
    divided = patch.op("Div", wide, root, hint=f"{name}_divided")
    if half:
        divided = patch.op("Cast", divided, hint=f"{name}_narrow", to=TensorProto.FLOAT16)
    return patch.op("Mul", divided, gamma, hint=f"{name}_normalised")


def _number(patch: Patch, number: float, kind: int | None, hint: str) -> Value:
    """Return a constant of an element type, as far as that reaches."""
    kind = kind or TensorProto.FLOAT
    limits = np.finfo(tensor_dtype_to_np_dtype(kind))
    return add_scalar(patch, float(np.clip(number, limits.min, limits.max)), kind, hint)


def _embed_layer_normalization(patch: Patch, node: Node) -> bool:
    """Y = LayerNormalization(words + positions + segments), the number of tokens that are not masked, and the sum."""
    made = _made(node, 0, 1, 2)
    ids, segments, words, places, kinds, gamma, beta, mask, positions = (node.input(slot) for slot in range(9))
    if made is None or made[0] is None or beta is None or (made[1] and mask is None):
        return False
    if ids is None or words is None or places is None or gamma is None:
        return False
    name = node.label
    if positions is None:
        positions = _positions(patch, ids, name)
    total = patch.op("Gather", words, ids, hint=f"{name}_words", axis=0)
    if segments is not None and kinds is not None:
        total = patch.op("Add", total, patch.op("Gather", kinds, segments, hint=f"{name}_segments", axis=0))
    total = patch.op("Add", total, patch.op("Gather", places, positions, hint=f"{name}_positions", axis=0))
    patch.replace(made[0], _normalised(patch, node, total, gamma, beta))
    if made[1] is not None and mask is not None:
        axes = patch.constant(np.array([1], np.int64), f"{name}_axes")
        patch.replace(made[1], patch.op("ReduceSum", mask, axes, hint=f"{name}_lengths", keepdims=0))
    if made[2] is not None:
        patch.replace(made[2], total)
    return True


def _positions(patch: Patch, value: Value, name: str) -> Value:
    """Return 0, 1, 2 … along the second axis, int64."""
    place = patch.constant(np.array(1, np.int64), f"{name}_axis")
    length = patch.op("Gather", patch.op("Shape", value, hint=f"{name}_shape"), place, hint=f"{name}_length", axis=0)
    ends = [patch.constant(np.array(each, np.int64), f"{name}_{what}") for each, what in ((0, "first"), (1, "step"))]
    return patch.op("Range", ends[0], length, ends[1], hint=f"{name}_range")


def _attention(patch: Patch, node: Node) -> bool:
    """Softmax(Q Kᵀ · scale + mask) V, without what was computed for earlier tokens."""
    value, weight, bias, mask, past, more = (node.input(slot) for slot in range(6))
    made, matrix = _made(node, 0), None if weight is None else weight.constant
    heads = int(node.attribute("num_heads", 0))
    if made is None or made[0] is None or value is None or weight is None or matrix is None:
        return False
    if len(matrix.shape) != 2 or weight.dtype not in KINDS:
        return False
    third = matrix.shape[1] // 3
    sizes = [int(size) for size in node.attribute("qkv_hidden_sizes", (third, third, third))]
    unknown = past is not None or node.attribute("do_rotary", 0) or not heads
    if unknown or sum(sizes) != matrix.shape[1] or any(size % heads for size in sizes) or (bias and not bias.constant):
        return False
    barred = _barred(patch, node, value, mask)
    if mask is not None and barred is None:
        return False
    name = node.label
    parts = _parts(patch, value, matrix.numpy(), bias, sizes, name)
    shapes = ((heads, size // heads) for size in sizes)
    q, k, v = (
        _heads(patch, part, shape, perm, name) for part, shape, perm in zip(parts, shapes, PERMUTATIONS, strict=True)
    )
    scale = float(node.attribute("scale", 0.0)) or 1 / math.sqrt(sizes[0] // heads)
    scores = patch.op("MatMul", q, k, hint=f"{name}_products")
    scores = patch.op("Mul", scores, _number(patch, scale, weight.dtype, f"{name}_scale"), hint=f"{name}_scores")
    for added in (barred, _causal(patch, node, value), more):
        scores = scores if added is None else patch.op("Add", scores, added, hint=f"{name}_masked")
    seen = patch.op("MatMul", patch.op("Softmax", scores, hint=f"{name}_probabilities", axis=-1), v)
    joined = patch.op("Transpose", seen, hint=f"{name}_joined", perm=[0, 2, 1, 3])
    target = patch.constant(np.array([0, 0, sizes[2]], np.int64), f"{name}_width")
    patch.replace(made[0], patch.op("Reshape", joined, target, hint=f"{name}_output"))
    return True


PERMUTATIONS = ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))  # of queries, keys and values


def _parts(
    patch: Patch, value: Value, matrix: np.ndarray, bias: Value | None, sizes: list[int], name: str
) -> Iterator[Value]:
    """Return queries, keys and values, each as a product of its own."""
    ends = np.cumsum([0, *sizes])
    stored = None if bias is None or bias.constant is None else bias.constant.numpy()
    for part, first, last in zip("qkv", ends[:-1], ends[1:], strict=True):
        columns = patch.constant(np.ascontiguousarray(matrix[:, first:last]), f"{name}_{part}_weight")
        made = patch.op("MatMul", value, columns, hint=f"{name}_{part}")
        if stored is not None:
            made = patch.op("Add", made, patch.constant(stored[first:last].copy(), f"{name}_{part}_bias"))
        yield made


def _heads(patch: Patch, value: Value, shape: tuple[int, int], perm: tuple[int, ...], name: str) -> Value:
    target = patch.constant(np.array([0, 0, *shape], np.int64), f"{name}_heads")
    return patch.op("Transpose", patch.op("Reshape", value, target), perm=list(perm))


def _barred(patch: Patch, node: Node, value: Value, mask: Value | None) -> Value | None:
    """Return what is added to scores for a mask: which tokens count, `[batch, tokens]`, or how many, `[batch]`."""
    if mask is None or mask.shape is None or mask.dtype not in (TensorProto.INT32, TensorProto.INT64):
        return None
    name, rank = node.label, len(mask.shape)
    if rank == 1:
        if value.shape is None or mask.shape != value.shape[:1]:  # it may hold where they begin, too
            return None
        places = patch.op("Cast", _positions(patch, value, name), hint=f"{name}_places", to=mask.dtype)
        allowed = patch.op("Less", places, _with_axes(patch, mask, [1], name), hint=f"{name}_allowed")
    elif rank in (2, 3):
        allowed = patch.op("Cast", mask, hint=f"{name}_allowed", to=TensorProto.BOOL)
    else:
        return None
    allowed = _with_axes(patch, allowed, [1] if rank == 3 else [1, 2], name)
    return _where(patch, allowed, float(node.attribute("mask_filter_value", MASKED)), node)


def _causal(patch: Patch, node: Node, value: Value) -> Value | None:
    """Return what is added to scores so that no token sees a later one."""
    if not node.attribute("unidirectional", 0):
        return None
    name = node.label
    places = _positions(patch, value, name)
    allowed = patch.op("GreaterOrEqual", _with_axes(patch, places, [1], name), places, hint=f"{name}_earlier")
    return _where(patch, allowed, float(np.finfo(np.float32).min), node)


def _with_axes(patch: Patch, value: Value, axes: list[int], name: str) -> Value:
    return patch.op("Unsqueeze", value, patch.constant(np.array(axes, np.int64), f"{name}_axes"))


def _where(patch: Patch, allowed: Value, otherwise: float, node: Node) -> Value:
    name, weight = node.label, node.inputs[1]
    kind = None if weight is None else weight.dtype
    zero, barred = (_number(patch, each, kind, f"{name}_barred") for each in (0.0, otherwise))
    return patch.op("Where", allowed, zero, barred, hint=f"{name}_mask")


def _with_activation(patch: Patch, node: Node) -> bool:
    """Conv or Gemm and what follows it: a sum with something else, and an activation."""
    made, kind = _made(node, 0), _text(node.attribute("activation", NO_ACTIVATION))
    keys = PARAMETERS.get(kind, ())
    stated = [node.attribute(f"activation_{key}") for key in keys]  # of FusedGemm
    given = list(node.attribute("activation_params", ())) or [each for each in stated if each is not None]
    weight = node.input(1)
    if made is None or made[0] is None or kind not in PARAMETERS or len(given) != len(keys):
        return False
    if weight is None or weight.dtype not in KINDS:
        return False
    name = node.label
    own = {key: node.attribute(key) for key in node.spans if not key.startswith("activation")}
    value = patch.op(node.op_type.removeprefix("Fused"), *node.inputs[:3], hint=f"{name}_product", **own)
    added = node.input(3)
    value = value if added is None else patch.op("Add", value, added, hint=f"{name}_sum")
    settings = dict(zip(keys, map(float, given), strict=True))
    if kind == "Clip":
        ends = [_number(patch, end, weight.dtype, f"{name}_{key}") for key, end in settings.items()]
        value = patch.op(kind, value, *ends, hint=f"{name}_activated")
    elif kind != NO_ACTIVATION:
        value = patch.op(kind, value, hint=f"{name}_activated", **settings)
    patch.replace(made[0], value)
    return True


def _scaled_product(patch: Patch, node: Node) -> bool:
    """MatMul by a constant: of transposed factors, and times a number."""
    made, data, weight = _made(node, 0), node.inputs[0], node.input(1)
    if made is None or made[0] is None or data is None or weight is None or weight.constant is None:
        return False
    kind, name, rank = data.dtype, node.label, len(data.shape or ())
    if kind not in KINDS or node.attribute("transBatchA", 0) or node.attribute("transBatchB", 0):
        return False
    if node.attribute("transA", 0):
        if rank < 2:
            return False
        data = patch.op("Transpose", data, hint=f"{name}_rows", perm=[*range(rank - 2), rank - 1, rank - 2])
    if node.attribute("transB", 0) and len(weight.elements.shape) > 1:
        if weight.only_use is None:  # the file would hold it twice
            return False
        array = np.ascontiguousarray(np.swapaxes(weight.elements.numpy(), -1, -2))
        weight = patch.constant(ArrayTensor(array), f"{weight.name}_transposed")
    value = patch.op("MatMul", data, weight, hint=f"{name}_product")
    alpha = float(node.attribute("alpha", 1.0))
    value = value if alpha == 1.0 else patch.op("Mul", value, _number(patch, alpha, kind, f"{name}_alpha"), hint=name)
    patch.replace(made[0], value)
    return True


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


WRITERS: dict[str, Callable[[Patch, Node], bool]] = {
    "Attention": _attention,
    "EmbedLayerNormalization": _embed_layer_normalization,
    "FusedConv": _with_activation,
    "FusedGemm": _with_activation,
    "FusedMatMul": _scaled_product,
    "SkipLayerNormalization": _skip_layer_normalization,
    "SkipSimplifiedLayerNormalization": _skip_layer_normalization,
}
