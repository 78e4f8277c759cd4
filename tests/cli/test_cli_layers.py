"""`verify` shows where the error enters."""

import json
import shutil
from pathlib import Path

import pytest

STATIC = ("digits_cnn.onnx", "-d", "digits_calibration.npz")


@pytest.fixture
def quantized(digits_int8: Path, folder: Path) -> Path:
    return Path(shutil.copy(digits_int8, "q.onnx"))


def verify(cli, *options: object):
    return cli("verify", "q.onnx", "--against", *STATIC, "--samples", 4, *options)


def test_the_worst_layers_are_shown(cli, quantized: Path) -> None:
    code, out, err = verify(cli)
    assert (code, err) == (0, "")
    head, *rows = out[out.index("own") :].splitlines()
    assert head.split("  ")[-1].strip() == "layer that adds most to the error"
    own = [float(row.split(" dB")[0]) for row in rows]
    assert own == sorted(own)
    assert 0 < len(own) <= 12


def test_all_layers_in_the_order_of_the_graph(cli, quantized: Path) -> None:
    listed = json.loads(verify(cli, "--format", "json").out)["comparison"]["layers"]
    assert len(listed) > 5
    assert set(listed[0]) == {"node", "op_type", "tensor", "sqnr", "own", "inherited", "max_abs", "rescaled"}
    out = verify(cli, "--layers").out
    shown = [line.split()[-1].removesuffix(" *") for line in out[out.index("own") :].splitlines()[1:]]
    assert shown == [layer["node"] for layer in listed]


def test_layers_can_be_left_out(cli, quantized: Path) -> None:
    assert "inherited" not in verify(cli, "--no-layers").out
    assert json.loads(verify(cli, "--no-layers", "--format", "json").out)["comparison"]["layers"] == []


def test_layers_need_a_float_model(cli, quantized: Path) -> None:
    code, _, err = cli("verify", "q.onnx", "--layers")
    assert code == 2
    assert "--layers needs a float model to compare with" in err


def test_a_report_file_has_the_layers(cli, folder: Path) -> None:
    assert cli("quantize", *STATIC, "--samples", 8, "-o", "q.onnx", "--report", "r.json").code == 0
    layers = json.loads(Path("r.json").read_text())["comparison"]["layers"]
    assert layers[0]["node"].startswith("Conv")
