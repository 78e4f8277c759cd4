"""`quantize --reduce-range`."""

import json
from pathlib import Path

from onnxq.ir import load
from onnxq.verification.int8_saturation import read_saturation


def test_no_layer_can_saturate(cli, folder: Path) -> None:
    quantize = ("quantize", "digits_cnn.onnx", "-d", "digits_calibration.npz", "--samples", 8, "--fast")
    assert cli(*quantize, "-o", "q.onnx", "--target", "cpu-vnni").code == 0
    assert read_saturation(load("q.onnx"))
    code, out, _ = cli(*quantize, "-o", "r.onnx", "--target", "cpu-vnni", "--reduce-range", "--format", "json")
    assert code == 0
    assert read_saturation(load("r.onnx")) == ()
    (note,) = [note for note in json.loads(out)["notes"] if "7 bits" in note]
    assert note.endswith("7 bits, so that no products saturate")
    assert "reduce_range = true" in load("r.onnx").metadata["onnxq_recipe"]
