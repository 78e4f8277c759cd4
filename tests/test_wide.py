"""The evaluator in float64: what it computes, what it rounds, and that processors agree on what comes of it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

from onnxq.evaluator import Evaluator
from onnxq.ir import parse
from onnxq.ir.types import infer_types

F = np.float32


def model(text: str, opset: int = 20) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}, "com.microsoft": 1]>\nagraph {text}')


def run(text: str, feeds: dict[str, np.ndarray], opset: int = 20) -> dict[str, np.ndarray]:
    return Evaluator(model(text, opset), wide=True).run(feeds)


def test_sums_keep_what_float32_would_lose() -> None:
    x = F([1, 2**-30, 2**-50])
    found = run("(float[3] x) => (float y) { y = ReduceSum <keepdims = 0> (x) }", {"x": x})["y"]
    assert found.dtype == np.float64
    assert found == 1 + 2**-30 + 2**-50


def test_weights_and_constants_count_as_the_float32_numbers_that_they_are() -> None:
    text = """
    (float[1] x) => (float[1] y, float[1] z, float[2] s)
    <float[1] w = {0.1}>
    { c = Constant <value_float = 0.1> () y = Mul (x, w) z = Mul (x, c) n = Constant <value_ints = [2]> ()
      s = ConstantOfShape <value = float[1] {0.1}> (n) }
    """
    found = run(text, {"x": F([0.1])})
    assert found["y"] == found["z"] == float(F(0.1)) ** 2
    assert found["s"].tolist() == [float(F(0.1))] * 2


@pytest.mark.parametrize("operator", ["Floor", "Ceil", "Round"])
def test_operators_that_jump_see_float32(operator: str) -> None:
    # 10 times float32's 0.1 is 1.00000001…, which float32 rounds to 1; 5 times is 0.5000000075
    text = f"(float[2] x) => (float[2] y) <float[2] w = {{10.0, 5.0}}> {{ p = Mul (x, w) y = {operator} (p) }}"
    expected = {"Floor": np.floor, "Ceil": np.ceil, "Round": np.rint}[operator](F([1, 0.5]))
    assert run(text, {"x": F([0.1, 0.1])})["y"].tolist() == expected.tolist()


def test_casts_to_integers_and_comparisons_see_float32() -> None:
    text = """
    (float[1] x) => (int64[1] i, bool[1] e, int64[1] k)
    <float[1] w = {41.0}, float[1] v = {4.1}>
    { p = Mul (x, w) i = Cast <to = 7> (p) e = Equal (p, v) b = Concat <axis = 0> (p, v)
      k = ArgMax <axis = 0, keepdims = 1> (b) }
    """
    found = run(text, {"x": F([0.1])})
    assert found["i"] == 4
    assert found["e"]
    assert found["k"] == 0  # the first of two that are equal


def test_a_cast_to_float_rounds_nothing_that_stands_for_float32() -> None:
    text = "(float[1] x) => (float[1] y) { a = Mul (x, x) y = Cast <to = 1> (a) }"
    assert run(text, {"x": F([0.1])})["y"] == float(F(0.1)) ** 2


def test_a_cast_to_half_precision_rounds_as_float32_does() -> None:
    text = "(float[1] x) => (float[1] y) { h = Cast <to = 10> (x) y = Cast <to = 1> (h) }"
    found = run(text, {"x": F([0.1])})["y"]
    assert found.dtype == np.float64
    assert found == float(np.float16(0.1))


def test_quantized_operators_give_the_very_codes_of_float32() -> None:
    text = """
    (float[64] x) => (uint8[64] q, float[64] y, uint8[64] d)
    <float scale = {0.037}, uint8 zero = {7}>
    { q = QuantizeLinear (x, scale, zero) y = DequantizeLinear (q, scale, zero) d, s, z = DynamicQuantizeLinear (x) }
    """
    x = np.random.default_rng(0).normal(size=64).astype(np.float32)
    wide, narrow = run(text, {"x": x}), Evaluator(model(text)).run({"x": x})
    assert wide["q"].tolist() == narrow["q"].tolist()
    assert wide["d"].tolist() == narrow["d"].tolist()
    assert wide["y"].dtype == np.float64
    assert wide["y"].tolist() == narrow["y"].tolist()


def test_bodies_compute_in_float64_too() -> None:
    text = """
    (int64 trips, float[1] start) => (float[1] last, float[trips, 1] all) {
        yes = Constant <value = bool {1}> ()
        last, all = Loop (trips, yes, start) <body = turn
            (int64 i, bool c, float[1] state) => (bool on, float[1] next, float[1] shown) {
                on = Identity (c)
                next = Mul (state, state)
                shown = Identity (next)
            }>
    }
    """
    start = F([0.1])
    found = run(text, {"trips": np.array(2), "start": start})
    assert found["last"] == (float(start[0]) ** 2) ** 2
    assert found["all"].dtype == np.float64
    assert run(text, {"trips": np.array(0), "start": start})["all"].dtype == np.float64


def test_tables_that_rows_are_taken_of_stay_in_float32_and_their_rows_do_not() -> None:
    text = "(int64[1] i) => (float[1, 2] y) <float[2, 2] t = {0.1, 0.2, 0.3, 0.4}> { r = Gather (t, i) y = Mul (r, r) }"
    evaluator = Evaluator(model(text), wide=True)
    table = evaluator.begin({"i": np.array([1])}).values[evaluator.model.graph.values["t"]]
    assert table.dtype == np.float32
    assert evaluator.run({"i": np.array([1])})["y"].tolist() == [[float(F(0.3)) ** 2, float(F(0.4)) ** 2]]


def test_numbers_that_the_model_itself_has_in_float64_are_not_rounded() -> None:
    proto = model("(double[1] x) => (double[1] y) { y = Floor (x) }")
    made = parse(proto.SerializeToString())
    infer_types(made)
    found = Evaluator(made, wide=True).run({"x": np.array([2.0**30 - 0.25])})["y"]
    assert found == 2.0**30 - 1  # float32 has 2^30 in its place


def test_feeds_of_another_type_are_refused_as_ever() -> None:
    evaluator = Evaluator(model("(float[1] x) => (float[1] y) { y = Neg (x) }"), wide=True)
    assert evaluator.run({"x": F([0.1])})["y"] == evaluator.run({"x": F([0.1]).astype(float)})["y"] == -float(F(0.1))
    with pytest.raises(Exception, match="is float64, not int64"):
        evaluator.run({"x": np.array([1])})


def test_an_evaluator_says_for_which_tensors_it_has_all_kernels() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("GridSample", ["r", "g"], ["s"]),
        helper.make_node("Neg", ["s"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 2, 2]),
        helper.make_tensor_value_info("g", TensorProto.FLOAT, [1, 2, 2, 2]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    proto = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs), opset_imports=[helper.make_opsetid("", 20)]
    )
    evaluator = Evaluator(proto, wide=True)
    assert evaluator.has_kernels(["r"])
    assert not evaluator.has_kernels(["r", "y"])
