"""The sample models are what their README says: valid, small, accurate, and each with the traits it is there for."""

import re
import runpy
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import ALL, session
from onnx import helper, numpy_helper

FOLDER = Path(__file__).parents[1] / "sample_models"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
VERSIONS = {  # name → (opset, IR version, bytes, accuracy in percent), read from the README's first table
    name: (int(opset), int(ir), int(size.replace(",", "")), float(percent))
    for name, opset, ir, size, percent in re.findall(
        r"^\| `(\w+\.onnx)` \|[^|]*\| (\d+) / (\d+) \| ([\d,]+) \| ([\d.]+) % \|$", README, re.MULTILINE
    )
}
NAMES = ["digits_attention.onnx", "digits_cnn.onnx", "digits_depthwise.onnx", "digits_if.onnx", "digits_lstm.onnx"]
ONE_IMAGE = 100 / 597  # percentage points
accuracy = runpy.run_path(str(FOLDER / "accuracy.py"))["accuracy"]


def data(name):
    with np.load(FOLDER / name) as arrays:
        return dict(arrays)


def branches(model: onnx.ModelProto) -> dict[str, onnx.GraphProto]:
    (node,) = (n for n in model.graph.node if n.op_type == "If")
    return {attribute.name: attribute.g for attribute in node.attribute}


def operators(graph: onnx.GraphProto) -> Counter:
    return Counter(node.op_type for node in graph.node)


def attribute(node: onnx.NodeProto, name: str):
    return next(helper.get_attribute_value(a) for a in node.attribute if a.name == name)


def weights(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    bodies = [a.g for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    return [*graph.initializer, *(w for body in bodies for w in weights(body))]


@pytest.fixture(scope="module")
def models():
    return {name: onnx.load(FOLDER / name) for name in NAMES}


def test_the_readme_lists_exactly_the_files_of_the_folder():
    listed = set(re.findall(r"^\| `([\w.]+)` \|", README, re.MULTILINE))
    # what onnxq itself leaves beside a model when somebody tries it is not a sample
    present = {
        p.name for p in FOLDER.iterdir() if p.is_file() and not p.name.endswith(".int8.onnx") and p.name != "README.md"
    }
    assert listed == present
    assert sorted(VERSIONS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_valid_and_as_listed(models, name):
    model = models[name]
    onnx.checker.check_model(model, full_check=True)
    opset, ir_version, size, _ = VERSIONS[name]
    assert [(o.domain, o.version) for o in model.opset_import] == [("", opset)]
    assert model.ir_version == ir_version
    assert (FOLDER / name).stat().st_size == size < 500_000


@pytest.mark.parametrize("name", NAMES)
def test_the_weights_are_most_of_the_file_and_raw(models, name):
    tensors = weights(models[name].graph)
    assert all(t.HasField("raw_data") and not t.external_data for t in tensors)
    assert sum(len(t.raw_data) for t in tensors) > 0.9 * VERSIONS[name][2]


@pytest.mark.parametrize("name", NAMES)
def test_accuracy_is_as_listed(name):
    listed = VERSIONS[name][3]
    measured = 100 * accuracy(FOLDER / name)
    assert measured >= 97
    # another processor may round one close call the other way
    assert measured == pytest.approx(listed, abs=1.01 * ONE_IMAGE)


@pytest.mark.parametrize("name", NAMES)
def test_one_input_one_output_and_any_batch(models, name):
    model = models[name]
    stored = {w.name for w in model.graph.initializer}
    assert [i.name for i in model.graph.input if i.name not in stored] == ["image"]
    run = session(model.SerializeToString(), ALL)
    images = data("digits_test.npz")["image"]
    for batch in (1, 7):
        (logits,) = run.run(None, {"image": images[:batch]})
        assert logits.shape == (batch, 10)
        assert logits.dtype == np.float32


@pytest.mark.parametrize("name", [n for n in NAMES if n != "digits_if.onnx"])  # there the batch picks the branch
def test_an_image_gives_the_same_logits_alone_and_in_a_batch(models, name):
    run = session(models[name].SerializeToString(), ALL)
    images = data("digits_calibration.npz")["image"][:8]
    (together,) = run.run(None, {"image": images})
    alone = np.concatenate([run.run(None, {"image": image[None]})[0] for image in images])
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-4)  # float32 sums in another order


def test_the_data_are_digits_and_the_two_files_share_no_image():
    calibration, test = data("digits_calibration.npz"), data("digits_test.npz")
    assert list(calibration) == ["image"]
    assert sorted(test) == ["_label", "image"]
    assert calibration["image"].shape == (100, 1, 8, 8)
    assert test["image"].shape == (597, 1, 8, 8)
    for images in (calibration["image"], test["image"]):
        assert images.dtype == np.float32
        np.testing.assert_array_equal(images * 16, np.clip(np.round(images * 16), 0, 16))
    assert test["_label"].dtype == np.int64
    assert (np.bincount(test["_label"], minlength=10) >= 50).all()
    assert not {i.tobytes() for i in calibration["image"]} & {i.tobytes() for i in test["image"]}


def test_cnn_keeps_its_normalization_and_lists_weights_as_inputs(models):
    graph = models["digits_cnn.onnx"].graph
    assert {w.name for w in graph.initializer} == {i.name for i in graph.input} - {"image"}
    assert operators(graph)["BatchNormalization"] == 3
    assert all(len(node.input) == 2 for node in graph.node if node.op_type == "Conv")
    stored = {w.name: numpy_helper.to_array(w) for w in graph.initializer}
    for layer in (1, 2, 3):  # statistics of training, not the 0 and 1 of the first moment
        assert np.abs(stored[f"bn{layer}.running_mean"]).max() > 0.1
        assert np.abs(stored[f"bn{layer}.running_var"] - 1).max() > 0.1
        assert np.ptp(stored[f"bn{layer}.weight"]) > 0.1
    read = {name for node in graph.node for name in node.input}
    assert set(stored) - read == {f"bn{layer}.num_batches_tracked" for layer in (1, 2, 3)}


def test_depthwise_has_depthwise_convolutions_that_reach_both_bounds_of_clip(models):
    model = onnx.ModelProto()
    model.CopyFrom(models["digits_depthwise.onnx"])
    assert operators(model.graph) >= Counter({"Conv": 11, "Clip": 8, "Add": 2})
    assert [attribute(n, "group") for n in model.graph.node if n.op_type == "Conv" and attribute(n, "group") > 1] == [
        128,
        128,
        256,
    ]
    clipped = [node.output[0] for node in model.graph.node if node.op_type == "Clip"]
    model.graph.output.extend(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in clipped)
    values = session(model.SerializeToString(), ALL).run(clipped, {"image": data("digits_calibration.npz")["image"]})
    assert all((v == 0).mean() > 0.1 for v in values)
    assert sum((v == 6).any() for v in values) >= 4


def test_attention_has_the_operators_of_a_transformer(models):
    graph = models["digits_attention.onnx"].graph
    expected = {"LayerNormalization": 5, "Softmax": 2, "Gelu": 2, "MatMul": 12}
    assert {op: operators(graph)[op] for op in expected} == expected
    typed = {value.name for value in graph.value_info}
    assert all(node.output[0] in typed | {"logits"} for node in graph.node)


def test_lstm_has_two_directions_and_optional_inputs_left_out(models):
    first, second = (node for node in models["digits_lstm.onnx"].graph.node if node.op_type == "LSTM")
    assert attribute(first, "direction") == b"bidirectional"
    assert first.input[4] == ""
    assert first.input[5]
    assert len(second.input) == 4
    assert second.output[0] == ""


def test_if_keeps_all_weights_in_its_bodies_and_each_body_is_a_classifier(models):
    model = models["digits_if.onnx"]
    assert not model.graph.initializer
    found = branches(model)
    assert operators(found["then_branch"]) >= Counter({"Conv": 2, "Gemm": 2})
    assert operators(found["else_branch"]) >= Counter({"MatMul": 3, "Add": 3})
    for graph in found.values():
        assert sum(len(w.raw_data) for w in graph.initializer) > 100_000
        output = helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["batch", 10])
        rename = helper.make_node("Identity", [graph.output[0].name], ["logits"])
        alone = helper.make_graph([*graph.node, rename], graph.name, model.graph.input, [output], graph.initializer)
        body = helper.make_model(alone, opset_imports=model.opset_import, ir_version=model.ir_version)
        assert accuracy(body.SerializeToString()) >= 0.97


@pytest.mark.parametrize(("file", "bright"), [("digits_calibration.npz", 41), ("digits_test.npz", 291)])
def test_both_branches_of_if_are_reached(models, file, bright):
    model = onnx.ModelProto()
    model.CopyFrom(models["digits_if.onnx"])
    (condition,) = (node.input[0] for node in model.graph.node if node.op_type == "If")
    model.graph.output.append(helper.make_tensor_value_info(condition, onnx.TensorProto.BOOL, []))
    run = session(model.SerializeToString(), ALL)
    taken = [bool(run.run([condition], {"image": image[None]})[0]) for image in data(file)["image"]]
    assert sum(taken) == bright
    assert re.search(rf"\b{bright} {'test' if 'test' in file else 'calibration'} images\b", README)
