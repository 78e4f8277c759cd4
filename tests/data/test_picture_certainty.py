"""Pictures that are turned, inverted or standardised are told by the certainty of classifiers of digits."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import parser

from onnxq.data.examine import examine
from onnxq.data.input_summary import InputSummaries
from onnxq.data.pictures.certainty import certainty_warnings, only_pictures
from onnxq.data.samples import input_specs
from onnxq.ir import Model, load, parse
from onnxq.ir.shape_inference.types import infer_types
from onnxq.runtime.session import InMemory, open_session

SAMPLES = Path(__file__).parents[2] / "sample_models"
DIGITS = np.load(SAMPLES / "digits_test.npz")["image"][:60]


def said(arrays: np.ndarray, model: Model | None = None) -> str:
    model = load(SAMPLES / "digits_cnn.onnx") if model is None else model
    found = examine(model, [{model.graph.inputs[0].name: row[None].astype(np.float32)} for row in arrays]).warnings
    return " ".join(f"{warning.code}: {warning.message}. {warning.remedy}" for warning in found)


def test_right_digits_raise_nothing() -> None:
    assert said(DIGITS) == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: 1 - x, "with dark and bright exchanged"),
        (lambda x: x.swapaxes(2, 3), "array.swapaxes(2, 3) exchanges height and width"),
    ],
    ids=["inverted", "transposed"],
)
def test_a_model_that_is_surer_of_changed_samples_is_believed(
    change: Callable[[np.ndarray], np.ndarray], words: str
) -> None:
    found = said(change(DIGITS))
    assert found.startswith("surer-otherwise: the model is surer of nearly all of 24 samples of 'image'")
    assert words in found


def test_pictures_that_are_turned_by_half_are_told() -> None:
    model = load(SAMPLES / "digits_depthwise.onnx")
    assert said(DIGITS, model) == ""
    assert "24 samples of 'image' turned by half" in said(DIGITS[:, :, ::-1, ::-1], model)


def test_a_smaller_contrast_that_makes_a_model_surer_is_believed() -> None:
    assert "'image' scaled to 0 … 1" in said(DIGITS * 2 - 1, load(SAMPLES / "digits_attention.onnx"))
    assert said(DIGITS, load(SAMPLES / "digits_attention.onnx")) == ""


def test_few_samples_and_large_ones_are_not_judged() -> None:
    assert "surer-otherwise" not in said(1 - DIGITS[:9])


def detector(end: str = "Softmax <axis = 3>") -> Model:
    """A model that is sure of pixels whose red exceeds their blue, and unsure of others."""
    graph = f"""g (float[1, 3, 16, 16] x) => (float[1, 16, 16, 2] y)
        <float[2, 3, 1, 1] w = {{9, -6, -9, 0, 0, 0}}> {{
        c = Conv(x, w) r = Relu(c) t = Transpose <perm = [0, 2, 3, 1]> (r) y = {end}(t) }}"""
    model = parse(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}').SerializeToString())
    infer_types(model)
    return model


def judged(model: Model, arrays: np.ndarray) -> list[str]:
    samples = [{"x": row[None].astype(np.float32)} for row in arrays]
    sums = InputSummaries(input_specs(model))
    for sample in samples:
        sums.add(sample)
    summary = only_pictures(samples, {one.name: one for one in sums.summaries({})})
    assert summary is not None
    return [warning.message for warning in certainty_warnings(open_session(InMemory(model)), samples, summary)]


def test_models_with_several_inputs_or_none_for_pictures_are_left_alone() -> None:
    sums = InputSummaries(input_specs(detector()))
    sums.add({"x": np.zeros((1, 3, 16, 16), np.float32)})
    (summary,) = sums.summaries({})
    assert only_pictures([], {"x": summary}) is None  # nothing varies
    assert only_pictures([], {"x": summary, "y": summary}) is None


def reddish() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.random((20, 3, 16, 16)) * np.array([1, 0.5, 0.2]).reshape(3, 1, 1)


def test_the_other_order_of_channels_is_told_by_rows_of_probabilities() -> None:
    assert judged(detector(), reddish()) == []
    (found,) = judged(detector(), reddish()[:, ::-1])
    assert found.endswith("20 samples of 'x' with the channels in the other order")


def test_outputs_that_are_no_certainty_say_nothing() -> None:
    assert judged(detector("Neg"), reddish()[:, ::-1]) == []
    assert judged(detector("Identity"), reddish()[:, ::-1]) == []
