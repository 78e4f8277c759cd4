"""Nodes of a quantized model that hazards may be about, with the facts that rows of the table ask for.

Tests: `tests/hazards/test_hazards.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from onnx import TensorProto

from onnxq.hazards.table import Fact
from onnxq.ir import Model, Node, Tensor, Value
from onnxq.ir.graph import MICROSOFT
from onnxq.verification.wellformed.constants import dtype_of, shape_of, tensor_of

Occurrence = tuple[Node, dict[str, Fact]]
Finder = Callable[[Model], Iterator[Occurrence]]
BITS: dict[int, int] = {
    TensorProto.INT8: 8,
    TensorProto.UINT8: 8,
    TensorProto.INT4: 4,
    TensorProto.UINT4: 4,
    TensorProto.INT16: 16,
    TensorProto.UINT16: 16,
    getattr(TensorProto, "INT2", -2): 2,
    getattr(TensorProto, "UINT2", -1): 2,
}
NAMES: dict[int, str] = {TensorProto.INT8: "int8", TensorProto.UINT8: "uint8"}
# Operators on codes: where data, weight and zero point of the data are; of the specifications of ONNX and onnxruntime's
# ContribOperators.md. DynamicQuantizeMatMul quantizes its data itself, as uint8.
SLOTS = {
    "MatMulInteger": (0, 1, 2),
    "ConvInteger": (0, 1, 2),
    "QLinearMatMul": (0, 3, 2),
    "QLinearConv": (0, 3, 2),
    "QGemm": (0, 3, 2),
    "MatMulIntegerToFloat": (0, 1, 4),
    "DynamicQuantizeMatMul": (0, 1, -1),
}
CONVOLUTIONS = ("ConvInteger", "QLinearConv", "Conv")
PAIRED = ("MatMul", "Gemm", "Conv")


def matmulnbits(model: Model) -> Iterator[Occurrence]:
    """Yield the MatMulNBits nodes: `bits`, `block_size`, `level`, `zero_points`, `g_idx`, `parameters`.

    `parameters` says of scales and zero points when onnxruntime knows them, the latest of both. `stored` is when it
    loads the model, `folded` when it has optimized the graph, `computed` in a run. Codes that are no constants are
    rearranged in a run, too, and parameters count as `stored` then.
    """
    for node in model.graph.walk():
        if node.op_type != "MatMulNBits" or node.domain != MICROSOFT:
            continue
        zero = node.input(3)
        points = dtype_of(zero)
        yield (
            node,
            {
                "bits": node.attribute("bits", 4),
                "block_size": node.attribute("block_size", 0),
                "level": node.attribute("accuracy_level", 0),
                "zero_points": "none" if zero is None else "uint8" if points == TensorProto.UINT8 else "float",
                "g_idx": node.input(4) is not None,
                "parameters": _known_when(node),
            },
        )


def _known_when(node: Node) -> str:
    """Return when onnxruntime knows the scales and zero points of a MatMulNBits."""
    if _fixed(node.input(1)) != "stored":
        return "stored"
    found = {_fixed(node.input(slot)) for slot in (2, 3)}
    return next(kind for kind in ("computed", "folded", "stored") if kind in found)


def _fixed(value: Value | None) -> str:
    """Return whether a value is stored, or folded of stored ones, or computed in a run; no value is stored."""
    kind, seen, waiting = "stored", set[Value](), [value] if value is not None else []
    while waiting:
        one = waiting.pop()
        maker = one.producer
        if one in seen:
            continue
        seen.add(one)
        if one.is_input:
            return "computed"
        if one.constant is not None or maker is None or maker.op_type == "Constant":
            if tensor_of(one) is None:
                return "computed"
        elif maker.bodies or not maker.inputs:
            return "computed"
        else:
            kind = "folded"
            waiting += maker.reads
    return kind


def block_lookup(model: Model) -> Iterator[Occurrence]:
    """Yield the GatherBlockQuantized nodes: `bits`, and `codes`, the type of their table."""
    for node in model.graph.walk():
        if node.op_type == "GatherBlockQuantized" and node.domain == MICROSOFT:
            unsigned = dtype_of(node.input(0)) == TensorProto.UINT8
            yield node, {"bits": node.attribute("bits", 4), "codes": "uint8" if unsigned else "other"}


def coded_cache(model: Model) -> Iterator[Occurrence]:
    """Yield the GroupQueryAttention nodes whose cache holds codes: `bits`."""
    for node in model.graph.walk():
        known = node.op_type == "GroupQueryAttention" and node.domain == MICROSOFT
        if known and node.attribute("k_quant_type", "NONE") != "NONE":
            yield node, {"bits": node.attribute("kv_cache_bit_width", 0)}


def weight_only_product(model: Model) -> Iterator[Occurrence]:
    """Yield the float products whose weight stands behind DequantizeLinear as onnxruntime takes it for MatMulNBits.

    The weight is a constant matrix on the right. It has one scale, scales along its columns, or blocks of 16 and more
    along its rows. A Gemm has no transposition, no factors, and a bias of one axis. Facts:

    * `operator`, `bits`, `block_size` (0 for none), and `opset`;
    * `shared`: whether the dequantized weight is read elsewhere, too;
    * `bare`: whether a Transpose stands between the product and a DequantizeLinear of signed codes without zero points.
    """
    for node in model.graph.walk():
        found = _dequantized_weight(node)
        if found is None or not is_plain(node) or _is_dequantized(node.input(0)):
            continue
        maker, codes, transposed = found
        block = maker.attribute("block_size", 0)
        if not _along_columns(maker, block, 0 if transposed else 1) or (transposed and block):
            continue
        weight = node.input(1)
        assert weight is not None
        yield (
            node,
            {
                "operator": node.op_type,
                "bits": BITS.get(codes.dtype, 0),
                "block_size": block,
                "shared": weight.only_use is None,
                "bare": transposed and _is_bare(maker, codes),
                "opset": model.opset,
            },
        )


def transposed_weight(model: Model) -> Iterator[Occurrence]:
    """Yield the products whose weight is dequantized, then transposed: `operator`, `bare`, `scales`.

    `bare` are signed codes without zero points, `scales` is `tensor` or `channel`. Blocks are left out.
    """
    for node in model.graph.walk():
        found = _dequantized_weight(node)
        if found is None or not found[2] or found[0].attribute("block_size", 0):
            continue
        maker, codes, _ = found
        scales = "tensor" if shape_of(maker.input(1)) == () else "channel"
        yield node, {"operator": node.op_type, "bare": _is_bare(maker, codes), "scales": scales}


def find_integer_products(model: Model) -> Iterator[Occurrence]:
    """Yield the products that compute on codes with a constant weight.

    Facts:

    * `operator`, and `pairs`: whether it is a float operator between Q/DQ pairs;
    * `activations` and `weights`: their types, and `unsigned_by_signed`: whether these are uint8 and int8;
    * `columns`: or filters of a group, and `rows`: None where the model leaves them open;
    * `symmetric`: whether onnxruntime has a kernel for that very convolution (ConvSym).
    """
    for node in model.graph.walk():
        found = _on_codes(node) or _between_pairs(node)
        if found is None:
            continue
        data, weight, pairs = found
        signs = (data, NAMES.get(weight.dtype))
        if None in signs:
            continue
        yield (
            node,
            {
                "operator": node.op_type,
                "pairs": pairs,
                "activations": signs[0],
                "weights": signs[1],
                "unsigned_by_signed": signs == ("uint8", "int8"),
                "columns": _columns(node, weight),
                "rows": _rows(node),
                "symmetric": _is_symmetric(node, weight),
            },
        )


FINDERS: dict[str, Finder] = {
    "matmulnbits": matmulnbits,
    "block_lookup": block_lookup,
    "coded_cache": coded_cache,
    "weight_only_product": weight_only_product,
    "transposed_weight": transposed_weight,
    "integer_product": find_integer_products,
}


def is_plain(node: Node) -> bool:
    """Whether a MatMul or Gemm does no more than a MatMul with a bias of one axis behind it."""
    if node.op_type == "MatMul":
        return True
    bias = node.input(2)
    one_axis = bias is None or bias.shape is None or len(bias.shape) == 1
    if bias is not None and bias.tensor is not None:
        one_axis = len(bias.tensor.shape) == 1 and bias.tensor.size > 1
    return (
        one_axis
        and not (node.attribute("transA", 0) or node.attribute("transB", 0))
        and node.attribute("alpha", 1.0) == 1.0
        and (bias is None or node.attribute("beta", 1.0) == 1.0)
    )


def _dequantized_weight(node: Node) -> tuple[Node, Tensor, bool] | None:
    """Return the DequantizeLinear of a product's weight, its codes, a matrix, and whether a Transpose is in between."""
    if node.domain or node.op_type not in ("MatMul", "Gemm"):
        return None
    weight = node.input(1)
    maker = None if weight is None else weight.producer
    transposed = maker is not None and maker.op_type == "Transpose" and list(maker.attribute("perm", [1, 0])) == [1, 0]
    if transposed and maker is not None:
        behind = maker.input(0)
        maker = None if behind is None else behind.producer
    if maker is None or maker.op_type != "DequantizeLinear":
        return None
    codes = tensor_of(maker.input(0))
    return None if codes is None or len(codes.shape) != 2 else (maker, codes, transposed)


def _is_bare(maker: Node, codes: Tensor) -> bool:
    """Whether a DequantizeLinear has signed codes and no zero points."""
    return codes.dtype in (TensorProto.INT8, TensorProto.INT4) and maker.input(2) is None


def _along_columns(maker: Node, block: int, axis_of_columns: int) -> bool:
    """Whether a DequantizeLinear of a matrix has scales that MatMulNBits can have."""
    shape, axis = shape_of(maker.input(1)), maker.attribute("axis", 1)
    if block:
        return bool(axis == 0 and block >= 16 and block & (block - 1) == 0)
    return shape is not None and (not shape or (len(shape) == 1 and axis == axis_of_columns))


def _on_codes(node: Node) -> tuple[str | None, Tensor, bool] | None:
    """Return type of the data and weight of an operator on codes."""
    slots = SLOTS.get(node.op_type)
    if slots is None or node.domain not in ("", MICROSOFT):
        return None
    data, weight, zero = slots
    constant = tensor_of(node.input(weight))
    if constant is None:
        return None
    if zero < 0:
        return "uint8", constant, False
    point, read = node.input(zero), node.input(data)
    known = _code_type(read) if point is None else dtype_of(point)
    return (None if known is None else NAMES.get(known)), constant, False


def _between_pairs(node: Node) -> tuple[str | None, Tensor, bool] | None:
    """Return the same of a float operator whose data and weight are dequantized; onnxruntime makes int8 data uint8."""
    if node.domain or node.op_type not in PAIRED:
        return None
    weight = node.input(1)
    if not _is_dequantized(node.input(0)) or weight is None or not _is_dequantized(weight):
        return None
    assert weight.producer is not None
    codes = tensor_of(weight.producer.input(0))
    return None if codes is None or weight.producer.attribute("block_size", 0) else ("uint8", codes, True)


def _columns(node: Node, weight: Tensor) -> int | None:
    if node.op_type in CONVOLUTIONS:
        return int(weight.shape[0]) // max(node.attribute("group", 1), 1) if weight.shape else None
    if len(weight.shape) < 2:
        return 1
    transposed = node.op_type in ("Gemm", "QGemm") and node.attribute("transB", 0)
    return int(weight.shape[-2 if transposed else -1])


def _rows(node: Node) -> int | None:
    """Return how many rows a product has, all but the last axis of its output, or how many positions a Conv."""
    output = node.outputs[0] if node.outputs else None
    shape = None if output is None else output.shape
    if not shape:
        return None
    rows = 1
    for size in shape[2:] if node.op_type in CONVOLUTIONS else shape[:-1]:
        if not isinstance(size, int):
            return None
        rows *= size
    return rows


def _is_symmetric(node: Node, weight: Tensor) -> bool:
    """Whether onnxruntime computes a convolution without a product of matrices: core/mlas/lib/convsym.cpp."""
    if node.op_type not in ("QLinearConv", "Conv") or weight.dtype != TensorProto.INT8 or len(weight.shape) < 3:
        return False
    group = node.attribute("group", 1)
    if group > 1:
        return group == weight.shape[0] and weight.shape[1] == 1
    return weight.shape[0] % 4 == 0 and weight.shape[1] % 4 == 0


def _is_dequantized(value: Value | None) -> bool:
    return value is not None and value.producer is not None and value.producer.op_type == "DequantizeLinear"


def _code_type(value: Value | None) -> int | None:
    """Return the element type of codes without a zero point: that of the node that made them."""
    if value is None or value.producer is None:
        return None if value is None else value.dtype
    maker = value.producer
    if maker.op_type == "QuantizeLinear" and (zero := maker.input(2)) is not None:
        return dtype_of(zero)
    if maker.op_type in ("QuantizeLinear", "DynamicQuantizeLinear"):
        return int(maker.attribute("output_dtype", 0)) or int(TensorProto.UINT8)
    return value.dtype
