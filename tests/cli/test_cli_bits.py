"""`quantize --bits` and `--block`: weights in blocks, for decoders."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import build, floats, node
from onnx import helper

from onnxq.pipeline.quantize import quantize
from onnxq.planning.recipe import in_blocks


@pytest.fixture
def source():
    """Two products; the second one is the head."""
    weights = {"w": floats(64, 48, scale=0.3), "v": floats(48, 32, scale=0.3, seed=1)}
    nodes = [node("MatMul", "x w", "a"), node("Relu", "a", "b"), node("MatMul", "b v", "y")]
    return build(nodes, {"x": [3, 64]}, ["y"], weights, 21)


def written(name):
    first, _, last = onnx.load(name).graph.node
    return [
        (made.op_type, {one.name: onnx.helper.get_attribute_value(one) for one in made.attribute})
        for made in (first, last)
    ]


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("data", [False, True])
def test_bits_and_block_write_one_operator_and_the_head_has_8_bits(cli, source, tmp_path, monkeypatch, bits, data):
    monkeypatch.chdir(tmp_path)
    onnx.save(source, "m.onnx")
    np.savez("d.npz", x=floats(30, 64))
    given = ["-d", "d.npz"] if data else []
    code, _, err = cli("quantize", "m.onnx", *given, "-o", "q.onnx", "--bits", str(bits), "--block", "16")
    assert code == 0, err
    common = {"block_size": 16, "accuracy_level": 4}
    assert written("q.onnx") == [
        ("MatMulNBits", {"K": 64, "N": 48, "bits": bits} | common),
        ("MatMulNBits", {"K": 48, "N": 32, "bits": 8} | common),
    ]


def test_a_target_without_the_operator_gets_dequantizelinear(cli, source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(source, "m.onnx")
    code, _, err = cli("quantize", "m.onnx", "-o", "q.onnx", "--bits", "4", "--target", "generic")
    assert code == 0, err
    made = [made.op_type for made in onnx.load("q.onnx").graph.node]
    assert sorted(made) == ["DequantizeLinear"] * 2 + ["MatMul"] * 2 + ["Relu"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--bits", "5"], "--bits cannot be 5"),
        (["--bits", "4", "--block", "24"], "--block cannot be 24"),
        (["--block", "32"], "--block says how many weights share a scale"),
        (["--bits", "4", "--recipe", "weight-int8"], "--bits chooses the recipe itself"),
    ],
)
def test_refusals_come_before_any_output(cli, source, tmp_path, monkeypatch, given, message):
    monkeypatch.chdir(tmp_path)
    onnx.save(source, "m.onnx")
    code, _, err = cli("quantize", "m.onnx", "-o", "q.onnx", *given)
    assert code == 2
    assert message in err
    assert not (tmp_path / "q.onnx").exists()


def test_a_decoder_without_data_is_calibrated_on_what_it_writes(tmp_path):
    model = decoder_of_tokens()
    onnx.save(model, tmp_path / "m.onnx")
    report = quantize(tmp_path / "m.onnx", in_blocks(4), output=tmp_path / "q.onnx")
    assert "chose codes on 16 token sequences that the model generated itself" in report.notes
    assert [found.method for found in report.weights] == ["output error"]


def test_tables_show_what_users_of_a_decoder_see(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(decoder_of_tokens(), "m.onnx")
    np.savez("d.npz", ids=np.random.default_rng(0).integers(0, 40, (6, 20)))
    code, out, err = cli("quantize", "m.onnx", "-d", "d.npz", "-o", "q.onnx", "--bits", "4")
    assert code == 0, err
    assert all(word in out for word in ("decoding", "perplexity", "greedy", "one token", "a prompt"))
    code, out, err = cli("verify", "q.onnx", "--against", "m.onnx", "-d", "d.npz")
    assert code == 0, err
    assert all(word in out for word in ("decoding", "perplexity", "greedy", "one token", "a prompt"))


def decoder_of_tokens():
    weights = {"table": floats(40, 32, seed=1), "head": floats(32, 40, seed=2)}
    nodes = [node("Gather", "table ids", "e"), node("MatMul", "e head", "logits")]
    ids = helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["batch", "length"])
    logits = helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["batch", "length", 40])
    stored = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", [ids], [logits], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
