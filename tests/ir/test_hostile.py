"""Files that are no models, damaged ones and malicious ones: a sentence each, never a traceback or a blow-up."""

from __future__ import annotations

import os
import random
import resource

import numpy as np
import onnx
import pytest
from ir_support import ROOT, assert_consistent, model_of, text_model

from onnxq.errors import ModelError, OnnxqError
from onnxq.ir import infer_types, load, parse
from onnxq.ir.passes import normalise
from onnxq.ir.wire import bytes_field, integer_field

SAMPLES = sorted((ROOT / "sample_models").glob("*.onnx"))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n", "is a Git LFS pointer, not the model"),
        (b"PK\x03\x04 a zip file", "is not a readable ONNX model"),
        (b"\x00" * 100, "is not a readable ONNX model"),
        (b"\xff" * 100, "is not a readable ONNX model"),
        (bytes_field(2, "producer"), "it holds no graph"),
        (bytes_field(7, b"") * 2, "it holds two graphs"),
        (bytes_field(7, bytes_field(1, bytes_field(4, "Relu"))), "imports no operator set"),
        (bytes_field(7, bytes_field(2, b"\xff\xfe")), "is not UTF-8"),
        (bytes_field(7, bytes_field(15, b"")) + bytes_field(8, b""), "a sparse initializer has no values"),
        (bytes((7 << 3 | 2,)) + b"\xff" * 9 + b"\x01", "is not a readable ONNX model"),
    ],
)
def test_files_that_are_no_models(tmp_path, content, sentence):
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=sentence) as error:
        load(path)
    assert str(path) in error.value.message
    assert error.value.hint
    assert ("git lfs pull" in error.value.hint) == content.startswith(b"version")


def test_paths_that_are_no_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, sentence in (("missing.onnx", "does not exist"), (".", "is a folder"), ("pipe", "is no regular file")):
        with pytest.raises(ModelError, match=sentence):
            load(tmp_path / name)
    with pytest.raises(ModelError, match=r"is no regular file|is empty"):
        load("/dev/null")
    with pytest.raises(ModelError, match="cannot be read"):
        load(tmp_path / ("n" * 300))


def everything(data: bytes) -> None:
    """What quantizing asks of a model before it decides anything."""
    model = parse(data)
    assert_consistent(model)
    normalise(model)
    infer_types(model)
    for node in model.graph.walk():
        node.attributes()
    for value in model.initializers():
        value.tensor.numpy()
    model.serialize()


def mutate(data: bytes, dice: random.Random) -> bytes:
    kind = dice.randrange(5)
    at, size = dice.randrange(len(data)), dice.randrange(1, 9)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + data[at + size :]
    if kind == 2:
        return data[:at] + dice.randbytes(size) + data[at:]
    if kind == 3:
        return data[:at] + dice.randbytes(size) + data[at + size :]
    return data[:at] + bytes((data[at] ^ 1 << dice.randrange(8),)) + data[at + 1 :]


def small_model() -> bytes:
    """Few weights, so that most mutations hit the structure; every kind of message is there."""
    proto = text_model(
        "g (bool c, float[N,4] x) => (float[N,4] z) <float[4] w = {1, 2, 3, 4}> {"
        " k = Constant <value_floats = [1.0, 2.0, 3.0, 4.0]> () a = Mul(x, k)"
        " [pick] y = If (c) <then_branch = t () => (float[N,4] o) { o = Mul(a, w) },"
        " else_branch = e () => (float[N,4] o) { p = Softmax <axis = -1> (a) o = Add(p, a) }>"
        ' s = Reshape <allowzero = 0> (y, shape) z = my.Custom <mode = "m"> (s) }',
        {"shape": np.int64([-1, 4]), "half": np.float16([1, 2])},
    )
    proto.metadata_props.add(key="k", value="v")
    return proto.SerializeToString()


def fuzz(count: int, seed: int) -> dict[str, int]:
    dice = random.Random(seed)
    sources = [small_model(), small_model(), *(path.read_bytes() for path in SAMPLES)]
    found, messages = {"fine": 0, "refused": 0}, []
    for _ in range(count):
        data = dice.choice(sources)
        for _ in range(dice.randrange(1, 4)):
            data = mutate(data, dice) or b"\x00"
        try:
            everything(data)
            found["fine"] += 1
        except OnnxqError as error:
            messages.append(error.message)
            found["refused"] += 1
    assert all(messages)
    return found


def test_mutations_give_sentences_only():
    found = fuzz(200, seed=1)
    assert found["refused"] > 50, found
    assert found["fine"] > 10, found


@pytest.mark.slow
def test_ten_thousand_mutations_give_sentences_only():
    found = fuzz(10_000, seed=2)
    assert found["refused"] > 2500, found


def test_every_truncation_of_a_small_model_is_a_sentence():
    data = small_model()
    for end in range(len(data)):
        try:
            everything(data[:end] or b"\x00")
        except OnnxqError:
            continue


@pytest.mark.parametrize("where", ["initializer", "typed", "constant", "input", "external"])
def test_enormous_dimensions_are_not_allocated(where):
    """2^40 elements claimed by a few bytes: at most a sentence, and never the memory."""
    proto = text_model("g (float[2,4] x) => (y) { k = Constant <value = float[1] {0}> () a = Mul(x, k) y = Add(a, w) }")
    huge = onnx.TensorProto(name="w", data_type=1, dims=[1 << 40])
    if where == "initializer":
        huge.raw_data = b"abcd"
    elif where == "external":
        huge.data_location = 1
        huge.external_data.add(key="location", value="w")
    else:
        huge.float_data.append(1)
    if where == "constant":
        proto.graph.node[0].attribute[0].t.CopyFrom(huge)
        huge = onnx.numpy_helper.from_array(np.float32([1]), "w")
    elif where == "input":
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1 << 40
        huge = onnx.numpy_helper.from_array(np.float32([1]), "w")
    proto.graph.initializer.append(huge)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if where == "input":
        everything(proto.SerializeToString())
    else:
        with pytest.raises(ModelError):
            everything(proto.SerializeToString())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


def test_attributes_that_cannot_be_read_name_their_node():
    model = model_of("g (float[2,4] x) => (float[2,4] y) { [first] y = Elu <alpha = 0.5> (x) }")
    node = model.graph.nodes[0]
    node.spans["alpha"] = memoryview(bytes_field(1, "alpha") + bytes_field(2, b"ab") + integer_field(20, 77))
    with pytest.raises(ModelError, match="attribute 'alpha' of node first cannot be read"):
        node.attribute("alpha")


def test_a_tensor_in_an_attribute_that_cannot_be_read_names_its_node():
    model = model_of(
        "g (float[2,4] x) => (float[2,4] y) { [first] k = Constant <value = float[1] {1}> () y = Add(x, k) }"
    )
    node = model.graph.nodes[0]
    node.spans["value"] = memoryview(bytes_field(1, "value") + bytes_field(5, b"\x0a\x7f"))
    for read in (node.tensor_attribute, node.attribute):
        with pytest.raises(ModelError, match="attribute 'value' of node first cannot be read"):
            read("value")
    with pytest.raises(ModelError, match="attribute 'value' of node first cannot be read"):
        normalise(model)
