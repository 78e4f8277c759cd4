"""Loop and Scan against onnxruntime, and the first Scan by hand."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import parser

from onnxq import evaluate
from onnxq.errors import ModelError

F = np.float32


def model(text, opset=17, ir_version=8):
    return parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["": {opset}]>\n{text}')


def check(text, feeds, opset=17):
    m = model(text, opset)
    session = ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    for ours, theirs in zip(evaluate(m, feeds).values(), session.run(None, feeds), strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("trips", [0, 3, 100])
def test_a_loop_stops_at_its_count_or_condition_like_in_onnxruntime(trips):
    text = """
    agraph (int64 trips, bool go, float[2] x, float limit) => (float[2] last, float[N, 2] all, int64[N] steps) {
        last, all, steps = Loop (trips, go, x) <body = turn (int64 i, bool c, float[2] v)
            => (bool on, float[2] next, float[2] shown, int64 step) {
            next = Add (v, v)
            shown = Neg (next)
            step = Identity (i)
            total = ReduceSum <keepdims = 0> (next)
            on = Less (total, limit)
        }>
    }"""
    for go in (True, False):
        feeds = {"trips": np.array(trips), "go": np.array(go), "x": F([1, 2]), "limit": np.array(40, F)}
        check(text, feeds)


@pytest.mark.parametrize(
    "attributes",
    [
        "",
        ", scan_input_directions = [1, 0]",
        ", scan_output_directions = [1]",
        ", scan_input_axes = [1, 0]",
        ", scan_output_axes = [-1]",
    ],
)
def test_scans_agree_with_onnxruntime(attributes):
    text = f"""
    agraph (float[3] start, float[3, 3] a, float[3, 3] b) => (float[3] last, float[M, N] all) {{
        last, all = Scan <num_scan_inputs = 2 {attributes}, body = step (float[3] s, float[3] p, float[3] q)
            => (float[3] next, float[3] out) {{
            m = Mul (p, q)
            next = Add (s, m)
            out = Sub (next, p)
        }}> (start, a, b)
    }}"""
    rng = np.random.default_rng(0)
    check(text, {"start": rng.random(3, F), "a": rng.random((3, 3), F), "b": rng.random((3, 3), F)})


def test_the_first_scan_runs_sample_by_sample():
    text = """
    agraph (int64[2] lengths, float[2, 1] start, float[2, 3, 1] x) => (float[2, 1] last, float[2, 3, 1] all) {
        last, all = Scan <num_scan_inputs = 1, body = step (float[1] s, float[1] v) => (float[1] n, float[1] o) {
            n = Add (s, v)
            o = Identity (n)
        }> (lengths, start, x)
    }"""
    x = F([[1, 2, 3], [4, 5, 6]]).reshape(2, 3, 1)
    found = evaluate(model(text, 8, 3), {"lengths": np.array([3, 2]), "start": F([[0], [10]]), "x": x})
    assert found["last"].tolist() == [[6], [19]]
    assert found["all"].tolist() == [[[1], [3], [6]], [[14], [19], [0]]]


def test_a_condition_of_several_elements_is_refused():
    text = """
    agraph (bool[2] c) => (float y) {
        y = If (c) <then_branch = t () => (float a) { a = Constant <value_float = 1.0> () },
                    else_branch = e () => (float b) { b = Constant <value_float = 2.0> () }>
    }"""
    with pytest.raises(ModelError, match=r"the condition has shape \[2\], not one element"):
        evaluate(model(text), {"c": np.array([True, False])})


def test_scanned_inputs_of_different_length_are_refused():
    text = """
    agraph (float[N] a, float[M] b) => (float[N] y) {
        y = Scan <num_scan_inputs = 2, body = step (float p, float q) => (float o) { o = Add (p, q) }> (a, b)
    }"""
    with pytest.raises(ModelError, match=r"the scanned inputs have lengths \[2, 3\]"):
        evaluate(model(text), {"a": F([1, 2]), "b": F([1, 2, 3])})
