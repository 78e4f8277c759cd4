"""Plans from Python: every node decided about, and nothing written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import onnxq

SAMPLES = Path(__file__).parents[2] / "sample_models"
MODEL = SAMPLES / "digits_cnn.onnx"


def test_data_makes_a_static_plan_and_their_lack_a_dynamic_one() -> None:
    static = onnxq.plan(MODEL, data=SAMPLES / "digits_calibration.npz")
    dynamic = onnxq.plan(MODEL)
    assert "static-int8" in static.counts()
    assert "static-int8" not in dynamic.counts()
    assert static.output is dynamic.output is None


def test_it_is_the_plan_that_quantize_would_begin_with() -> None:
    samples = [{"image": np.zeros((1, 1, 8, 8), np.float32)}]
    planned = onnxq.plan(MODEL, samples=samples, exclude="Gemm")
    assert planned.nodes == onnxq.quantize(MODEL, samples=samples, exclude="Gemm", dry_run=True).nodes


def test_sensitivity_needs_data() -> None:
    with pytest.raises(onnxq.DataError, match="shows on data only"):
        onnxq.plan(MODEL, sensitivity=True)
