"""`verify` and `inspect` say what onnxruntime makes of a model."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxq.api.runtime import Runtime
from onnxq.targets.host import host_saturates
from onnxq.verification.int8_saturation import LayerSaturation
from onnxq.verification.ort_graph import Fusion
from tests.helpers import build, node

STATIC = ("digits_cnn.onnx", "-d", "digits_calibration.npz")


@pytest.fixture
def quantized(digits_int8: Path, folder: Path) -> Path:
    return Path(shutil.copy(digits_int8, "q.onnx"))


def test_verify_shows_kernels(cli, quantized: Path) -> None:
    out = cli("verify", "q.onnx", "--against", *STATIC, "--samples", 2, "--no-layers").out
    assert "in onnxruntime" in out
    assert "QLinearConv" in out
    assert "quantized for nothing" not in out
    made = json.loads(cli("verify", "q.onnx", "--against", *STATIC, "--samples", 2, "--format", "json").out)
    assert made["fusion"]["kernels"]["QLinearConv"] > 0
    assert set(made["fusion"]["nodes"][0]) == {"node", "operator", "kernel", "sentence"}
    assert made["fusion"]["skipped"] is None
    assert set(made["saturation"]) == {"this_processor", "layers"}
    assert made["saturation"]["this_processor"] is host_saturates()


def test_inspect_shows_kernels_of_quantized_models(cli, quantized: Path) -> None:
    assert "QLinearConv" in cli("inspect", "q.onnx").out.partition("in onnxruntime")[2]
    assert "in onnxruntime" not in cli("inspect", "digits_cnn.onnx").out
    assert json.loads(cli("inspect", "digits_cnn.onnx", "--format", "json").out)["fusion"] is None
    assert json.loads(cli("inspect", "q.onnx", "--format", "json").out)["fusion"]["kernels"]["QLinearConv"] > 0


def unfused(count: int) -> onnx.ModelProto:
    weights = {"s": np.array(0.1, np.float32)}
    nodes = []
    for i in range(count):
        weights[f"w{i}"] = np.full((16, 16), i + 1, np.int8)
        nodes += [
            node("DequantizeLinear", f"w{i} s", f"f{i}"),
            node("MatMul", f"{'x' if not i else f'h{i - 1}'} f{i}", f"h{i}"),
        ]
    return build(nodes, {"x": [1, 16]}, (f"h{count - 1}",), weights)


def test_what_is_quantized_for_nothing_is_named(cli, folder: Path) -> None:
    onnx.save(unfused(14), "m.onnx")
    out = cli("inspect", "m.onnx").out
    assert "quantized for nothing" in out
    rows = [line.split(maxsplit=2) for line in out.splitlines()]
    assert ["n_h0", "MatMul", "computes in float, and its weight is dequantized on every run"] in rows
    assert "and 2 more" in out


def test_a_model_that_onnxruntime_refuses_is_still_inspected(cli, folder: Path) -> None:
    made = unfused(1)
    made.graph.node[1].op_type = "Unheard"
    onnx.save(made, "m.onnx")
    code, out, _ = cli("inspect", "m.onnx")
    assert code == 0
    assert "kernels are not known: onnxruntime cannot load m.onnx" in out


def shown(cli, monkeypatch: pytest.MonkeyPatch, *, saturates: bool) -> str:
    layers = tuple(LayerSaturation(f"layer{i}", "Conv", 3, 10) for i in range(7))
    found = Runtime(Fusion({}, ()), layers, saturates)
    monkeypatch.setattr("onnxq.api.runtime.look", lambda path, model: found)
    return str(cli("inspect", "q.onnx").out)


def test_saturation_is_told_where_it_happens(cli, quantized: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "products in 7 layers could saturate on this processor" in shown(cli, monkeypatch, saturates=True)
    assert "layer4 and 2 more. Quantize with --reduce-range." in shown(cli, monkeypatch, saturates=True)


def test_nothing_is_said_on_other_processors(cli, quantized: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "saturate" not in shown(cli, monkeypatch, saturates=False)
