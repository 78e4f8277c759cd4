"""Every threshold of `verify` can be met and missed, and says by how much."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

METRIC = """
import numpy as np

def accuracy(outputs, labels):
    return 100 * float((np.concatenate(outputs["logits"]).argmax(axis=-1) == np.concatenate(labels["_label"])).mean())

def nearness(outputs, labels):
    return -float(np.abs(np.concatenate(outputs["logits"]) - labels["_float"][0]).mean())
"""


@pytest.fixture
def quantized(digits_int8: Path, folder: Path) -> Path:
    import onnxruntime as ort

    images = np.load("digits_calibration.npz")["image"][:16]
    exact = ort.InferenceSession("digits_cnn.onnx").run(None, {"image": images})[0]
    np.savez("d.npz", image=images, _label=exact.argmax(axis=-1), _float=exact)
    Path("own.py").write_text(METRIC)
    return Path(shutil.copy(digits_int8, "q.onnx"))


def verify(cli, *options: object):
    return cli("verify", "q.onnx", "--against", "digits_cnn.onnx", "-d", "d.npz", "--no-layers", *options)


@pytest.mark.parametrize(
    ("option", "met", "missed", "sentence"),
    [
        ("--min-sqnr", 10, 90, r"output 'logits' has \d+\.\d+ dB, \d+\.\d+ dB below the 90 dB asked for"),
        ("--max-abs", 100, 1e-6, r"output 'logits' is off by up to .*, .* above 1e-06"),
        ("--min-cosine", 0.9, 1, r"output 'logits' has a cosine of 0\.9\d+, \S+ below 1"),
        ("--max-drop", 100, 0, r"own:nearness fell by \S+, \S+ more than 0"),
    ],
)
def test_threshold(cli, quantized: Path, option: str, met: float, missed: float, sentence: str) -> None:
    more = ("--metric", "own:nearness") if option == "--max-drop" else ()
    assert verify(cli, option, met, *more).code == 0
    code, out, err = verify(cli, option, missed, *more)
    assert code == 1
    assert re.search(sentence, err), err
    assert "logits" in out
    assert "\nhint: Quantize with --min-sqnr, or --max-drop for a metric, which leave sensitive nodes float" in err
    result = json.loads(verify(cli, option, missed, *more, "--format", "json").out)
    assert not result["passed"]
    assert re.search(sentence, result["missed"][0])


def test_agreement_is_missed_by_another_model(cli, quantized: Path) -> None:
    import onnx

    model = onnx.load("digits_cnn.onnx")
    bias = next(w for w in model.graph.initializer if list(w.dims) == [10])
    bias.CopyFrom(onnx.numpy_helper.from_array(np.array([1e4] + [0] * 9, np.float32), bias.name))
    onnx.save(model, "q.onnx")
    code, _, err = verify(cli, "--min-agreement", 90)
    assert code == 1
    assert re.search(r"output 'logits' agrees in \d+\.\d\d %, \d+\.\d\d points below 90 %", err)


def test_every_threshold_missed_is_named(cli, quantized: Path) -> None:
    code, _, err = verify(cli, "--min-sqnr", 90, "--max-abs", 0)
    assert code == 1
    assert "dB below" in err
    assert "above 0" in err


def test_the_metric_is_shown(cli, quantized: Path) -> None:
    out = verify(cli, "--metric", "own:accuracy").out
    line = next(line for line in out.splitlines() if "own:accuracy" in line)
    assert line.split()[:2] == ["own:accuracy", "100"]
    made = json.loads(verify(cli, "--metric", "own:accuracy", "--format", "json").out)["comparison"]["metric"]
    assert made["name"] == "own:accuracy"
    assert made["drop"] == made["float_value"] - made["quantized_value"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("-d", "d.npz", "--max-drop", 1), "max-drop needs a metric"),
        (("--metric", "own:accuracy"), "--metric needs data"),
        (("-d", "d.npz", "--metric", "nowhere:f"), "nowhere:f cannot be imported"),
        (("-d", "d.npz", "--max-abs", "nan"), "--max-abs is nan, and has to be a finite number"),
    ],
)
def test_options_that_need_others(cli, quantized: Path, options, sentence: str) -> None:
    code, _, err = cli("verify", "q.onnx", "--against", "digits_cnn.onnx", *options)
    assert code == 2
    assert sentence in err


def test_a_metric_needs_a_float_model(cli, quantized: Path) -> None:
    code, _, err = cli("verify", "q.onnx", "-d", "d.npz", "--metric", "own:accuracy")
    assert code == 2
    assert "--metric needs a float model to compare with" in err


def test_layers_need_a_float_model_whether_shown_or_not(cli, quantized: Path) -> None:
    for option in ("--layers", "--no-layers"):
        code, _, err = cli("verify", "q.onnx", option)
        assert code == 2
        assert err.startswith(f"error: {option} needs a float model")


def test_a_threshold_that_random_numbers_miss_asks_for_data(cli, quantized: Path) -> None:
    result = cli("verify", "q.onnx", "--against", "digits_cnn.onnx", "--no-layers", "--min-sqnr", 99)
    assert result.code == 1
    assert result.err.splitlines()[-1] == "hint: Give --data: random numbers say little about accuracy."
