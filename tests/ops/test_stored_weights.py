"""Weights of 8 and 4 bit with scales by block: DequantizeLinear, Cast and Mul, or MatMulNBits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import ALL, build, floats, node, quantize_in_memory, recipe_of, run
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from onnxq import evaluate
from onnxq.explanation.inspect import inspect
from onnxq.ops.forms.block_codes import BlockCodes, pack_bits
from onnxq.ops.forms.scheme import Scheme
from onnxq.ops.forms.stored_weights import pack
from onnxq.ops.quantized.contrib_nbits import unpack_bits
from onnxq.pipeline.quantize import quantize
from onnxq.planning.recipe import parse_recipe
from onnxq.verification.compare import check_wellformed, compare

ROOT = Path(__file__).parents[2]
ARENA = ROOT / "../shared/arena"
FLOOR = {8: 40, 4: 17, 2: 3}
TWELVE = 'scheme = "weight-int12"\nbias_correction = false\n'


def product(kind: str, inner: int, columns: int = 32, opset: int = 17) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A product by a constant `[inner, columns]`, in one of the ways to write it, and what to feed it."""
    w, b = floats(inner, columns, scale=0.3), floats(columns, seed=1)
    nodes, weights, shape = {
        "MatMul": ([node("MatMul", "x w", "y")], {"w": w}, [2, 3, inner]),
        "weight on the left": ([node("MatMul", "w x", "y")], {"w": np.ascontiguousarray(w.T)}, [inner, 4]),
        "stack": ([node("MatMul", "x w", "y")], {"w": np.stack([w, 2 * w])}, [2, 3, inner]),
        "Gemm": ([node("Gemm", "x w b", "y", alpha=-0.5, beta=2.0)], {"w": w, "b": b}, [4, inner]),
        "Gemm, both transposed": (
            [node("Gemm", "x w b", "y", transA=1, transB=1)],
            {"w": np.ascontiguousarray(w.T), "b": b},
            [inner, 4],
        ),
    }[kind]
    return build(nodes, {"x": shape}, ["y"], weights, opset), {"x": floats(*shape, seed=2)}


KINDS = ["MatMul", "weight on the left", "stack", "Gemm", "Gemm, both transposed"]


# 48 is no multiple of 32, 33 makes an odd number of rows, 33 and 80 an odd number of blocks of 32 and 16.
@pytest.mark.parametrize(("inner", "block_size"), [(64, 32), (48, 32), (33, 32), (80, 16)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["cast-mul", "qdq", "matmulnbits"])
@pytest.mark.parametrize(("bits", "zeros"), [(8, False), (4, False), (8, True), (4, True), (2, True)])
def test_products_by_blocks(form, bits, zeros, block_size, kind, inner):
    source, feeds = product(kind, inner)
    changes = {"form": form, "block_size": block_size, "zero_points": zeros}
    made = quantize_in_memory(source, f"weight-int{bits}", (), **changes)
    if bits == 2 and form != "matmulnbits":
        assert made.decision("n_y").reason == "weights of 2 bit are written as MatMulNBits only"
        return
    if form == "matmulnbits" and kind in ("weight on the left", "stack"):
        assert made.decision("n_y").reason == "MatMulNBits multiplies by a matrix on the right only"
        return
    proto = made.proto
    operator = {"qdq": "DequantizeLinear", "cast-mul": "Cast", "matmulnbits": "MatMulNBits"}[form]
    assert made.ops[operator] == (2 if form == "cast-mul" and zeros else 1)
    assert {one.domain: one.version for one in proto.opset_import} == (
        {"": 17, "com.microsoft": 1} if form == "matmulnbits" else {"": 17 if bits == 8 and form == "cast-mul" else 21}
    )
    assert min(made.sqnr(feeds), made.sqnr(feeds, ALL)) > FLOOR[bits]
    np.testing.assert_allclose(evaluate(proto, feeds)["y"], made.run(feeds)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", ["cast-mul", "qdq", "matmulnbits"])
@pytest.mark.parametrize("kind", ["MatMul", "Gemm", "Gemm, both transposed"])
@pytest.mark.parametrize(("bits", "zeros"), [(8, False), (4, False), (8, True), (4, True)])
def test_all_forms_hold_the_same_weight(bits, zeros, form, kind):
    source, feeds = product(kind, 80)
    changes = {"block_size": 32, "zero_points": zeros}
    reference = quantize_in_memory(source, f"weight-int{bits}", (), form="cast-mul", **changes)
    made = quantize_in_memory(source, f"weight-int{bits}", (), form=form, **changes)
    np.testing.assert_allclose(made.run(feeds)[0], reference.run(feeds)[0], rtol=1e-5, atol=1e-5)


def test_what_a_file_holds():
    source, _ = product("MatMul", 80)
    for bits, code_bytes in ((8, 96 * 32), (4, 96 * 32 // 2)):
        made = quantize_in_memory(source, f"weight-int{bits}", (), form="matmulnbits", block_size=32, accuracy_level=4)
        (multiply,) = made.proto.graph.node
        values = {one.name: onnx.helper.get_attribute_value(one) for one in multiply.attribute}
        assert values == {"K": 80, "N": 32, "bits": bits, "block_size": 32, "accuracy_level": 4}
        packed, scales, *zeros = (made.weights[name] for name in multiply.input[1:])
        assert [zero.shape for zero in zeros] == ([(32, 2)] if bits == 4 else [])  # the recipe has zero points
        assert (packed.nbytes, packed.shape[:2], scales.shape) == (code_bytes, (32, 3), (32, 3))
        stored = quantize_in_memory(source, f"weight-int{bits}", (), form="qdq", block_size=32).proto.graph
        (codes,) = (one for one in stored.initializer if one.name.endswith("_quantized"))
        assert codes.data_type == (onnx.TensorProto.INT8 if bits == 8 else onnx.TensorProto.UINT4)
        assert len(codes.raw_data) == 80 * 32 * bits // 8


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from([2, 4, 8]), st.integers(1, 70), st.integers(1, 5), st.sampled_from([16, 32]), st.integers(0, 2**32)
)
def test_packed_codes_read_back(bits, inner, columns, block_size, seed):
    name = {8: "weight-int8", 4: "weight-int4", 2: "weight-int2"}[bits]
    scheme = Scheme(name, block_size=block_size)  # type: ignore[arg-type]
    blocks = -(-inner // block_size)
    random = np.random.default_rng(seed)
    zeros = random.integers(0, 2**bits, (columns, blocks)).astype(np.uint8)
    codes = random.integers(0, 2**bits, (columns, inner)).astype(np.uint8)
    packed = pack(BlockCodes(codes, np.ones((columns, blocks), np.float32), zeros), scheme)
    assert packed.shape == (columns, blocks, block_size * bits // 8)
    read = unpack_bits(packed, bits, block_size).reshape(columns, -1)
    np.testing.assert_array_equal(read[:, :inner], codes)
    np.testing.assert_array_equal(read[:, inner:], np.repeat(zeros, block_size, axis=1)[:, inner:])
    np.testing.assert_array_equal(unpack_bits(pack_bits(zeros, bits), bits, blocks), zeros)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"zero_points": True}, "zero points are of blocks, and the recipe sets no block_size"),
        ({"form": "matmulnbits"}, "MatMulNBits needs a block_size of 16 or more"),
        ({"block_size": 32, "granularity": "tensor"}, "one scale for the whole tensor leaves none for blocks"),
        ({"block_size": 32, "form": "qdq", "domain": "com.microsoft"}, "of com.microsoft has no blocks"),
    ],
)
def test_refusals(changes, reason):
    source, _ = product("MatMul", 64)
    assert reason in quantize_in_memory(source, "weight-int8", (), **changes).decision("n_y").reason


def test_matmulnbits_is_for_products_and_blocks_leave_other_operators_alone():
    weights = {"w": floats(8, 8, 3, 3)}
    source = build([node("Conv", "x w", "y")], {"x": [1, 8, 6, 6]}, ["y"], weights)
    refused = quantize_in_memory(source, "weight-int8", (), form="matmulnbits", block_size=32)
    assert refused.decision("n_y").reason == "MatMulNBits does not compute a Conv"
    made = quantize_in_memory(source, "weight-int8", (), form="qdq", block_size=32)
    assert not any(one.name == "block_size" for n in made.proto.graph.node for one in n.attribute)
    assert made.sqnr({"x": floats(1, 8, 6, 6)}) > 35


def test_samples_choose_better_codes_than_the_weight_alone_does(tmp_path):
    mixing = floats(6, 64, seed=5)
    samples = [{"x": floats(3, 6, seed=seed) @ mixing + floats(3, 64, seed=90 + seed) / 9} for seed in range(60)]
    weights = {"w": floats(64, 48, scale=0.3)}
    source, target = tmp_path / "m.onnx", tmp_path / "q.onnx"
    model = build([node("MatMul", "x w", "y")], {"x": [3, 64]}, ["y"], weights, 21)
    source.write_bytes(model.SerializeToString())
    reached = []
    for rounding in ("nearest", "output-error"):
        recipe = recipe_of("weight-int4", rounding=rounding)
        report = quantize(source, recipe, samples=samples, output=target, force=True)
        assert report.comparison is not None
        reached.append(report.comparison.worst_sqnr)
    assert reached[1] > reached[0] + 3


@pytest.mark.parametrize("model", ["digits_attention", "digits_lstm"])
def test_sample_models_with_4_bit_weights(model, tmp_path):
    target = tmp_path / "q.onnx"
    source = ROOT / f"sample_models/{model}.onnx"
    report = quantize(source, "weight-int4", data=[ROOT / "sample_models/digits_calibration.npz"], output=target)
    assert check_wellformed(target) is None
    assert report.comparison is not None
    assert report.comparison.worst_sqnr > 15
    assert inspect(target).weights.keys() >= {"uint4"}
    assert target.stat().st_size < source.stat().st_size * 0.4


@pytest.mark.skipif(not ARENA.exists(), reason="needs the real models")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("bits", "form", "floor"), [(8, "qdq", 36), (8, "matmulnbits", 36), (4, "qdq", 20), (4, "matmulnbits", 20)]
)
def test_a_language_model_by_blocks(bits, form, floor, tmp_path):
    recipe = parse_recipe(
        f"scheme = 'weight-int{bits}'\nform = '{form}'\nblock_size = 32\naccuracy_level = 4\nrounding = 'nearest'", "r"
    )
    target, data = tmp_path / "q.onnx", ARENA / "data/chargpt_calib.npz"
    report = quantize(ARENA / "models/chargpt.onnx", recipe, data=[data], sample_limit=4, output=target)
    assert check_wellformed(target) is None
    assert report.comparison is not None
    assert report.comparison.worst_sqnr > floor


@pytest.mark.parametrize(
    ("op_type", "shape", "weight", "axes"),
    [
        ("MatMul", (2, 40), (40, 24), (0,)),
        ("Gemm", (2, 40), (40, 24), (0,)),
        ("Conv", (1, 8, 6, 6), (16, 8, 3, 3), (1, 2, 3)),
        ("ConvTranspose", (1, 8, 6, 6), (8, 16, 3, 3), (0, 2, 3)),
    ],
)
def test_codes_of_12_bits_round_to_their_steps(
    tmp_path: Path, op_type: str, shape: tuple[int, ...], weight: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    w = floats(*weight, seed=3)
    (tmp_path / "r.toml").write_text(TWELVE)
    onnx.save(build([node(op_type, "x w", "y")], {"x": list(shape)}, ["y"], {"w": w}, 13), tmp_path / "m.onnx")
    report = quantize(tmp_path / "m.onnx", tmp_path / "r.toml", output=tmp_path / "q.onnx")
    assert [decision.scheme for decision in report.nodes] == ["weight-int12"]
    made = onnx.load(tmp_path / "q.onnx")
    reader = next(each for each in made.graph.node if each.op_type == op_type)
    made.graph.output.append(onnx.helper.make_tensor_value_info(reader.input[1], 1, w.shape))
    stored = run(made.SerializeToString(), {"x": floats(*shape, seed=4)})[-1]
    step = np.abs(w).max(axis=axes, keepdims=True) / 2047
    assert (np.abs(stored - w) <= step * 0.5001).all()
    assert {t.dtype for t in map(numpy_helper.to_array, made.graph.initializer)} >= {np.dtype("int8"), np.dtype("u1")}


def test_an_odd_number_of_elements_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(TWELVE)
    weights = {"w": floats(27, 41), "v": floats(41, 40)}
    nodes = [node("MatMul", "x w", "h"), node("MatMul", "h v", "y")]
    onnx.save(build(nodes, {"x": [2, 27]}, ["y"], weights, 13), tmp_path / "m.onnx")
    report = quantize(tmp_path / "m.onnx", tmp_path / "r.toml", output=tmp_path / "q.onnx")
    first, second = report.nodes
    assert first.scheme is None
    assert "codes of 12 bit have a scale a channel, and come in pairs" in first.reason
    assert second.scheme == "weight-int12"


def test_a_recurrent_layer_takes_12_bits(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(TWELVE)
    weights = {"w": floats(1, 64, 16, seed=1), "r": floats(1, 64, 16, seed=2)}
    model = build([node("LSTM", "x w r", "y", hidden_size=16)], {"x": [4, 1, 16]}, ["y"], weights, 13)
    onnx.save(model, tmp_path / "m.onnx")
    quantize(tmp_path / "m.onnx", tmp_path / "r.toml", output=tmp_path / "q.onnx")
    samples = [{"x": floats(4, 1, 16, seed=9)}]
    assert compare(tmp_path / "m.onnx", tmp_path / "q.onnx", samples, latency=False).worst_sqnr > 60
