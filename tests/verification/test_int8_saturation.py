"""Layers that could saturate, and weights that cannot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxq.ir import load, parse
from onnxq.ir.storage.scratch_file import Spool
from onnxq.ops.forms.saturating_pairs import inner_rows, saturating_pairs
from onnxq.rounding.round_to_nearest import nearest_codes, nearest_rows
from onnxq.verification.int8_saturation import LayerSaturation, read_saturation
from tests.helpers import Quantized, build, floats, node, quantize_in_memory

FULL = {"target": "cpu-vnni"}  # other x86 targets limit pairs of codes, so that nothing saturates at 8 bits


def wide(rows: int, columns: int, seed: int) -> np.ndarray:
    """A weight whose largest elements are neighbours."""
    made = floats(rows, columns, seed=seed, scale=0.05)
    made[0:2] = 1
    return made


def narrow(rows: int, columns: int, seed: int) -> np.ndarray:
    """A weight with one large element in each column, all others small: no neighbours add up to much."""
    made = floats(rows, columns, seed=seed, scale=0.001).clip(-0.004, 0.004)
    made[0] = 1
    return made


def three_layers() -> onnx.ModelProto:
    nodes = [
        node("MatMul", "x a", "h", name="wide"),
        node("Relu", "h", "r"),
        node("MatMul", "r b", "s", name="narrow"),
        node("Gemm", "s c", "y", name="transposed", transB=1),
    ]
    weights = {"a": wide(16, 24, 1), "b": narrow(24, 24, 2), "c": wide(24, 8, 3).T.copy()}
    return build(nodes, {"x": ["n", 16]}, weights=weights)


def conv(group: int = 1) -> onnx.ModelProto:
    weight = floats(8, 8 // group, 3, 3, seed=4)
    return build([node("Conv", "x w", "y", name="conv", group=group)], {"x": [1, 8, 6, 6]}, weights={"w": weight})


def quantized(proto: onnx.ModelProto, name: str, **settings: object) -> Quantized:
    shape = (1, 8, 6, 6) if proto.graph.node[0].op_type == "Conv" else (5, 16)
    samples = [{"x": floats(*shape, seed=i)} for i in range(3)] if name == "static-int8" else ()
    return quantize_in_memory(proto, name, samples, **settings)


def flagged(made: Quantized) -> list[str]:
    return [layer.node for layer in read_saturation(parse(made.data))]


def greatest(made: Quantized, name: str) -> int:
    return int(np.abs(made.weights[name].astype(np.int16)).max())


@pytest.mark.parametrize("name", ["static-int8", "dynamic-int8"])
def test_reduced_weights_cannot_saturate_and_others_keep_their_bits(name: str) -> None:
    plain = quantized(three_layers(), name, **FULL)
    reduced = quantized(three_layers(), name, reduce_range=True, **FULL)
    before = read_saturation(parse(plain.data))
    assert len(before) == 2
    assert all(0 < layer.pairs <= layer.total for layer in before)
    assert read_saturation(parse(reduced.data)) == ()
    assert [greatest(reduced, f"{w}_quantized") for w in "abc"] == [63, 127, 63]
    np.testing.assert_array_equal(plain.weights["b_quantized"], reduced.weights["b_quantized"])
    feeds = {"x": floats(7, 16, seed=9)}
    assert reduced.sqnr(feeds) > 20


def test_reduced_kernels_cannot_saturate() -> None:
    assert flagged(quantized(conv(), "static-int8", **FULL)) == ["conv"]
    reduced = quantized(conv(), "static-int8", reduce_range=True, **FULL)
    assert flagged(reduced) == []
    assert greatest(reduced, "w_quantized") == 63


def test_depthwise_kernels_keep_their_bits() -> None:
    made = quantized(conv(group=8), "static-int8", reduce_range=True)
    assert flagged(made) == []
    assert greatest(made, "w_quantized") == 127


def test_kernels_with_a_scale_for_every_window_are_reduced() -> None:
    weights = {"w": floats(8, 8, 3, scale=0.2)}
    proto = build([node("Conv", "x w", "y")], {"x": [1, 8, 9]}, weights=weights)
    made = quantize_in_memory(proto, "dynamic-int8", reduce_range=True, activation_granularity="row", **FULL)
    assert greatest(made, "w_quantized") == 63
    assert flagged(made) == []


def test_both_weights_of_an_lstm_are_reduced() -> None:
    weights = {"w": floats(1, 64, 32), "r": floats(1, 64, 16, seed=1)}
    proto = build([node("LSTM", "x w r", "y", hidden_size=16)], {"x": [5, 2, 32]}, weights=weights, opset=17)
    made = quantize_in_memory(proto, "dynamic-int8", reduce_range=True, domain="com.microsoft", **FULL)
    assert [greatest(made, f"{name}_quantized") for name in "wr"] == [63, 63]


def test_both_weights_of_an_lstm_are_counted() -> None:
    weights = {"w": wide(32, 64, 6).T[None].copy(), "r": wide(16, 64, 7).T[None].copy()}
    proto = build([node("LSTM", "x w r", "y", name="lstm", hidden_size=16)], {"x": [5, 2, 32]}, weights=weights)
    made = quantize_in_memory(proto, "dynamic-int8", domain="com.microsoft", **FULL)
    (layer,) = read_saturation(parse(made.data))
    assert (layer.node, layer.op_type) == ("lstm_1", "DynamicQuantizeLSTM")
    assert layer.total == (32 // 2 + 16 // 2) * 64
    assert layer.pairs >= 2 * 64  # the large neighbours in each column of both


def test_weights_that_compute_in_float_keep_their_bits() -> None:
    proto = build([node("MatMul", "x w", "y")], {"x": ["n", 64]}, weights={"w": wide(64, 64, 5)})
    made = quantize_in_memory(proto, "weight-int8", reduce_range=True)
    assert greatest(made, "w_quantized") == 127
    assert flagged(made) == []


def test_weights_beside_16_bit_activations_keep_their_bits() -> None:
    made = quantized(three_layers(), "static-int8", reduce_range=True, activations="uint16")
    assert greatest(made, "a_quantized") == 127


def test_what_a_layer_says(tmp_path: Path) -> None:
    codes = np.array([[127, 1], [2, 1], [-100, 60], [-29, 69], [5, 5]], np.int8)
    nodes = [
        node("DynamicQuantizeLinear", "x", "q s z"),
        node("MatMulInteger", "q w z", "y", name="product"),
    ]
    made = build(nodes, {"x": ["n", 5]}, {"y": onnx.TensorProto.INT32}, {"w": codes})
    onnx.save(made, tmp_path / "m.onnx")
    assert read_saturation(load(tmp_path / "m.onnx")) == (LayerSaturation("product", "MatMulInteger", 3, 4),)


def test_unsigned_weights_cannot_saturate() -> None:
    nodes = [node("DynamicQuantizeLinear", "x", "q s z"), node("MatMulInteger", "q w z", "y")]
    made = build(nodes, {"x": ["n", 4]}, {"y": onnx.TensorProto.INT32}, {"w": np.full((4, 2), 255, np.uint8)})
    assert read_saturation(parse(made.SerializeToString())) == ()


def test_filters_of_a_conv_integer_cannot_saturate() -> None:
    nodes = [node("DynamicQuantizeLinear", "x", "q s z"), node("ConvInteger", "q w z", "y")]
    weights = {"w": np.full((2, 4, 3, 3), 127, np.int8)}
    made = build(nodes, {"x": [1, 4, 5, 5]}, {"y": onnx.TensorProto.INT32}, weights)
    assert read_saturation(parse(made.SerializeToString())) == ()


def test_large_weights_are_rounded_to_7_bits_alike(tmp_path: Path) -> None:
    weight = floats(40, 30, seed=6)
    with Spool(tmp_path) as spool:
        codes, scales = nearest_codes(weight, (0,), None, spool, 63)
        expected, of_rows = nearest_rows(weight.T, 63)
        np.testing.assert_array_equal(codes, expected.T)
        np.testing.assert_array_equal(scales.reshape(-1), of_rows)
    assert saturating_pairs(inner_rows("MatMul", np.asarray(codes))) == 0
