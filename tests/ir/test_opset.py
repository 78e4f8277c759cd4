"""Operator set versions: every conversion computes what the model computed before, or is refused in a sentence."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers import run
from ir_support import MODEL_FILES, X, assert_consistent, model_of, node_of, ops, text_model, value_of
from onnx import helper, numpy_helper

from onnxq.errors import ModelError
from onnxq.ir import Patch, commit, infer_types, load, parse
from onnxq.ir.opset import (
    MAX_IR,
    MAX_OPSET,
    make_loadable,
    minimum_ir,
    raise_opset,
)

F = np.float32
RNG = np.random.default_rng
IMAGE = RNG(0).standard_normal((2, 4, 6, 6)).astype(F)
CUBE = RNG(1).standard_normal((2, 3, 4)).astype(F)
MATRIX = RNG(2).standard_normal((3, 4)).astype(F)
TARGETS = (13, 19, 21)


def test_ir_table_is_that_of_onnx():
    for opset in range(7, MAX_OPSET + 1):
        assert minimum_ir(opset) == helper.find_min_ir_version_for([helper.make_opsetid("", opset)])


def of_version(ir_version: int, opset: int) -> bytes:
    proto = text_model("g (float[2,4] x) => (float[2,4] y) { y = Relu(x) }")
    proto.ir_version, proto.opset_import[0].version = ir_version, opset
    return proto.SerializeToString()


def test_what_is_written_is_within_the_limits_of_the_installed_onnxruntime():
    assert run(of_version(MAX_IR, MAX_OPSET), {"x": X})[0].tolist() == X.clip(0).tolist()


@pytest.mark.skipif(not ort.__version__.startswith("1.31."), reason="the limits are those of onnxruntime 1.31")
@pytest.mark.parametrize(("ir_version", "opset"), [(MAX_IR + 1, MAX_OPSET), (MAX_IR, 28)])
def test_what_is_beyond_does_not_load_in_the_release_that_they_are_of(ir_version, opset):
    with pytest.raises(Exception, match=r"IR version|opset|Opset"):
        run(of_version(ir_version, opset), {"x": X})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "path", [p for p in MODEL_FILES if p.parent.name in ("sample_models", "models")], ids=lambda path: path.stem
)
def test_real_models_compute_exactly_the_same(path, target):
    model = load(path)
    if model.opset >= target:
        assert raise_opset(model, target) is model
        return
    before = model.serialize()
    raised = raise_opset(model, target)
    assert_consistent(raised)
    assert model.serialize() == before
    assert raised.opset == target
    assert raised.ir_version == max(model.ir_version, minimum_ir(target))
    assert raised.sha256 == model.sha256
    large = {id(v.tensor) for v in model.initializers() if v.tensor.nbytes > 1024}
    assert large <= {id(v.tensor) for v in raised.initializers()}  # moved over, not copied
    infer_types(model)
    infer_types(raised)
    for ours, theirs in ((raised.graph.inputs, model.graph.inputs), (raised.graph.outputs, model.graph.outputs)):
        assert [(v.name, v.dtype) for v in ours] == [(v.name, v.dtype) for v in theirs]
    feeds = {}
    for value in model.graph.inputs:
        if value.tensor is None:
            shape = [size if isinstance(size, int) else 1 for size in value.shape]
            feeds[value.name] = (RNG(0).random(shape) * 2).astype(helper.tensor_dtype_to_np_dtype(value.dtype))
    for ours, theirs in zip(run(raised.serialize(), feeds), run(path, feeds), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def i64(*items):
    return np.array(items, np.int64)


# op, opsets, inputs, constants, outputs, attributes: what changed its form between the opsets
W = RNG(3).standard_normal((1, 20, 4)).astype(F)
R = RNG(4).standard_normal((1, 20, 5)).astype(F)
CASES = [
    *[(op, (7, 11, 12), [CUBE], [], 1, {"axis": a}) for op in ("Softmax", "LogSoftmax", "Hardmax") for a in (0, 1, 2)],
    *[(op, (11, 12), [CUBE], [], 1, {"axis": -2}) for op in ("Softmax", "Hardmax")],
    ("Hardmax", (7,), [CUBE], [], 1, {}),
    *[("Upsample", (7,), [IMAGE], [], 1, {"mode": m, "scales": [1.0, 1.0, 1.7, 2.3]}) for m in ("nearest", "linear")],
    *[("Upsample", (9,), [IMAGE], [F([1, 1, 1.5, 2])], 1, {"mode": m}) for m in ("nearest", "linear")],
    *[
        ("Resize", (10,), [IMAGE], [F([1, 1, s, s])], 1, {"mode": m})
        for s in (2.3, 0.35, 0.6)
        for m in ("nearest", "linear")
    ],
    ("Resize", (11, 13, 18), [IMAGE], [F([]), F([1, 1, 1.5, 2])], 1, {"mode": "cubic"}),
    ("Clip", (7, 10), [IMAGE], [], 1, {"min": -0.5, "max": 0.5}),
    ("Clip", (7,), [IMAGE], [], 1, {"min": -0.5}),
    ("Pad", (7, 10), [IMAGE], [], 1, {"pads": [0, 0, 1, 1, 0, 0, 2, 2], "value": 1.5}),
    ("Pad", (7, 10), [IMAGE], [], 1, {"pads": [0, 0, 1, 1, 0, 0, 2, 2], "value": 1.5, "mode": "edge"}),
    ("Slice", (7, 9), [IMAGE], [], 1, {"starts": [1, 0], "ends": [3, 2], "axes": [2, 3]}),
    ("TopK", (7, 9), [MATRIX], [], 2, {"k": 2}),
    ("Dropout", (7, 10), [MATRIX], [], 1, {"ratio": 0.3}),
    (
        "BatchNormalization",
        (7, 9, 14),
        [IMAGE],
        [F([1, 2, 3, 4]), F([4, 3, 2, 1]), F([0, 1, 0, 1]), F([1, 2, 1, 2])],
        1,
        {},
    ),
    *[
        (f"Reduce{k}", (7, 11, 13, 17), [CUBE], [], 1, {"axes": [1], "keepdims": 0})
        for k in ("Mean", "Max", "L2", "Prod")
    ],
    ("ReduceSum", (7, 11), [CUBE], [], 1, {"axes": [1], "keepdims": 0}),
    ("Squeeze", (7, 11), [MATRIX[None]], [], 1, {"axes": [0]}),
    ("Unsqueeze", (7, 11), [MATRIX], [], 1, {"axes": [0, 3]}),
    ("Split", (7, 11, 13, 17), [CUBE], [], 2, {"axis": 2}),
    ("Split", (7, 11), [CUBE], [], 2, {"axis": 2, "split": [1, 3]}),
    ("Gemm", (7, 9, 11), [MATRIX], [np.ones((4, 5), F), np.arange(5, dtype=F)], 1, {"alpha": 0.5, "beta": 2.0}),
    ("Scatter", (9, 10), [MATRIX], [np.array([[0, 1, 2, 0]]), np.ones((1, 4), F)], 1, {"axis": 0}),
    ("AveragePool", (7, 10, 17), [IMAGE], [], 1, {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [2, 2]}),
    ("MaxPool", (7, 10), [IMAGE], [], 1, {"kernel_shape": [3, 3], "strides": [2, 2]}),
    ("Conv", (7, 11), [IMAGE], [RNG(5).standard_normal((8, 4, 3, 3)).astype(F)], 1, {}),
    ("LSTM", (7, 13), [CUBE], [W, R], 3, {"hidden_size": 5}),
    ("GRU", (7, 13), [CUBE], [W[:, :15], R[:, :15]], 2, {"hidden_size": 5, "linear_before_reset": 1}),
    ("QuantizeLinear", (10,), [MATRIX], [F(0.1), np.uint8(128)], 1, {}),
    ("Cast", (7, 9, 13), [MATRIX], [], 1, {"to": 6}),
    ("PRelu", (7, 9), [IMAGE], [np.full((4, 1, 1), 0.1, F)], 1, {}),
]


def one_node(op, opset, inputs, constants, outputs, attributes, dynamic):
    feeds = {f"x{i}": array for i, array in enumerate(inputs)}
    names = [*feeds, *(f"c{i}" for i in range(len(constants)))]
    graph = helper.make_graph(
        [helper.make_node(op, names, [f"y{i}" for i in range(outputs)], **attributes)],
        "g",
        [
            helper.make_tensor_value_info(n, 1, [f"{n}{i}" for i in range(a.ndim)] if dynamic else a.shape)
            for n, a in feeds.items()
        ],
        [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)],
        [numpy_helper.from_array(array, f"c{i}") for i, array in enumerate(constants)],
    )
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=max(4, minimum_ir(opset))
    )
    return made.SerializeToString(), feeds


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1][0]}")
def test_operators_that_changed_their_form(case, dynamic):
    op, opsets, *rest = case
    for opset in opsets:
        data, feeds = one_node(op, opset, *rest, dynamic)
        expected = run(data, feeds)
        for target in (10, 13, 21):
            if target <= opset:
                continue
            raised = raise_opset(parse(data), target)
            assert_consistent(raised)
            for ours, theirs in zip(run(raised.serialize(), feeds), expected, strict=True):
                assert ours.dtype == theirs.dtype
                np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        (
            ("GroupNormalization", 18, [IMAGE], [F([1, 2]), F([3, 4])], 1, {"num_groups": 2}),
            "cannot be converted from opset 18 to 21: GroupNormalization changes its meaning",
        ),
        (
            ("Resize", 10, [IMAGE], [F([1, 1, 0.5, 2])], 1, {"mode": "nearest"}),
            "cannot be converted from opset 10 to 21: node .* shrinks one axis and enlarges another",
        ),
        (("Dropout", 10, [IMAGE], [], 2, {}), "from opset 10 to 21: the model uses the mask of the Dropout node"),
        (("NoSuchOperator", 10, [IMAGE], [], 1, {}), "from opset 10 to 21: no opset has the operator NoSuchOperator"),
        (("Tile", 5, [IMAGE], [F([2]), F([1])], 1, {}), "from opset 5 to 21: onnx's converter fails at Tile "),
    ],
)
def test_what_cannot_be_converted_is_refused(case, sentence):
    data, _ = one_node(*case, False)
    with pytest.raises(ModelError, match=sentence) as error:
        raise_opset(parse(data), 21)
    assert error.value.hint == "Export it again with opset 21 or newer."


def test_sparse_initializers_are_refused_rather_than_dropped():
    proto = text_model("g (float[2,4] x) => (float[2,4] y) { y = Relu(x) }", opset=11)
    sparse = proto.graph.sparse_initializer.add(dims=[4])
    sparse.values.CopyFrom(numpy_helper.from_array(F([2]), "s"))
    sparse.indices.CopyFrom(numpy_helper.from_array(i64(1)))
    with pytest.raises(ModelError, match="'s' is a sparse initializer"):
        raise_opset(parse(proto.SerializeToString()), 13)


def test_bodies_custom_operators_functions_and_labels_survive():
    proto = text_model(
        "g (bool c, float[2,4] x) => (y) { [first] a = Squeeze <axes = [0]> (x3) [pick] b = If (c) <"
        "then_branch = t () => (float[2,4] o) { u = Unsqueeze <axes = [0]> (x) v = Squeeze <axes = [0]> (u) "
        "o = MatMul(v, w) }, else_branch = e () => (float[2,4] o) { o = Add(x, a) }> "
        '[custom] y = my.Custom <mode = "m", alpha = 0.5> (b) }',
        {"x3": np.ones((1, 2, 4), F), "w": np.eye(4, dtype=F)},
        opset=11,
    )
    proto.ir_version = 3
    proto.doc_string, proto.graph.doc_string = "model", "graph"
    proto.metadata_props.add(key="k", value="v")
    proto.training_info.add().algorithm.name = "training"
    for name, shape in (("x3", [1, 2, 4]), ("w", [4, 4])):
        proto.graph.input.append(helper.make_tensor_value_info(name, 1, shape))
    raised = raise_opset(parse(proto.SerializeToString()), 13)
    assert_consistent(raised)
    after = onnx.ModelProto.FromString(raised.serialize())
    assert [n.name for n in after.graph.node if n.name] == ["first", "pick", "custom"]
    custom = after.graph.node[-1]
    assert (custom.domain, helper.get_node_attr_value(custom, "mode")) == ("my", b"m")
    assert [i.name for i in after.graph.input] == ["c", "x", "x3", "w"]
    assert (after.doc_string, after.graph.doc_string, after.metadata_props[0].key) == ("model", "graph", "k")
    assert after.training_info[0].algorithm.name == "training"
    assert {o.domain: o.version for o in after.opset_import} == {"": 13, "my": 1}
    assert after.ir_version == 7
    branch = node_of(raised.graph, "If").bodies["then_branch"][0]
    squeeze = node_of(branch, "Squeeze")
    assert len(squeeze.inputs) == 2  # axes became an input, inside the body too
    del after.graph.node[-1]
    after.graph.node[-1].output[0] = "y"
    feeds = {"c": np.array(True), "x": X, "x3": np.ones((1, 2, 4), F), "w": np.eye(4, dtype=F)}
    assert run(after.SerializeToString(), feeds)[0].tolist() == X.tolist()


def test_functions_are_inlined_before():
    text = (
        '<ir_version: 8, opset_import: ["" : 17, "f" : 1]> g (float[2,4] x) => (float[2,4] y) { y = f.Twice(x) } '
        '<domain: "f", opset_import: ["" : 17]> Twice (p) => (q) { q = Add(p, p) }'
    )
    raised = raise_opset(parse(onnx.parser.parse_model(text).SerializeToString()), 21)
    assert ops(raised.graph) == ["Add"]
    assert run(raised.serialize(), {"x": X})[0].tolist() == (X * 2).tolist()


def test_patched_models_and_external_weights_convert(tmp_path):
    weight = RNG(0).standard_normal((64, 64)).astype(F)
    proto = text_model("g (float[2,64] x) => (float[2,64] y) { y = MatMul(x, w) }", {"w": weight}, opset=11)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="d", size_threshold=0)
    model = load(tmp_path / "m.onnx")
    y = value_of(model.graph, "y")
    patch = Patch(model.graph)
    patch.replace(y, patch.op("Neg", y, hint="negative"))
    commit([patch])
    raised = raise_opset(model, 13)
    assert raised.graph.initializers["w"].tensor is model.graph.initializers["w"].tensor
    feeds = {"x": RNG(1).standard_normal((2, 64)).astype(F)}
    np.testing.assert_array_equal(run(raised.serialize(), feeds)[0], -run(tmp_path / "m.onnx", feeds)[0])
    (tmp_path / "d").unlink()
    assert raise_opset(load(tmp_path / "m.onnx"), 13).opset == 13  # no weight is read


def stamped(op, opset, ir_version):
    model = model_of(f"g (float[2,4] x) => (float[2,4] y) {{ y = {op}(x) }}")
    model.opsets[""], model.ir_version = opset, ir_version
    return model


def test_stamps_that_are_too_new():
    assert make_loadable(stamped("Relu", 17, 8)) == ()
    model = stamped("Relu", 28, 14)
    said = "opset 28 and IR version 14 lowered to 26 and 13, which onnxruntime loads"
    assert make_loadable(model) == (said,)
    assert run(model.serialize(), {"x": X})[0].tolist() == X.clip(0).tolist()
    model = stamped("Celu", 28, 14)  # announced anew in opset 28 for more element types only
    infer_types(model)
    assert make_loadable(model) == (said,)
    for changed in ("Mod", "SwiGLU"):
        with pytest.raises(ModelError, match=f"is {changed} of opset 28; onnxruntime loads up to {MAX_OPSET}"):
            make_loadable(stamped(changed, 28, 14))
    with pytest.raises(ModelError, match="uses opset 99; this onnx knows opsets up to"):
        make_loadable(stamped("Relu", 99, 14))
    with pytest.raises(ValueError, match="opset 27 is beyond 26"):
        raise_opset(stamped("Relu", 17, 8), 27)


def test_what_the_converter_infers_from_open_sizes_is_left_out():
    """Paddle's exporter writes open sizes as -1. onnxruntime refused a reader of lines, whose LSTM became 8 bit."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Relu", ["m"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [-1, 3, 32, -1]) for name in ("x", "y"))
    y.type.tensor_type.ClearField("shape")
    graph = helper.make_graph(nodes, "g", [x], [y])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)], ir_version=6)
    inferred = onnx.version_converter.convert_version(proto, 13).graph.value_info
    assert [size.dim_value for size in inferred[0].type.tensor_type.shape.dim] == [-1, 3, 16, 0]
    converted = onnx.ModelProto.FromString(raise_opset(parse(proto.SerializeToString()), 13).serialize())
    assert not converted.graph.value_info
