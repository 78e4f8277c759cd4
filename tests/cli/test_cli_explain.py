"""`onnxq explain`."""

import json
from pathlib import Path

STATIC = ("-d", "digits_calibration.npz", "--samples", "8")


def squeezed(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_in_text(cli, folder: Path) -> None:
    code, out, err = cli("explain", "digits_cnn.onnx", "Conv_3", *STATIC)
    assert (code, err) == (0, "")
    lines = squeezed(out)
    assert lines[0] == "Conv_3 Conv → static-int8"
    assert "rule recipe auto: scheme auto" in lines
    assert "reads 21 float32[batch, 32, 8, 8] made by Relu_2 (Relu, float)" in lines
    assert any(line.startswith("times ") and "µs in 8 bit" in line for line in lines)
    assert any(line.startswith("21 uint8 0.0") for line in lines)


def test_several_nodes(cli, folder: Path) -> None:
    code, out, _ = cli("explain", "digits_cnn.onnx", "Conv_*")
    assert code == 0
    heads = [line for line in squeezed(out) if " → " in line]
    assert heads == ["Conv_0 Conv → float", "Conv_3 Conv → weight-int8", "Conv_7 Conv → weight-int8"]


def test_statistics_are_enough_for_ranges(cli, folder: Path) -> None:
    assert cli("calibrate", "digits_cnn.onnx", *STATIC, "-o", "s.npz").code == 0
    found = json.loads(cli("explain", "digits_cnn.onnx", "Conv_3", "--stats", "s.npz", "--format", "json").out)
    (node,) = found["nodes"]
    assert (found["schema"], found["model"]) == (1, "digits_cnn.onnx")
    assert [activation["tensor"] for activation in node["activations"]] == ["21", "24"]
    assert node["layers"] == []


def test_a_name_that_nothing_has(cli, folder: Path) -> None:
    code, out, err = cli("explain", "digits_cnn.onnx", "Cov_3")
    assert (code, out) == (2, "")
    assert "hint: Did you mean 'Conv_3'" in err
