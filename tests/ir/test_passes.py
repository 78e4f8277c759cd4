"""Normalising passes: what each one changes, what it leaves, and that nothing it computes moves."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import run
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_support import MODEL_FILES, X, model_of, node_of, normalised, ops, text_model, value_of

from onnxq.errors import InvalidResult
from onnxq.ir import StoredTensor, infer_types, load, parse, pass_manager
from onnxq.ir.passes import normalise

RNG = np.random.default_rng


def test_passes_are_found_by_walking_the_folder():
    assert [item.name for item in pass_manager.find_passes("normalise")] == [
        "inline_functions",
        "strip_exporter_metadata",
        "unique_node_names",
        "unique_value_names",
        "drop_initializer_inputs",
        "remove_unused_initializers",
        "lift_constants",
        "cast_like_to_cast",
        "decompose_experimental",
        "hoist_loop_constants",
        "half_to_float32",
        "batchnorm_per_element",
        "fold_constants",
        "fold_batchnorm",
        "fold_pad",
    ]
    with pytest.raises(ValueError, match="no normalise pass is named fold_everything"):
        normalise(model_of("g (float[2,4] x) => (float[2,4] y) { y = Relu(x) }"), ["fold_everything"])


def test_runner_names_the_pass_that_breaks_a_graph(monkeypatch):
    def breaks(model):
        model.graph.nodes.reverse()
        return 1

    item = pass_manager.Pass("breaks", "normalise", 1, "It breaks things.", breaks, "broke {}")
    monkeypatch.setattr(pass_manager, "find_passes", lambda phase: (item,))
    model = model_of("g (float[2,4] x) => (float[2,4] y) { a = Relu(x) y = Neg(a) }")
    with pytest.raises(InvalidResult, match="the pass breaks broke the model: node Neg of"):
        normalise(model)


@pytest.mark.parametrize("path", [p for p in MODEL_FILES if p.stat().st_size > 10_000], ids=lambda path: path.stem)
def test_real_models_compute_the_same(path):
    model = load(path)
    said = normalised(model)
    assert all(isinstance(sentence, str) and "{" not in sentence for sentence in said)
    if not path.parent.name.startswith(("sample_models", "models")):
        return
    infer_types(model)
    feeds = {}
    for value in model.graph.inputs:
        shape = [size if isinstance(size, int) else 1 for size in value.shape]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.dtype)
        feeds[value.name] = (RNG(0).random(shape) * 2).astype(dtype)
    for ours, theirs in zip(run(model.serialize(), feeds), run(path, feeds), strict=True):
        scale = max(1.0, float(np.abs(theirs.astype(np.float64)).max()))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-6 * scale)  # BatchNormalization folded: last bits


# -- initializers that are inputs ---------------------------------------------------------------------------------


def listed_model(listed, ir_version):
    weights = {"w": np.float32([1, 2, 3, 4]), "v": np.float32([4, 3, 2, 1]), "u": np.float32([1, 1, 1, 1])}
    proto = text_model("g (float[2,4] x) => (float[2,4] y) { a = Mul(x, w) b = Mul(a, v) y = Add(b, u) }", weights)
    for name in listed:
        proto.graph.input.append(onnx.helper.make_tensor_value_info(name, 1, [4]))
    proto.ir_version = ir_version
    return parse(proto.SerializeToString())


@pytest.mark.parametrize(
    ("listed", "ir_version", "left", "ir_after"),
    [("wvu", 3, "x", 4), ("wvu", 8, "x", 8), ("wv", 8, "x", 8), ("w", 8, "xw", 8), ("", 8, "x", 8)],
)
def test_listed_initializers(listed, ir_version, left, ir_after):
    model = listed_model(listed, ir_version)
    assert (value_of(model.graph, "w").constant is None) == ("w" in listed)
    said = normalised(model, "drop_initializer_inputs")
    count = 1 + len(listed) - len(left)
    assert said == ([f"removed {count} initializers from the graph inputs"] if count else [])
    assert "".join(v.name for v in model.graph.inputs) == left
    assert model.ir_version == ir_after
    again = parse(model.serialize())
    assert "".join(v.name for v in again.graph.inputs) == left
    assert run(model.serialize(), {"x": X})[0].tolist() == (X * [4, 6, 6, 4] + 1).tolist()


# -- Constant nodes -----------------------------------------------------------------------------------------------


def test_every_form_of_constant_is_lifted():
    model = model_of(
        "g () => (float f, float[2] fs, int64 i, int64[2] is, string s, string[2] ss, float[2,2] t) {"
        " f = Constant <value_float = 1.5> () fs = Constant <value_floats = [1.0, 2.5]> ()"
        " i = Constant <value_int = -3> () is = Constant <value_ints = [4, 5]> ()"
        ' s = Constant <value_string = "a"> () ss = Constant <value_strings = ["b", "ß"]> ()'
        " t = Constant <value = float[2,2] {1, 2, 3, 4}> () }"
    )
    before = run(model.serialize(), {})
    assert normalised(model, "lift_constants") == ["lifted 7 Constant nodes to initializers"]
    assert model.graph.nodes == []
    assert isinstance(model.graph.initializers["t"].tensor, StoredTensor)  # a view of the file, not a copy
    after = run(model.serialize(), {})
    assert [a.tolist() for a in after] == [b.tolist() for b in before]
    assert [a.shape for a in after] == [b.shape for b in before]


def test_constants_in_bodies_are_lifted_there():
    model = model_of(
        "g (bool c, float[2,4] x) => (float[2,4] y) { y = If (c) <"
        "then_branch = t () => (float[4] k) { k = Constant <value_floats = [1.0, 2.0, 3.0, 4.0]> () }, "
        "else_branch = e () => (float[2,4] o) { k = Constant <value_floats = [4.0, 3.0]> () n = Size(k) "
        "f = Cast <to = 1> (n) o = Mul(x, f) }> }"
    )
    normalised(model, "lift_constants")
    then_branch, else_branch = (node_of(model.graph, "If").bodies[f"{name}_branch"][0] for name in ("then", "else"))
    assert (list(then_branch.initializers), list(else_branch.initializers)) == (["k"], ["k"])
    assert ops(then_branch) == []
    for c, expected in ((True, [1, 2, 3, 4]), (False, (X * 2).tolist())):
        assert run(model.serialize(), {"x": X, "c": np.array(c)})[0].tolist() == expected


def test_sparse_constants_stay():
    proto = text_model("g (float[2,4] x) => (float[2,4] y) { k = Constant <value_float = 1.0> () y = Mul(x, k) }")
    sparse = onnx.SparseTensorProto(dims=[4])
    sparse.values.CopyFrom(onnx.numpy_helper.from_array(np.float32([2])))
    sparse.indices.CopyFrom(onnx.numpy_helper.from_array(np.int64([1])))
    proto.graph.node[0].attribute[0].CopyFrom(onnx.helper.make_attribute("sparse_value", sparse))
    model = parse(proto.SerializeToString())
    assert normalised(model) == []
    assert model.serialize() == proto.SerializeToString()


def test_initializers_that_nothing_reads_are_left_out():
    """A float weight that an exporter had left behind stayed at full size, and let the others count as small ones."""
    text = """g (bool c, float[2,4] x) => (float[2,4] y, float[300] given) {
        y = If(c) <then_branch = t () => (a) { a = Add(x, read) }, else_branch = e () => (b) { b = Abs(x) }>
    }"""
    weights = {"read": np.ones(4), "unread": np.ones(500), "given": np.ones(300), "small": np.ones(2)}
    proto = text_model(text, {k: v.astype(np.float32) for k, v in weights.items()})
    left = onnx.numpy_helper.from_array(np.ones(256, np.float32), "inner")
    proto.graph.node[0].attribute[0].g.initializer.append(left)
    model = parse(proto.SerializeToString())
    assert normalised(model) == ["removed 2 unused initializers"]
    assert [value.name for value in model.initializers()] == ["read", "given", "small"]


# -- BatchNormalization -------------------------------------------------------------------------------------------


def batchnorm_weights(channels, seed=1):
    dice = RNG(seed)
    return {
        "s": dice.uniform(-2, 2, channels).astype(np.float32),
        "b": dice.standard_normal(channels).astype(np.float32),
        "m": dice.standard_normal(channels).astype(np.float32),
        "v": dice.uniform(0.1, 3, channels).astype(np.float32),
    }


@given(
    st.sampled_from(["Conv", "ConvTranspose"]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 2),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_batchnorm_behind_convolutions(op, rank, group, per_in, per_out, bias, output):
    """1-D to 3-D, groups, with and without bias, as the last node or not: equal to 1e-4 of the largest result."""
    dice = RNG(rank * 100 + group * 10 + per_in)
    channels, inputs = group * per_out, group * per_in
    shape = (channels, per_in) if op == "Conv" else (inputs, per_out)
    weights = batchnorm_weights(channels) | {"w": dice.standard_normal((*shape, *[2] * rank)).astype(np.float32)}
    if bias:
        weights["c"] = dice.standard_normal(channels).astype(np.float32)
    tail = "y = BatchNormalization <epsilon = 0.01> (a, s, b, m, v)" + ("" if output else " z = Relu(y)")
    dims = ",".join(["2", str(inputs)] + ["5"] * rank)
    model = model_of(
        f"g (float[{dims}] x) => (float[{','.join('ABCDE'[: rank + 2])}] {'y' if output else 'z'}) "
        f"{{ a = {op} <group = {group}> (x, w{', c' if bias else ''}) {tail} }}",
        weights,
    )
    feeds = {"x": dice.standard_normal((2, inputs, *[5] * rank)).astype(np.float32)}
    before = run(model.serialize(), feeds)[0]
    assert normalised(model) == ["folded 1 BatchNormalization into the layer before"]
    assert ops(model.graph) == [op] + ([] if output else ["Relu"])
    assert len(model.graph.initializers) == 2
    np.testing.assert_allclose(run(model.serialize(), feeds)[0], before, rtol=0, atol=1e-4 * np.abs(before).max())


@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize("bias", [None, (5,), (1, 5), (1,), ()])
def test_batchnorm_behind_gemm(trans, bias):
    weights = batchnorm_weights(5) | {"w": RNG(0).standard_normal((5, 4) if trans else (4, 5)).astype(np.float32)}
    if bias is not None:
        weights["c"] = RNG(1).standard_normal(bias).astype(np.float32)
    model = model_of(
        f"g (float[2,4] x) => (float[2,5] y) {{ a = Gemm <transB = {trans}, alpha = 0.5> (x, w"
        f"{'' if bias is None else ', c'}) y = BatchNormalization(a, s, b, m, v) }}",
        weights,
    )
    before = run(model.serialize(), {"x": X})[0]
    normalised(model)
    assert ops(model.graph) == ["Gemm"]
    np.testing.assert_allclose(run(model.serialize(), {"x": X})[0], before, rtol=0, atol=1e-5)


CONV = "a = Conv(x, w) y = BatchNormalization(a, s, b, m, v)"
LEFT = {
    "read twice": f"{CONV} z = Add(a, y)",
    "training": "a = Conv(x, w) y, r, q = BatchNormalization <training_mode = 1> (a, s, b, m, v) z = Relu(y)",
    "no constant": "n = Exp(x) k = ReduceSum <keepdims = 0> (n, axes) a = Conv(x, w) "
    "y = BatchNormalization(a, s, k, m, v) z = Relu(y)",
    "behind Relu": "c = Conv(x, w) a = Relu(c) y = BatchNormalization(a, s, b, m, v) z = Relu(y)",
    "weight computed": "n = ReduceSum(x, all) u = Mul(w, n) a = Conv(x, u) "
    "y = BatchNormalization(a, s, b, m, v) z = Relu(y)",
}


@pytest.mark.parametrize("body", LEFT.values(), ids=LEFT)
def test_batchnorm_that_stays(body):
    weights = batchnorm_weights(3) | {"w": np.ones((3, 3, 1, 1), np.float32)}
    weights |= {"axes": np.int64([0, 2, 3]), "all": np.int64([0, 1, 2, 3])}
    model = model_of(f"g (float[1,3,4,4] x) => (float[1,3,4,4] z) {{ {body} }}", weights)
    assert normalised(model) == []
    assert "BatchNormalization" in ops(model.graph)


def test_conv_whose_result_is_an_output_keeps_its_batchnorm():
    weights = batchnorm_weights(3) | {"w": np.ones((3, 3, 1, 1), np.float32)}
    model = model_of(f"g (float[1,3,4,4] x) => (float[1,3,4,4] a, float[1,3,4,4] y) {{ {CONV} }}", weights)
    assert normalised(model) == []


def test_weight_with_two_readers_stays_for_the_other():
    weights = batchnorm_weights(3) | {"w": RNG(0).standard_normal((3, 3, 1, 1)).astype(np.float32)}
    model = model_of(f"g (float[1,3,4,4] x) => (float[1,3,4,4] z) {{ {CONV} c = Conv(y, w) z = Relu(c) }}", weights)
    feeds = {"x": RNG(2).standard_normal((1, 3, 4, 4)).astype(np.float32)}
    before = run(model.serialize(), feeds)[0]
    normalised(model)
    assert sorted(model.graph.initializers) == ["w", "w_folded", "w_folded_bias"]
    np.testing.assert_allclose(run(model.serialize(), feeds)[0], before, rtol=0, atol=1e-4)


def test_infinite_results_are_not_folded():
    weights = batchnorm_weights(3) | {"w": np.ones((3, 3, 1, 1), np.float32), "v": np.float32([1, -1, 1])}
    model = model_of(f"g (float[1,3,4,4] x) => (float[1,3,4,4] y) {{ {CONV} }}", weights)
    assert normalised(model) == []


# -- what exporters note ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "kept"), [
    ("/home/me/nets/net.py(213): forward\n/usr/lib/torch/nn/module.py(477): _slow_forward", False),
    ("/home/me/nets/net.py(213): forward\nsee also the paper", True),
    ("the gate of layer 3", True),
    ("", True),
])  # fmt: skip
def test_tracebacks_of_older_exporters_are_left_out(text: str, kept: bool) -> None:
    """PyTorch wrote them as a description of every node: 0.4 of a style transfer's file."""
    proto = text_model("g (float[2,4] x) => (float[2,4] y) { y = Relu(x) }")
    proto.graph.node[0].doc_string = text
    model = parse(proto.SerializeToString())
    assert normalised(model) == ([] if kept else ["removed PyTorch's source metadata of 1 node"])
    (relu,) = onnx.load_from_string(model.serialize()).graph.node
    assert relu.doc_string == (text if kept else "")


def test_what_pytorch_notes_of_the_source_is_left_out_in_bodies_too():
    text = """g (bool c, float[2,4] x) => (float[2,4] y) {
        h = Relu(x) y = If(c) <then_branch = t () => (a) { a = Neg(h) }, else_branch = e () => (b) { b = Abs(h) }>
    }"""
    proto = text_model(text)
    relu, branch = proto.graph.node
    inner = branch.attribute[0].g.node[0]
    for node in (relu, inner):
        notes = {"namespace": "net.act", "pkg.torch.onnx.stack_trace": 'File "/home/me/net.py", line 1', "mine": "kept"}
        for key, value in (notes | {"pkg.torch.onnx.fx_node": "%relu", "pkg.torch.onnx.class_hierarchy": "[]"}).items():
            node.metadata_props.add(key=key, value=value)
        node.doc_string = "kept as well"
    model = parse(proto.SerializeToString())
    assert normalised(model) == ["removed PyTorch's source metadata of 2 nodes"]
    relu, branch = onnx.load_from_string(model.serialize()).graph.node
    for node in (relu, branch.attribute[0].g.node[0]):
        assert [(entry.key, entry.value) for entry in node.metadata_props] == [
            ("namespace", "net.act"),
            ("mine", "kept"),
        ]
        assert node.doc_string == "kept as well"
