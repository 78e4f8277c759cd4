"""Hazards by version of onnxruntime: which rows apply to a model, where, and which version it needs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from decoders import HEAD, KV_HEADS, genai_decoder
from numpy._core._multiarray_umath import __cpu_features__ as features
from onnx import TensorProto, helper, numpy_helper

from onnxq.hazards import find_hazards, least_onnxruntime, load_hazards, processor
from onnxq.hazards.finders import FINDERS
from onnxq.hazards.processor import local_processor, this_processor
from onnxq.hazards.table import first_version, version_of
from onnxq.ir import encode_proto, infer_types, parse
from onnxq.ir.opset import MAX_IR, MAX_OPSET
from onnxq.lowering.coded_caches import code_caches
from tests.helpers import ALL, NONE, build, floats, node, quantize_in_memory, run

AMX = frozenset({"x86-64", "vnni", "amx"})
VNNI = frozenset({"x86-64", "vnni"})
AVX2 = frozenset({"x86-64"})
INT8 = frozenset({"x86-64", "vnni", "avx-vnni-int8"})
ARM = frozenset({"arm64"})
WASM = frozenset({"wasm"})
Shape = tuple[int | str, ...]


def model(
    nodes: list[onnx.NodeProto],
    weights: dict[str, np.ndarray | onnx.TensorProto],
    shape: Shape = (64, 64),
    kind: int = TensorProto.FLOAT,
    opset: int = 21,
) -> onnx.ModelProto:
    """A model with operators of com.microsoft, which the checker does not know."""
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", 0 if kind != TensorProto.FLOAT else kind, None)],
        [w if isinstance(w, onnx.TensorProto) else numpy_helper.from_array(w, n) for n, w in weights.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=10 if opset > 18 else 8)


def found(made: onnx.ModelProto, version: str, processor: frozenset[str]) -> set[str]:
    """The rows that apply to a version on a processor."""
    read = parse(made.SerializeToString())
    infer_types(read)
    return {finding.hazard.id for finding in find_hazards(read, version, processor) if finding.here}


def nbits(
    bits: int = 4, block: int = 32, level: int = 4, zero: str = "none", *, g_idx: bool = False
) -> onnx.ModelProto:
    inner, columns = 1024, 64
    blocks = inner // block
    weights: dict[str, np.ndarray | onnx.TensorProto] = {
        "w": np.zeros((columns, blocks, block * bits // 8), np.uint8),
        "s": np.ones((columns, blocks), np.float32),
        "z": np.zeros((columns, blocks * bits // 8 or 1), np.uint8 if zero == "uint8" else np.float32),
        "g": (np.arange(inner) // block).astype(np.int32),
    }
    reads = f"x w s {'-' if zero == 'none' else 'z'} {'g' if g_idx else '-'}"
    attributes = {"K": inner, "N": columns, "bits": bits, "block_size": block, "accuracy_level": level}
    made = node("MatMulNBits", reads, "y", name="nbits", domain="com.microsoft", **attributes)
    return model([made], {name: w for name, w in weights.items() if name in reads.split()}, (1, inner))


def late(name: str, how: str, bits: int = 4, level: int = 4) -> onnx.ModelProto:
    """A MatMulNBits whose scales `s`, zero points `z` or codes `w` are no constants when the model is loaded."""
    made = nbits(bits, level=level, zero="uint8")
    random = np.random.default_rng(0)
    held = {each.name: numpy_helper.to_array(each) for each in made.graph.initializer}
    held["s"] = (0.01 + 0.1 * random.random(held["s"].shape)).astype(np.float16).astype(np.float32)
    held |= {each: random.integers(0, 256, held[each].shape).astype(np.uint8) for each in "wz"}
    moved = held.pop(name)
    kind = helper.np_dtype_to_tensor_dtype(moved.dtype)
    if how == "folded":
        held["narrow"] = moved.astype(np.float16) if name == "s" else moved
        made.graph.node.insert(0, node("Cast", "narrow", name, to=kind))
    elif how == "constant":
        made.graph.node.insert(0, node("Constant", "", name, value=numpy_helper.from_array(moved)))
    elif how == "doubled":  # of the input: not known before a run
        shape = np.array(moved.shape, np.int64)
        held |= {"zero": np.array([0], np.int64), "one": np.array([1], np.int64), "all": shape, "half": moved / 2}
        nodes = [node("Slice", "x zero one one", "column"), node("Mul", "column zeroed", "nothing")]
        held["zeroed"] = np.array(0, np.float32)
        nodes += [node("Add", "half nothing", "sum"), node("Add", "sum half", name)]
        for place, each in enumerate(nodes):
            made.graph.node.insert(place, each)
    else:
        made.graph.input.append(helper.make_tensor_value_info(name, kind, moved.shape))
        held |= {name: moved} if how == "overridable" else {}
    del made.graph.initializer[:]
    made.graph.initializer.extend(numpy_helper.from_array(array, each) for each, array in held.items())
    return made


def lookup(bits: int) -> onnx.ModelProto:
    weights: dict[str, np.ndarray | onnx.TensorProto] = {
        "w": np.zeros((50, 2, 32 * bits // 8), np.uint8),
        "s": np.ones((50, 2, 1), np.float32),
    }
    attributes = {"bits": bits, "block_size": 32, "gather_axis": 0, "quantize_axis": 2}
    made = node("GatherBlockQuantized", "w x s", "y", name="rows", domain="com.microsoft", **attributes)
    return model([made], weights, (1, 5), kind=TensorProto.INT64)


def codes(kind: int, shape: tuple[int, ...]) -> onnx.TensorProto:
    signed = kind in (TensorProto.INT8, TensorProto.INT4)
    low, high = {8: (-127, 128), 4: (-7, 8)}[8 if kind in (TensorProto.INT8, TensorProto.UINT8) else 4]
    drawn = np.random.default_rng(0).integers(low, high, shape) + (0 if signed else -low)
    return helper.make_tensor("w", kind, shape, drawn.flatten().tolist())


def weight_only(
    kind: int = TensorProto.INT8,
    block: int = 0,
    operator: str = "MatMul",
    *,
    axis: int | None = None,
    inner: int = 64,
    transposed: bool = False,
    zero: bool = False,
    readers: int = 1,
    scalar: bool = False,
    bias: tuple[int, ...] | None = None,
    opset: int = 21,
    **attributes: Any,
) -> onnx.ModelProto:
    """A product whose weight is dequantized, of 64 columns."""
    turned = transposed or attributes.get("transB", 0)
    shape = (64, inner) if turned else (inner, 64)
    axis = (0 if block else 1 - bool(turned)) if axis is None else axis
    if block:
        scales = np.ones((shape[0] // block, shape[1]) if axis == 0 else (shape[0], shape[1] // block), np.float32)
    else:
        scales = np.full(() if scalar else shape[axis], 0.01, np.float32)
    settings = {"axis": axis, **({"block_size": block} if block else {})}
    nodes = [node("DequantizeLinear", "w s z" if zero else "w s", "d", **({} if scalar else settings))]
    weights: dict[str, np.ndarray | onnx.TensorProto] = {"w": codes(kind, shape), "s": scales}
    if zero:
        weights["z"] = helper.make_tensor("z", kind, scales.shape, [0] * scales.size)
    if transposed:
        nodes.append(node("Transpose", "d", "t", perm=[1, 0]))
    if bias is not None:
        weights["b"] = floats(*bias)
    reads = f"x {'t' if transposed else 'd'}{'' if bias is None else ' b'}"
    nodes.append(node(operator, reads, "y", name="product", **attributes))
    nodes += [node("MatMul", "x d", f"y{i}") for i in range(1, readers)]
    made = model(nodes, weights, (8, inner), opset=opset)
    made.graph.output.extend(helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, None) for i in range(1, readers))
    return made


def integer(
    operator: str = "MatMulInteger",
    data: type = np.uint8,
    weight: type = np.int8,
    columns: int = 64,
    rows: int | str = 64,
    channels: int = 64,
) -> onnx.ModelProto:
    """An operator on codes with a constant weight."""
    one = {name: np.array(0.1, np.float32) for name in ("a", "b", "c")}
    convolution = operator in ("QLinearConv", "ConvInteger")
    matrix = np.ones((columns, channels, 3, 3) if convolution else (channels, columns), weight)
    zeros = {"xz": np.array(0, data), "wz": np.array(0, weight), "yz": np.array(0, data)}
    reads = "x a xz w b wz c yz" if operator.startswith("QLinear") else "x w xz wz"
    kind = TensorProto.INT8 if data is np.int8 else TensorProto.UINT8
    shape = (1, channels, rows, rows) if convolution else (rows, channels)
    held = {"w": matrix, **zeros, **one}
    made = node(operator, reads, "y", name="product", **({"pads": [1, 1, 1, 1]} if convolution else {}))
    return model([made], {n: w for n, w in held.items() if n in reads.split()}, shape, kind)


def paired(weight: type = np.uint8) -> onnx.ModelProto:
    """A MatMul between Q/DQ pairs."""
    nodes = [
        node("QuantizeLinear", "x a z", "q"),
        node("DequantizeLinear", "q a z", "d"),
        node("DequantizeLinear", "w a v", "e"),
        node("MatMul", "d e", "y", name="product"),
    ]
    held = {"a": np.array(0.1, np.float32), "z": np.array(128, np.uint8), "v": np.array(0, weight)}
    return model(nodes, {**held, "w": np.ones((64, 64), weight)})


# id → (a model that has it, version, processor), and the same that has not, but for one thing
def with_coded_caches() -> onnx.ModelProto:
    scales = {f"present.0.{part}": np.full((1, KV_HEADS, 1, HEAD), 0.1, np.float32) for part in ("key", "value")}
    return onnx.load_from_string(code_caches(parse(encode_proto(genai_decoder(1))), scales).serialize())


CASES: dict[str, list[tuple[onnx.ModelProto, str, frozenset[str], bool]]] = {
    "weight-only-input-8-bit": [
        (weight_only(), "1.32.0", AVX2, True),
        (weight_only(scalar=True), "1.25.1", ARM, True),
        (weight_only(TensorProto.UINT4, 32, zero=True), "1.32.0", AVX2, True),
        (weight_only(operator="Gemm", bias=(64,)), "1.32.0", AVX2, True),
        (weight_only(transposed=True, zero=True), "1.32.0", AVX2, True),
        (weight_only(), "1.24.4", AVX2, False),
        (weight_only(operator="Gemm", transB=1), "1.32.0", AVX2, False),
        (weight_only(operator="Gemm", alpha=2.0), "1.32.0", AVX2, False),
        (weight_only(operator="Gemm", bias=(1, 64)), "1.32.0", AVX2, False),
        (weight_only(axis=0), "1.32.0", AVX2, False),
        (weight_only(block=8), "1.32.0", AVX2, False),
        (weight_only(readers=2), "1.32.0", AVX2, False),
        (paired(np.int8), "1.32.0", AVX2, False),
    ],
    "weight-only-input-8-bit-transposed": [
        (weight_only(transposed=True), "1.32.0", AVX2, True),
        (weight_only(transposed=True), "1.27.0", AVX2, False),
        (weight_only(transposed=True, opset=17), "1.32.0", AVX2, False),
    ],
    "weight-only-input-8-bit-shared": [
        (weight_only(readers=2), "1.26.0", AVX2, True),
        (weight_only(readers=2), "1.27.0", AVX2, False),
        (weight_only(), "1.26.0", AVX2, False),
    ],
    "weight-only-blocks-4-bit": [
        (weight_only(TensorProto.INT4, 32), "1.24.4", AVX2, True),
        (weight_only(TensorProto.INT4), "1.24.4", AVX2, False),
        (weight_only(block=32), "1.24.4", AVX2, False),
        (weight_only(TensorProto.INT4, 32, "Gemm"), "1.24.4", AVX2, False),
    ],
    "weight-only-blocks-512-4-bit": [
        (weight_only(TensorProto.INT4, 512, inner=1024), "1.22.1", AVX2, True),
        (weight_only(TensorProto.INT4, 256, inner=1024), "1.22.1", AVX2, False),
    ],
    "weight-only-blocks-512": [
        (weight_only(block=512, inner=1024), "1.26.0", AVX2, True),
        (weight_only(block=512, inner=1024), "1.24.4", AVX2, False),
        (weight_only(block=256, inner=1024), "1.26.0", AVX2, False),
    ],
    "weight-only-blocks-512-refused": [
        (weight_only(block=512, inner=1024), "1.28.0", AVX2, True),
        (weight_only(block=512, inner=1024), "1.30.0", AVX2, False),
        (weight_only(block=256, inner=1024), "1.28.0", AVX2, False),
    ],
    "transposed-weight-wrong": [
        (weight_only(transposed=True, scalar=True), "1.26.0", AVX2, True),
        (weight_only(transposed=True, scalar=True, zero=True), "1.26.0", AVX2, False),
        (weight_only(transposed=True, scalar=True), "1.32.0", AVX2, False),
    ],
    "transposed-weight-refused-1-27": [
        (weight_only(transposed=True, scalar=True), "1.27.0", AVX2, True),
        (weight_only(transposed=True), "1.27.0", AVX2, False),
    ],
    "transposed-weight-refused": [
        (weight_only(transposed=True), "1.24.4", AVX2, True),
        (weight_only(), "1.24.4", AVX2, False),
    ],
    "nbits-8-unknown": [(nbits(8), "1.21.1", AVX2, True), (nbits(4), "1.21.1", AVX2, False)],
    "lookup-8-unknown": [
        (lookup(8), "1.22.1", AVX2, True),
        (lookup(8), "1.23.2", AVX2, False),
        (lookup(4), "1.22.1", AVX2, False),
    ],
    "nbits-8-arm64-unknown": [(nbits(8), "1.22.1", ARM, True), (nbits(8), "1.22.1", AVX2, False)],
    "nbits-8-level-unknown": [(nbits(8, level=1), "1.22.1", AVX2, True), (nbits(8), "1.22.1", AVX2, False)],
    "nbits-2-unknown": [(nbits(2), "1.23.2", AVX2, True), (nbits(2), "1.24.4", AVX2, False)],
    "nbits-2-slow": [(nbits(2), "1.27.0", AVX2, True), (nbits(2), "1.28.0", AVX2, False)],
    "nbits-level": [
        (nbits(8, level=0), "1.32.0", AVX2, True),
        (nbits(2, level=1), "1.32.0", AVX2, True),
        (nbits(4, level=0), "1.32.0", AVX2, False),
        (nbits(8), "1.32.0", AVX2, False),
    ],
    "nbits-4-float-zero-points": [
        (nbits(zero="float"), "1.32.0", AVX2, True),
        (nbits(zero="uint8"), "1.32.0", AVX2, False),
    ],
    "nbits-4-g-idx": [(nbits(g_idx=True), "1.32.0", AVX2, True), (nbits(), "1.32.0", AVX2, False)],
    "nbits-8-float-zero-points": [
        (nbits(8, zero="float"), "1.32.0", AVX2, True),
        (nbits(8, zero="uint8"), "1.32.0", AVX2, False),
    ],
    "nbits-8-g-idx": [(nbits(8, g_idx=True), "1.32.0", AVX2, True), (nbits(8), "1.32.0", AVX2, False)],
    "nbits-2-float-zero-points-unknown": [
        (nbits(2, zero="float"), "1.26.0", AVX2, True),
        (nbits(2, zero="float"), "1.32.0", AVX2, False),
    ],
    "nbits-2-g-idx-unknown": [
        (nbits(2, g_idx=True), "1.26.0", AVX2, True),
        (nbits(2, g_idx=True), "1.32.0", AVX2, False),
    ],
    "nbits-2-g-idx": [(nbits(2, g_idx=True), "1.32.0", AVX2, True), (nbits(2), "1.32.0", AVX2, False)],
    "nbits-blocks-512": [(nbits(block=512), "1.26.0", AVX2, True), (nbits(block=256), "1.26.0", AVX2, False)],
    "nbits-blocks-512-refused": [
        (nbits(block=512), "1.31.1", AVX2, True),
        (nbits(block=512), "1.32.0", AVX2, False),
    ],
    "nbits-2-blocks-512": [(nbits(2, 512), "1.32.0", AVX2, True), (nbits(4, 512), "1.32.0", AVX2, False)],
    "nbits-8-computed-parameters": [
        (late("z", "overridable", 8), "1.22.1", ARM, True),
        (late("z", "overridable"), "1.22.1", ARM, False),
    ],
    "nbits-4-computed-parameters": [
        (late("s", "input"), "1.32.0", AVX2, True),
        (late("s", "input"), "1.32.0", ARM, False),
        (late("s", "doubled"), "1.32.0", AVX2, True),
        (late("s", "input", level=0), "1.32.0", AVX2, False),
        (late("w", "input"), "1.32.0", AVX2, False),
        (late("s", "folded"), "1.32.0", AVX2, False),
        (late("s", "constant"), "1.32.0", AVX2, False),
    ],
    "nbits-2-computed-parameters": [
        (late("s", "input", 2), "1.32.0", AVX2, True),
        (late("s", "input", 2), "1.24.4", AVX2, False),
    ],
    "nbits-8-folded-parameters": [
        (late("s", "folded", 8), "1.32.0", ARM, True),
        (late("s", "folded", 8, level=0), "1.32.0", ARM, False),
    ],
    "nbits-4-folded-parameters": [
        (late("s", "folded"), "1.32.0", AVX2, True),
        (late("z", "folded"), "1.20.1", AVX2, True),
        (late("s", "constant"), "1.32.0", AVX2, False),
        (late("w", "folded"), "1.32.0", AVX2, False),
        (late("s", "folded", level=1), "1.32.0", AVX2, False),
        (nbits(), "1.32.0", AVX2, False),
    ],
    "nbits-2-folded-parameters": [
        (late("s", "folded", 2), "1.28.0", AVX2, True),
        (late("s", "folded", 2), "1.24.4", AVX2, False),
    ],
    "nbits-wasm": [(nbits(), "1.30.0", WASM, True), (nbits(), "1.30.0", AVX2, False)],
    "unsigned-weights-vnni": [
        (integer(weight=np.uint8), "1.32.0", VNNI, True),
        (paired(np.uint8), "1.32.0", VNNI, True),
        (integer(), "1.32.0", VNNI, False),
        (integer(weight=np.uint8), "1.24.4", VNNI, False),
        (integer(weight=np.uint8), "1.32.0", AVX2, False),
        (integer("ConvInteger", weight=np.uint8), "1.32.0", VNNI, False),
    ],
    "unsigned-weights-amx": [
        (integer("QLinearConv", weight=np.uint8), "1.32.0", AMX, True),
        (integer("QLinearConv"), "1.32.0", AMX, False),
    ],
    "signed-activations-x86": [
        (integer("QLinearMatMul", data=np.int8), "1.32.0", AVX2, True),
        (integer("MatMulInteger", data=np.int8), "1.32.0", AMX, True),
        (integer("QLinearMatMul"), "1.32.0", AVX2, False),
        (integer("QLinearMatMul", data=np.int8), "1.32.0", INT8, False),
        (integer("QLinearMatMul", data=np.int8), "1.32.0", ARM, False),
        (paired(np.int8), "1.32.0", AVX2, False),
    ],
    "signed-activations-wasm": [
        (integer("MatMulInteger", data=np.int8), "1.30.0", WASM, True),
        (integer("MatMulInteger"), "1.30.0", WASM, False),
    ],
    "conv-integer-signed-weights": [
        (integer("ConvInteger"), "1.32.0", AVX2, True),
        (integer("ConvInteger", weight=np.uint8), "1.32.0", AVX2, False),
    ],
    "coded-caches": [
        (with_coded_caches(), "1.26.0", AMX, True),
        (with_coded_caches(), "1.27.0", AMX, False),
        (genai_decoder(1), "1.26.0", AMX, False),
    ],
    "amx-17-to-31-columns": [
        (integer(columns=24), "1.24.4", AMX, True),
        (integer(columns=24, rows="n"), "1.21.1", AMX, True),
        (integer("QLinearConv", columns=18), "1.24.4", AMX, True),
        (integer(columns=24, rows=31), "1.24.4", AMX, False),
        (integer(columns=32), "1.24.4", AMX, False),
        (integer(columns=24), "1.25.0", AMX, False),
        (integer(columns=24), "1.24.4", VNNI, False),
        (integer("QLinearConv", columns=20), "1.24.4", AMX, False),  # a kernel of its own
    ],
    "avx-vnni-int8-wrong": [
        (integer(weight=np.uint8), "1.24.4", INT8, True),
        (integer(), "1.24.4", INT8, False),
        (integer(weight=np.uint8, rows=4), "1.24.4", INT8, False),
        (integer(weight=np.uint8), "1.24.4", VNNI, False),
    ],
}


@pytest.mark.parametrize(
    ("name", "made", "version", "processor", "expected"),
    [(name, *case) for name, cases in CASES.items() for case in cases],
)
def test_a_row_applies_to_what_it_is_about_and_to_nothing_else(
    name: str, made: onnx.ModelProto, version: str, processor: frozenset[str], expected: bool
) -> None:
    assert (name in found(made, version, processor)) is expected


def test_every_row_is_tested_both_ways() -> None:
    assert set(CASES) == {row.id for row in load_hazards()}
    assert all({case[3] for case in cases} == {True, False} for cases in CASES.values())


@pytest.mark.parametrize("row", load_hazards(), ids=lambda row: row.id)
def test_rows_are_complete(row: Any) -> None:
    assert row.finder in FINDERS
    assert row.effect in ("wrong", "refused", "accuracy", "speed", "unoptimized")
    assert row.source.startswith("https://github.com/microsoft/onnxruntime/")
    assert row.measured
    assert row.remedy.endswith(".")
    assert not row.sentence.endswith(".")
    assert not row.since or not row.until or version_of(row.since) <= version_of(row.until)
    known = {"x86-64", "amx", "vnni", "avx-vnni-int8", "arm64", "wasm"}
    assert known.issuperset((*row.processors, *row.unless))


def test_rows_have_names_of_their_own() -> None:
    names = [row.id for row in load_hazards()]
    assert len(set(names)) == len(names)


FORMS = [
    weight_only(),
    weight_only(scalar=True),
    weight_only(TensorProto.UINT8, zero=True),
    weight_only(TensorProto.INT4),
    weight_only(TensorProto.UINT4, 32, zero=True),
    weight_only(block=32),
    weight_only(block=8),
    weight_only(axis=0),
    weight_only(block=16, axis=1),
    weight_only(readers=2),
    weight_only(transposed=True),
    weight_only(transposed=True, zero=True),
    weight_only(transposed=True, scalar=True, zero=True),
    *(weight_only(operator="Gemm", bias=bias) for bias in (None, (64,), (1, 64), (1,))),
    *(weight_only(operator="Gemm", transB=1, bias=bias) for bias in (None, (64,))),
    weight_only(operator="Gemm", alpha=2.0),
    weight_only(operator="Gemm", bias=(64,), beta=0.5),
    weight_only(transposed=True, opset=17),
    weight_only(transposed=True, opset=17, zero=True),
    weight_only(opset=13),
]
ROUNDED = {"weight-only-input-8-bit", "weight-only-input-8-bit-transposed"}


def sqnr(exact: np.ndarray, other: np.ndarray) -> float:
    noise = float(np.square(exact.astype(np.float64) - other).sum())
    return float("inf") if noise == 0 else 10 * float(np.log10(np.square(exact.astype(np.float64)).sum() / noise))


def output(made: onnx.ModelProto, level: int | None = None, *, optimised: bool = True) -> np.ndarray:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if level is not None:
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", str(level))
    prepared = ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    shape = prepared.get_inputs()[0].shape
    return np.asarray(prepared.run(None, {"x": floats(*shape, seed=3)})[0])


@pytest.mark.parametrize("made", FORMS, ids=range(len(FORMS)))
def test_onnxruntime_rounds_inputs_of_those_very_products_and_the_remedy_repairs_them(made: onnx.ModelProto) -> None:
    """A differential test against the onnxruntime that is installed, 1.28 or newer.

    It has no such kernel for x86-64 without AVX2 and Arm without dot products, and computes in float there.
    """
    rounds = bool(features.get("AVX2") or features.get("ASIMDDP"))
    flagged = bool(ROUNDED & found(made, "1.32.0", AVX2))
    exact = output(made, optimised=False)
    assert (sqnr(exact, output(made)) < 60) is (flagged and rounds)
    assert sqnr(exact, output(made, 1)) > 100


LATE = [
    (late(name, how, bits), bits, name)
    for bits in (2, 4, 8)
    for name, how in (("s", "folded"), ("z", "folded"), ("s", "constant"), ("w", "folded"), ("s", "doubled"))
]
COMPUTED = {f"nbits-{bits}-computed-parameters" for bits in (2, 4, 8)}
FOLDED = {f"nbits-{bits}-folded-parameters" for bits in (2, 4, 8)}


@pytest.mark.parametrize(("made", "bits", "name"), LATE, ids=range(len(LATE)))
def test_onnxruntime_needs_parameters_before_a_run_where_codes_are_packed(
    made: onnx.ModelProto, bits: int, name: str
) -> None:
    """A differential test against the onnxruntime that is installed, 1.28 or newer.

    Processors without AVX2, or Arm without dot products, have no kernel that packs codes with their scales: they are
    right always, and so is Arm with 4 bits. AVX2 without AVX-512 reads zero points of 4 bits in a run.
    """
    rows = found(made, "1.32.0", AVX2)
    precise = onnx.ModelProto()
    precise.CopyFrom(made)
    product = next(each for each in precise.graph.node if each.op_type == "MatMulNBits")
    next(each for each in product.attribute if each.name == "accuracy_level").i = 1
    exact = output(precise)
    packs = bool(features.get("AVX2")) or (bool(features.get("ASIMDDP")) and bits != 4)
    for optimised, wrong in ((True, COMPUTED), (False, COMPUTED | FOLDED)):
        with np.errstate(all="ignore"):
            ratio = sqnr(exact, output(made, optimised=optimised))
        wrong_here = not ratio > 30
        assert rows & wrong or not wrong_here, (bits, name, optimised, ratio)
        assert wrong_here or not (packs and rows & wrong) or (bits, name) == (4, "z"), (bits, name, optimised, ratio)
    assert (sqnr(exact, output(precise, optimised=False))) > 100


def test_cast_mul_is_immune() -> None:
    proto = build([node("MatMul", "x w", "y")], {"x": ["n", 64]}, weights={"w": floats(64, 64)})
    made = quantize_in_memory(proto, "weight-int8", form="cast-mul")
    assert find_hazards(parse(made.data), "1.32.0", AVX2) == ()
    exact, optimised = (run(made.data, {"x": floats(8, 64)}, level)[0] for level in (NONE, ALL))
    assert sqnr(exact, optimised) > 100


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (nbits(8), {"x86-64": "1.22", "arm64": "1.23"}),
        (nbits(8, level=1), {"x86-64": "1.23", "arm64": "1.23"}),
        (nbits(2), {"x86-64": "1.24", "arm64": "1.24"}),
        (nbits(4), {"x86-64": "1.18", "arm64": "1.18"}),  # operator set 21
        (nbits(block=512), {"x86-64": "1.32", "arm64": "1.32"}),
        (lookup(8), {"x86-64": "1.23", "arm64": "1.23"}),
        (nbits(2, g_idx=True), {}),  # wrong in all that are known
        (late("s", "input"), {"arm64": "1.18"}),
        (late("s", "input", 8), {}),
        (late("s", "folded"), {"x86-64": "1.18", "arm64": "1.18"}),  # right unless optimizations are turned off
        (weight_only(block=512, inner=1024), {"x86-64": "1.30", "arm64": "1.30"}),
        (integer(columns=24), {"x86-64": "1.18", "arm64": "1.18"}),  # hazards of some processors do not count
    ],
)
def test_the_least_version(made: onnx.ModelProto, expected: dict[str, str]) -> None:
    assert least_onnxruntime(parse(made.SerializeToString())) == expected


def test_operator_sets_and_ir_versions_are_known_as_far_as_onnxq_writes_them() -> None:
    assert all(first_version("opsets", number) for number in range(7, MAX_OPSET + 1))
    assert all(first_version("ir_versions", number) for number in range(3, MAX_IR + 1))
    assert first_version("opsets", 99) == ""


def test_what_is_here_comes_first() -> None:
    read = parse(nbits(8, level=0).SerializeToString())
    here = [finding.here for finding in find_hazards(read, "1.32.0", AVX2)]
    assert here == sorted(here, reverse=True)
    assert set(here) == {True, False}


def test_the_processor_is_read_from_linux(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nflags\t\t: ssse3 avx2 avx512_vnni amx_int8\n")
    assert local_processor(info, "x86_64") == AMX
    info.write_text("processor\t: 0\nflags\t\t: ssse3 avx2 avx_vnni avx_vnni_int8\n")
    assert local_processor(info, "AMD64") == INT8
    info.write_text("processor\t: 0\nflags\t\t: ssse3 avx2\n")
    assert local_processor(info, "x86_64") == AVX2
    assert local_processor(tmp_path / "nowhere", "x86_64") == AVX2
    assert local_processor(info, "aarch64") == ARM
    assert local_processor(info, "riscv64") == frozenset()


@pytest.mark.parametrize(("saturates", "expected"), [(True, AVX2), (False, AMX)])
def test_a_processor_whose_products_saturate_has_no_vnni_for_onnxruntime(
    monkeypatch: pytest.MonkeyPatch, saturates: bool, expected: frozenset[str]
) -> None:
    """As under a virtual machine that hides it."""
    monkeypatch.setattr(processor, "local_processor", lambda: AMX)
    monkeypatch.setattr(processor, "host_saturates", lambda: saturates)
    this_processor.cache_clear()
    try:
        assert this_processor() == expected
    finally:
        this_processor.cache_clear()


def test_a_scope_is_written_for_people() -> None:
    rows = {row.id: row for row in load_hazards()}
    assert rows["amx-17-to-31-columns"].scope == "onnxruntime 1.21 to 1.24 on x86-64 with AMX"
    assert rows["weight-only-input-8-bit"].scope == "onnxruntime 1.25 and newer"
    assert rows["nbits-8-unknown"].scope == "onnxruntime 1.21 and older"
    assert rows["nbits-4-g-idx"].scope == "onnxruntime"
    assert rows["conv-integer-signed-weights"].scope == "onnxruntime on x86-64 and WebAssembly"
    assert dataclasses.replace(rows["nbits-8-unknown"], since="1.21").scope == "onnxruntime 1.21"


def test_scales_behind_a_long_chain_of_constants() -> None:
    """Each sum reads the one before twice: 2 ** 2000 ways lead back to what is stored."""
    made = nbits()
    (scales,) = (each for each in made.graph.initializer if each.name == "s")
    scales.name = "s0"
    for place in range(2000):
        made.graph.node.insert(place, node("Add", f"s{place} s{place}", "s" if place == 1999 else f"s{place + 1}"))
    found = list(FINDERS["matmulnbits"](parse(made.SerializeToString())))
    assert [facts["parameters"] for _, facts in found] == ["folded"]
