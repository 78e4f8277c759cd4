"""`quantize --bits` and `--block`: weights in blocks, for decoders."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import build, floats, node


@pytest.fixture
def source():
    weights = {"w": floats(64, 48, scale=0.3)}
    return build([node("MatMul", "x w", "y")], {"x": [3, 64]}, ["y"], weights, 21)


def written(name):
    (made,) = onnx.load(name).graph.node
    return made.op_type, {one.name: onnx.helper.get_attribute_value(one) for one in made.attribute}


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("data", [False, True])
def test_bits_and_block_write_one_operator(cli, source, tmp_path, monkeypatch, bits, data):
    monkeypatch.chdir(tmp_path)
    onnx.save(source, "m.onnx")
    np.savez("d.npz", x=floats(30, 64))
    given = ["-d", "d.npz"] if data else []
    code, _, err = cli("quantize", "m.onnx", *given, "-o", "q.onnx", "--bits", str(bits), "--block", "16")
    assert code == 0, err
    op_type, attributes = written("q.onnx")
    expected = {"K": 64, "N": 48, "bits": bits, "block_size": 16, "accuracy_level": 4}
    assert (op_type, attributes) == ("MatMulNBits", expected)


def test_a_target_without_the_operator_gets_dequantizelinear(cli, source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(source, "m.onnx")
    code, _, err = cli("quantize", "m.onnx", "-o", "q.onnx", "--bits", "4", "--target", "generic")
    assert code == 0, err
    assert [made.op_type for made in onnx.load("q.onnx").graph.node] == ["DequantizeLinear", "MatMul"]


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
