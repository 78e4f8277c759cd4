"""Passes that fold constants and inline functions: what each one changes, what it leaves, the same results."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from helpers import run
from ir_support import X, model_of, node_of, normalised, ops

from onnxq.errors import ModelError
from onnxq.ir import parse
from onnxq.ir.passes import normalise
from onnxq.ir.tensor import DeferredTensor

RNG = np.random.default_rng

# -- constants ----------------------------------------------------------------------------------------------------

FOLDS = {
    "identity": ("k = Identity(w)", np.ones((4, 4))),
    "chain": ("a = Identity(w) b = Transpose <perm = [1, 0]> (a) k = Neg(b)", RNG(0).random((4, 4))),
    "transpose": ("k = Transpose(w)", RNG(0).random((4, 4))),
    "reshape": ("k = Reshape(w, shape)", RNG(0).random((2, 8))),
    "squeeze": ("k = Squeeze(w, zero)", RNG(0).random((1, 4, 4))),
    "squeeze all": ("k = Squeeze(w)", RNG(0).random((1, 4, 1, 4))),
    "unsqueeze": ("a = Flatten <axis = 1> (w) b = Unsqueeze(a, zero) k = Squeeze(b, zero)", RNG(0).random((4, 2, 2))),
    "arithmetic": ("a = Add(w, w) b = Sqrt(a) c = Div(b, w) d = Sub(c, w) k = Mul(d, w)", RNG(0).random((4, 4)) + 1),
    "gather": ("k = Gather(w, picked)", RNG(0).random((7, 4))),
    "slice": ("k = Slice(w, one, five, zero)", RNG(0).random((6, 4))),
    "slice in steps": ("k = Slice(w, one, ends, zero, two)", RNG(0).random((9, 4))),
    "slice backwards": ("k = Slice(w, last, first, zero, back)", RNG(0).random((4, 4))),
    "slice backwards from before": ("a = Slice(w, first, first, zero, back) k = Add(a, w)", RNG(0).random((4, 4))),
    "constant of shape": ("a = ConstantOfShape(four) k = Add(w, a)", RNG(0).random((4, 4))),
    "split": ("a, b = Split <axis = 0> (w) k = Sub(b, a)", RNG(0).random((8, 4))),
    "split unevenly": ("a, k, b = Split <axis = -1> (w, sizes)", RNG(0).random((4, 7))),
    "split, one part of which is read": ("a, b, c = Split <axis = 1> (w) k = Neg(b)", RNG(0).random((4, 12))),
    "expand": ("a = Shape(w) b = Slice(w, zero, one, zero) c = Expand(b, a) k = Add(w, c)", RNG(0).random((4, 4))),
    "weight normalisation": (
        "a = ReduceL2 <axes = [1], keepdims = 1> (w) b = Div(w, a) k = Mul(b, a)",
        RNG(0).random((4, 4)) + 1,
    ),
    "weight normalisation, spelled out": (
        "a = Abs(w) b = Pow(a, a) c = ReduceSum(b, one) d = Sqrt(c) e = ReduceSumSquare <axes = [0]> (b) f = Div(b, d) "
        "k = Div(f, e)",
        RNG(0).random((4, 4)) + 1,
    ),
    "gates in another order": (
        "a = Slice(w, zero, one, zero) b = Slice(w, one, ends, zero) k = Concat <axis = 0> (b, a)",
        RNG(0).random((4, 4)),
    ),
}


@pytest.mark.parametrize(("body", "weight"), FOLDS.values(), ids=FOLDS)
def test_constants_are_seen_through(body, weight):
    weights = {
        "w": weight.astype(np.float32),
        "shape": np.int64([0, -1]),
        "zero": np.int64([0]),
        "one": np.int64([1]),
        "two": np.int64([2]),
    }
    weights |= {"five": np.int64([5]), "ends": np.int64([2**63 - 1]), "picked": np.int64([6, 0, -2, 3])}
    weights |= {
        "last": np.int64([-1]),
        "first": np.int64([-(2**63) + 1]),
        "back": np.int64([-1]),
        "four": np.int64([4]),
        "sizes": np.int64([1, 4, 2]),
    }
    if body.startswith("k = Reshape"):
        weights["shape"] = np.int64([4, -1])
    model = model_of(f"g (float[2,4] x) => (float[2,4] y) {{ {body} y = MatMul(x, k) }}", weights)
    before = run(model.serialize(), {"x": X})[0]
    assert len(normalised(model)) == 1
    assert ops(model.graph) == ["MatMul"]
    assert model.graph.nodes[0].inputs[1].constant is not None
    np.testing.assert_allclose(run(model.serialize(), {"x": X})[0], before, rtol=1e-6, atol=0)


def test_a_weight_under_several_names_stays_one():
    """Exporters write layers that share their weights so; each name would become a weight of its own."""
    model = model_of(
        "g (float[2,4] x) => (float[2,4] y) "
        "{ a = Identity(w) b = Identity(a) h = MatMul(x, w) i = MatMul(h, b) y = MatMul(i, a) }",
        {"w": RNG(0).random((4, 4)).astype(np.float32)},
    )
    before = run(model.serialize(), {"x": X})[0]
    assert normalised(model) == ["folded 2 operators on constants"]
    assert [node.inputs[1].name for node in model.graph.nodes] == ["w", "w", "w"]
    assert list(model.graph.initializers) == ["w"]
    np.testing.assert_array_equal(run(model.serialize(), {"x": X})[0], before)


def test_a_bias_of_zeros_as_pytorch_exports_it_without_optimisation_is_seen_through():
    """Its type is that of another value, its length that of the weight; BatchNormalization was not folded behind it."""
    text = (
        "g (float[1,2,4] x) => (float[1,600,2] y) "
        "{ a = CastLike(none, x) b = Shape <end = 1> (w) c = Expand(b, one) d = Expand(a, c) "
        "h = Conv(x, w, d) y = BatchNormalization(h, s, s, s, s) }"
    )
    weights = {"w": RNG(0).random((600, 2, 3)), "s": RNG(1).random(600) + 0.5, "none": np.zeros(())}
    weights = {name: array.astype(np.float32) for name, array in weights.items()} | {"one": np.int64([1])}
    model = model_of(text, weights)
    before = run(model.serialize(), {"x": X.reshape(1, 2, 4)})[0]
    said = ["rewrote 1 CastLike as Cast", "folded 4 operators on constants"]
    assert normalised(model) == [*said, "folded 1 BatchNormalization into the layer before"]
    assert ops(model.graph) == ["Conv"]
    np.testing.assert_allclose(run(model.serialize(), {"x": X.reshape(1, 2, 4)})[0], before, rtol=1e-5, atol=1e-6)


def test_a_constant_expanded_far_stays_small():
    weights = {"w": np.ones((1, 1), np.float32), "shape": np.int64([1000, 1000]), "empty": np.int64([0])}
    text = "{ k = Expand(w, shape) y = Mul(x, k) l = Expand(w, empty) z = Mul(l, l) }"
    model = model_of(f"g (float[1000,1000] x) => (float[1000,1000] y, float[1,0] z) {text}", weights)
    normalised(model)
    assert ops(model.graph)[:2] == ["Expand", "Mul"]


def test_half_weights_become_float_and_eight_bit_ones_stay():
    """Float16 storage doubles and is seen as a weight; dequantizing by Cast and Mul would undo a quantized model."""
    half = {"w": RNG(0).random((64, 64)).astype(np.float16)}
    model = model_of("g (float[2,64] x) => (float[2,64] y) { k = Cast <to = 1> (w) y = MatMul(x, k) }", half)
    assert normalised(model) == ["folded 1 operator on constants"]
    eight = {"w": np.ones((64, 64), np.int8), "s": np.ones(64, np.float32)}
    model = model_of(
        "g (float[2,64] x) => (float[2,64] y) { a = Cast <to = 1> (w) k = Mul(a, s) y = MatMul(x, k) }", eight
    )
    assert normalised(model) == []


def test_results_do_not_grow_beyond_what_they_come_from():
    weights = {"a": np.ones((1000, 1), np.float32), "b": np.ones((1, 1000), np.float32), "shape": np.int64([1 << 20])}
    model = model_of(
        "g (float[1000,1000] x) => (float[1000,1000] y, float[n] z) "
        "{ k = Add(a, b) y = Mul(x, k) z = ConstantOfShape(shape) }",
        weights,
    )
    assert normalised(model) == []


def test_large_results_are_computed_when_needed():
    weights = {"w": RNG(0).random((512, 1024)).astype(np.float32)}
    model = model_of("g (float[2,1024] x) => (float[2,512] y) { k = Transpose(w) y = MatMul(x, k) }", weights)
    feeds = {"x": RNG(1).random((2, 1024)).astype(np.float32)}
    before = run(model.serialize(), feeds)[0]
    normalised(model)
    assert isinstance(model.graph.initializers["k"].tensor, DeferredTensor)
    assert list(model.graph.initializers) == ["k"]
    np.testing.assert_allclose(run(model.serialize(), feeds)[0], before, rtol=1e-6)


def test_bfloat16_and_impossible_nodes():
    weights = {"w": np.ones((2, 3), ml_dtypes.bfloat16), "shape": np.int64([4, 4])}
    model = model_of("g (bfloat16[2,3] x) => (bfloat16[a,b] y) { k = Transpose(w) y = MatMul(x, k) }", weights)
    assert len(normalised(model, "fold_constants")) == 1
    weights |= {"scalar": np.ones((), np.float32), "first": np.int64([0])}
    for node in ("Reshape(w, shape)", "Expand(w, shape)", "Gather(scalar, first)", "Add(w, shape)"):
        broken = model_of(f"g (bfloat16[2,3] x) => (bfloat16[a,b] y) {{ k = {node} y = Add(x, k) }}", weights)
        assert normalised(broken, "fold_constants") == []


# -- functions ----------------------------------------------------------------------------------------------------

FUNCTIONS = """
g (float[2,64] x) => (float[2,64] y) {{ a = f.Twice(x) [mm] b = MatMul(a, w) y = f.Scaled(b) }}
<domain: "f", opset_import: ["" : {opset}]> Twice (p) => (q) {{ q = Add(p, p) }}
<domain: "f", opset_import: ["" : {opset}, "f" : 1]> Scaled (p) => (q)
{{ c = Constant <value_float = 3.0> () r = f.Twice(p) q = Mul(r, c) }}
"""


def functions_model(opset):
    header = '<ir_version: 8, opset_import: ["" : 17, "f" : 1]>'
    proto = onnx.parser.parse_model(header + FUNCTIONS.format(opset=opset))
    weight = RNG(0).standard_normal((64, 64)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return proto


def test_functions_are_inlined_and_weights_stay_where_they_were():
    proto = functions_model(17)
    feeds = {"x": RNG(1).standard_normal((2, 64)).astype(np.float32)}
    before = run(proto.SerializeToString(), feeds)[0]
    data = proto.SerializeToString()
    model = parse(data)
    weight = model.graph.initializers["w"].tensor
    source = model.sha256
    assert normalised(model)[0] == "inlined 2 model-local functions"
    assert not model.has_functions
    assert ops(model.graph) == ["Add", "MatMul", "Add", "Mul"]
    assert model.graph.initializers["w"].tensor is weight
    assert node_of(model.graph, "MatMul").name == "mm"
    assert model.sha256 == source
    assert run(model.serialize(), feeds)[0].tolist() == before.tolist()


def test_functions_of_another_opset_are_converted_or_refused():
    """A call inside such a function has types that nobody knows, so conversion stops: a sentence."""
    text = functions_model(13)
    del text.functions[1].node[1:2]
    text.functions[1].node[1].input[0] = "p"
    model = parse(text.SerializeToString())
    feeds = {"x": RNG(1).standard_normal((2, 64)).astype(np.float32)}
    assert normalised(model)[0] == "inlined 2 model-local functions"
    assert ops(model.graph) == ["Add", "MatMul", "Mul"]
    expected = run(functions_model(17).SerializeToString(), feeds)[0] / 2
    assert run(model.serialize(), feeds)[0].tolist() == expected.tolist()
    with pytest.raises(ModelError, match="model-local functions cannot be inlined"):
        normalise(parse(functions_model(13).SerializeToString()))


def test_functions_that_call_each_other_forever_are_refused():
    proto = functions_model(17)
    proto.functions[0].node[0].CopyFrom(onnx.helper.make_node("Scaled", ["p"], ["q"], domain="f"))
    with pytest.raises(ModelError, match=r"its function .* of domain f calls itself"):
        normalise(parse(proto.SerializeToString()))


PADDED = "g (float[1,3,9,9] x) => (float[1,8,n,m] y) {{ p = Pad {mode} (x, pads{value}) y = Conv {attributes} (p, w) }}"


@pytest.mark.parametrize(
    ("pads", "mode", "value", "attributes", "folded"),
    [
        ([0, 0, 1, 0, 0, 0, 1, 2], "", "", "", True),
        ([0, 0, 1, 0, 0, 0, 1, 2], "", ", zero", "<pads = [1, 1, 0, 0], strides = [2, 2]>", True),
        ([0, 0, 0, 0, 0, 0, 0, 0], "", "", "<dilations = [2, 1]>", True),
        ([0, 0, 1, 0, 0, 0, 1, 2], '<mode = "reflect">', "", "", False),
        ([0, 0, 1, 0, 0, 0, 1, 2], "", ", one", "", False),
        ([0, 0, -1, 0, 0, 0, 1, 2], "", "", "", False),
        ([0, 1, 0, 0, 0, 0, 0, 0], "", "", "<group = 1>", False),
        ([0, 0, 1, 0, 0, 0, 1, 2], "", "", '<auto_pad = "SAME_UPPER">', False),
        ([0, 0, 1, 0, 0, 0, 1, 2], "", "", '<auto_pad = "VALID">', True),
        ([0, 0, 1, 0, 0, 0, 1, 2], "", "", '<auto_pad = "", pads = [1, 1, 0, 0]>', True),
    ],
)
def test_zeros_before_a_conv_are_pads_of_its_own(pads, mode, value, attributes, folded):
    inputs = 4 if pads[1] else 3
    weights = {"w": RNG(0).random((8, inputs, 3, 3)).astype(np.float32), "pads": np.int64(pads)}
    weights |= {"zero": np.float32(0), "one": np.float32(1)}
    model = model_of(PADDED.format(mode=mode, value=value, attributes=attributes), weights)
    feeds = {"x": RNG(1).random((1, 3, 9, 9)).astype(np.float32)}
    before = run(model.serialize(), feeds)[0]
    assert ("folded 1 Pad into the Conv after" in normalised(model)) == folded
    assert ops(model.graph) == (["Conv"] if folded else ["Pad", "Conv"])
    np.testing.assert_allclose(run(model.serialize(), feeds)[0], before, rtol=1e-5, atol=1e-6)


def test_a_conv_of_random_numbers_has_no_pad_before_it():
    """An operator without inputs stands before it; this ended in an IndexError."""
    text = "g () => (float[1,8,n,m] y) { x = RandomUniform <shape = [1, 3, 9, 9]> () y = Conv (x, w) }"
    model = model_of(text, {"w": RNG(0).random((8, 3, 3, 3)).astype(np.float32)})
    normalised(model)
    assert ops(model.graph) == ["RandomUniform", "Conv"]


def test_pads_that_count_for_nothing_are_not_folded_in():
    """No onnxruntime of today loads such a Conv; what it would read is what `auto_pad` says."""
    weights = {"w": RNG(0).random((8, 3, 3, 3)).astype(np.float32), "pads": np.int64([0, 0, 1, 0, 0, 0, 1, 2])}
    attributes = '<auto_pad = "VALID", pads = [1, 1, 1, 1]>'
    model = model_of(PADDED.format(mode="", value="", attributes=attributes), weights)
    normalised(model)
    assert [list(node.attribute("pads")) for node in model.graph.nodes] == [[1, 0, 1, 2]]


ALONG = (
    "{ p = Pad(x, pads) u = Unsqueeze(p, axes) t = Transpose <perm = PERM> (u) y = Conv <pads = [0, 1, 0, 0]> (t, w)"
)


@pytest.mark.parametrize(
    ("pads", "perm", "more", "folded"),
    [
        ([0, 4, 0, 0, 1, 0], "[0, 3, 1, 2]", "}", [0, 5, 0, 1]),
        ([0, 4, 0, 0, 1, 0], "[0, 3, 2, 1]", "}", [4, 1, 1, 0]),
        ([0, 0, 1, 0, 0, 0], "[0, 3, 1, 2]", "}", None),  # channels
        ([1, 4, 0, 0, 1, 0], "[0, 3, 1, 2]", "}", None),  # another sample
        ([0, 4, 0, 0, 1, 0], "[0, 3, 1, 2]", "z = Flatten(u) }", None),
        ([0, 4, 0, 0, 1, 0], "[0, 3, 1, 2]", "z = Flatten(p) }", None),
    ],
)
def test_axes_may_move_between_the_zeros_and_the_conv(pads, perm, more, folded):
    kernel = (5, 1) if perm == "[0, 3, 2, 1]" else (1, 5)
    weights = {"w": RNG(0).random((8, 3 + pads[2], *kernel)).astype(np.float32), "pads": np.int64(pads)}
    results = "float[n,8,h,m] y, float[a,b] z" if "z" in more else "float[n,8,h,m] y"
    body = ALONG.replace("PERM", perm) + more
    model = model_of(f"g (float[2,9,3] x) => ({results}) {body}", weights | {"axes": np.int64([1])})
    feeds = {"x": RNG(1).random((2, 9, 3)).astype(np.float32)}
    before = run(model.serialize(), feeds)
    normalised(model)
    assert ("Pad" in ops(model.graph)) == (folded is None)
    assert list(node_of(model.graph, "Conv").attribute("pads")) == (folded or [0, 1, 0, 0])
    for got, expected in zip(run(model.serialize(), feeds), before, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5)
