"""What nothing changes goes out as it came."""

from __future__ import annotations

import tracemalloc

import onnx
import pytest
from helpers import run
from ir_support import MODEL_FILES, ROOT, X, assert_consistent, model_of, node_of, text_model, value_of

from onnxq.ir import Patch, commit, infer_types, load, parse, save


@pytest.mark.parametrize("path", MODEL_FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_load_then_save_gives_the_same_bytes(path, tmp_path):
    model = load(path)
    assert_consistent(model)
    save(model, tmp_path / "copy.onnx")
    assert (tmp_path / "copy.onnx").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("path", MODEL_FILES[::7], ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_skeleton_keeps_structure_and_the_weights_come_back(path):
    model = load(path)
    copy = model.copy()
    assert_consistent(copy)
    assert copy.sha256 == model.sha256
    ours, theirs = (onnx.ModelProto.FromString(m.serialize()) for m in (model, copy))
    for proto in (ours, theirs):
        del proto.graph.value_info[:]  # stated types of inner tensors are not believed, so not kept
    assert ours.graph.node == theirs.graph.node
    assert sorted(ours.graph.initializer, key=str) == sorted(theirs.graph.initializer, key=str)


def test_inference_reads_every_model():
    for path in (ROOT / "sample_models").glob("*.onnx"):
        model = load(path)
        infer_types(model)
        assert all(v.dtype is not None for n in model.graph.nodes for v in n.outputs if v), path


def test_untouched_nodes_and_weights_keep_their_bytes():
    proto = text_model(
        "g (float[2,4] x) => (float[2,4] y) <float[4] w = {1, 2, 3, 4}> "
        "{ [first] a = Mul(x, w) [second] b = Relu(a) [third] y = Neg(b) }"
    )
    proto.graph.node[0].doc_string = "kept"
    proto.doc_string, proto.producer_name = "a model", "a test"
    proto.metadata_props.add(key="k", value="v")
    proto.training_info.add().algorithm.name = "training"
    proto.graph.quantization_annotation.add(tensor_name="a")
    model = parse(proto.SerializeToString())
    patch = Patch(model.graph, node_of(model.graph, "Neg"))
    b = value_of(model.graph, "b")
    patch.replace(b, patch.op("Identity", b, hint="b_copy"))
    commit([patch])
    assert_consistent(model)
    after = onnx.ModelProto.FromString(model.serialize())
    assert [n.op_type for n in after.graph.node] == ["Mul", "Relu", "Identity", "Neg"]
    assert after.graph.node[0] == proto.graph.node[0]
    assert after.graph.node[3] == proto.graph.node[2]
    assert after.graph.initializer == proto.graph.initializer
    assert (after.doc_string, after.metadata_props, after.training_info) == (
        proto.doc_string,
        proto.metadata_props,
        proto.training_info,
    )
    assert after.graph.quantization_annotation == proto.graph.quantization_annotation
    assert run(model.serialize(), {"x": X})[0].tolist() == run(proto.SerializeToString(), {"x": X})[0].tolist()


def test_changed_header_is_written_and_nothing_else():
    model = model_of("g (float[2,4] x) => (float[2,4] y) { y = Relu(x) }")
    before = onnx.ModelProto.FromString(model.serialize())
    model.metadata["onnxq"] = "1"
    model.opsets[""] = 18
    model.ir_version = 9
    after = onnx.ModelProto.FromString(model.serialize())
    assert after.graph == before.graph
    assert {o.domain: o.version for o in after.opset_import} == {"": 18, "my": 1}
    assert (after.ir_version, after.metadata_props[0].key) == (9, "onnxq")
    assert parse(model.serialize()).serialize() == model.serialize()


def test_stale_types_are_dropped_and_those_of_custom_operators_kept():
    proto = text_model("g (float[2,4] x) => (y) { a = Relu(x) b = my.Custom(a) y = Neg(b) }")
    for name in ("a", "b"):
        proto.graph.value_info.append(onnx.helper.make_tensor_value_info(name, 1, [7, 7]))
    model = parse(proto.SerializeToString())
    patch = Patch(model.graph)
    patch.rewire(node_of(model.graph, "Neg"), 0, patch.op("Identity", value_of(model.graph, "b"), hint="c"))
    commit([patch])
    after = onnx.ModelProto.FromString(model.serialize())
    assert [info.name for info in after.graph.value_info] == ["b"]


def test_extra_outputs_come_behind_the_real_ones_and_run():
    model = model_of("g (float[N,4] x) => (float[N,4] y) { a = Relu(x) y = Neg(a) }")
    for infer in (False, True):
        if infer:
            infer_types(model)
        y, a = run(model.serialize(extra_outputs=[value_of(model.graph, "a")]), {"x": X})
        assert a.tolist() == X.clip(0).tolist()
        assert y.tolist() == (-X.clip(0)).tolist()
    assert len(run(model.serialize(), {"x": X})) == 1


def test_nodes_out_of_order_are_sorted_and_cycles_refused():
    proto = text_model("g (float[2,4] x) => (float[2,4] y) { a = Relu(x) b = Neg(a) y = Abs(b) }")
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes[::-1])
    model = parse(proto.SerializeToString())
    assert_consistent(model)
    assert [n.op_type for n in model.graph.nodes] == ["Relu", "Neg", "Abs"]
    assert model.serialize() == proto.SerializeToString()
    proto.graph.node[2].input[0] = "b"
    with pytest.raises(Exception, match="needs its own result"):
        parse(proto.SerializeToString())


def test_long_lists_of_numbers_are_not_walked_when_a_model_is_read(tmp_path) -> None:
    """A tree of LightGBM has millions: a tuple for each took a gigabyte of memory, and minutes."""
    node = onnx.helper.make_node("Trees", ["x"], ["y"], domain="others", nodes_ids=range(300_000), base=[0.5] * 300_000)
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("others", 1)]
    made = onnx.helper.make_model(onnx.helper.make_graph([node], "g", value[:1], value[1:]), opset_imports=opsets)
    onnx.save(made, tmp_path / "m.onnx")
    tracemalloc.start()
    try:
        model = load(tmp_path / "m.onnx")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert model.graph.nodes[0].attribute("nodes_ids") == list(range(300_000))
    save(model, tmp_path / "copy.onnx")
    assert (tmp_path / "copy.onnx").read_bytes() == (tmp_path / "m.onnx").read_bytes()
