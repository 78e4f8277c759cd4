"""How the channels of a model happen to be scaled must not matter: rescaled copies of it lose no more in 8 bit.

What can be rescaled without changing the function: a Conv, Gemm or MatMul, or a normalisation, through Relu, pooling,
residual additions and flattening up to those that read it. digits_lstm has nothing of the kind, and in digits_if it all
stands inside bodies, which are left as they are.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from rescale_support import MODELS, difference, rescale_model, run, sample, sqnr

from onnxq.ir import Model, save
from onnxq.pipeline.quantize import quantize

CALIBRATION = MODELS / "digits_calibration.npz"
FEEDS = {"image": np.load(MODELS / "digits_test.npz")["image"][:300]}
GROUPS = {"digits_cnn": 4, "digits_depthwise": 1, "digits_attention": 4}
FAST = [
    ("digits_cnn", "auto", True),
    ("digits_attention", "static-int8", True),
    ("digits_depthwise", "auto", False),
]
RECIPES = [("auto", True), ("static-int8", True), ("auto", False), ("dynamic-int8", False), ("weight-int8", False)]
SLOW = [(name, recipe, with_data, seed) for name in GROUPS for recipe, with_data in RECIPES for seed in range(1, 5)]


def quantized_sqnr(model: Model, reference: np.ndarray, recipe: str, folder: Path, *, with_data: bool) -> float:
    """Save a model, quantize it as a user does, and give its SQNR in dB on images that nothing was chosen on."""
    save(model, folder / "float.onnx", force=True)
    data = {"data": [CALIBRATION], "sample_limit": 64} if with_data else {}
    quantize(folder / "float.onnx", recipe, output=folder / "int8.onnx", force=True, **data)
    return sqnr(reference, run((folder / "int8.onnx").read_bytes(), FEEDS)[0])


@cache
def undisturbed(name: str, recipe: str, folder: Path, *, with_data: bool) -> tuple[np.ndarray, float]:
    """Give the float outputs of a model, and its SQNR in 8 bit as it comes."""
    model = sample(name)
    reference = run(model, FEEDS)[0]
    return reference, quantized_sqnr(model, reference, recipe, folder, with_data=with_data)


def check(name: str, recipe: str, folder: Path, seed: int, *, with_data: bool) -> None:
    reference, expected = undisturbed(name, recipe, folder, with_data=with_data)
    model = sample(name)
    assert rescale_model(model, seed) == GROUPS[name]
    assert difference([reference], run(model, FEEDS)) < 1e-5  # the same function
    found = quantized_sqnr(model, reference, recipe, folder, with_data=with_data)
    assert found > expected - 1.0, f"{expected:.2f} dB fall to {found:.2f}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rescaled")


@pytest.mark.parametrize(("name", "recipe", "with_data"), FAST)
def test_the_scaling_of_channels_does_not_matter(name: str, recipe: str, with_data: bool, folder: Path) -> None:
    check(name, recipe, folder, 0, with_data=with_data)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "recipe", "with_data", "seed"), SLOW)
def test_no_scaling_of_channels_matters(name: str, recipe: str, with_data: bool, seed: int, folder: Path) -> None:
    check(name, recipe, folder, seed, with_data=with_data)


@pytest.mark.parametrize("name", ["digits_lstm", "digits_if"])
def test_the_others_have_nothing_to_rescale(name: str) -> None:
    assert rescale_model(sample(name), 0) == 0
