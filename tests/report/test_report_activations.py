"""What a report says about activations, against NumPy on the values themselves."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from onnxq.calibration.histogram import Histogram
from onnxq.calibration.qparams import activation_qparams
from onnxq.calibration.stats import TensorStats
from onnxq.ir import load
from onnxq.progress import Silent
from onnxq.report.activations import PERCENTILES, activation_records, describe_activation, percentiles
from onnxq.stages.files import open_data
from onnxq.stages.measure import choose_qparams, layers_needing_moments, measure
from onnxq.stages.prepare import prepare

SAMPLES = Path(__file__).parents[2] / "sample_models"
VALUES = arrays(np.float32, st.integers(1, 200), elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False))


@given(VALUES, st.integers(3, 300))
@settings(max_examples=80, deadline=None)
def test_a_coarser_histogram_counts_the_same_values(values: np.ndarray, most: int) -> None:
    fine = Histogram()
    fine.add(values)
    before = fine.counts.copy()
    coarse = fine.coarser(most)
    assert len(coarse.counts) <= most
    assert coarse.counts.sum() == values.size
    assert np.array_equal(fine.counts, before)
    index = np.trunc(values.astype(np.float64) / coarse.width).astype(int) - coarse.first
    assert np.array_equal(np.bincount(index, minlength=len(coarse.counts)), coarse.counts)


@given(VALUES)
@settings(max_examples=80, deadline=None)
def test_percentiles_are_right_to_a_bin(values: np.ndarray) -> None:
    stats = TensorStats.of(values)
    exact = np.percentile(values.astype(np.float64), PERCENTILES, method="inverted_cdf")
    assert np.allclose(percentiles(stats, PERCENTILES), exact, rtol=0, atol=2 * stats.histogram.width)


def test_the_grid() -> None:
    values = np.random.default_rng(0).normal(size=20000).astype(np.float32)
    qparams = activation_qparams(-2.0, 3.0)
    found = describe_activation("t", ["a", "b"], TensorStats.of(values), qparams)
    assert (found.tensor, found.nodes, found.elements, found.dtype) == ("t", ("a", "b"), 20000, "uint8")
    assert (found.scale, found.zero_point) == (float(qparams[0]), int(qparams[1]))
    assert found.low == pytest.approx(-2.0, abs=found.scale)
    assert found.high - found.low == pytest.approx(255 * found.scale)
    assert (found.minimum, found.maximum) == (values.min(), values.max())
    outside = 100 * np.mean((values < found.low) | (values > found.high))
    assert found.clipped == pytest.approx(outside, abs=0.3)
    codes = np.clip(np.rint(values / qparams[0]) + found.zero_point, 0, 255)
    noise = np.square((codes - found.zero_point) * qparams[0] - values, dtype=np.float64).sum()
    exact = 10 * math.log10(np.square(values, dtype=np.float64).sum() / noise)
    assert found.sqnr == pytest.approx(exact, abs=0.2)  # dB: inside a bin the density is taken as uniform
    assert sum(found.counts) == 20000
    assert len(found.edges) == len(found.counts) + 1


def test_every_calibrated_activation_is_there() -> None:
    prepared = prepare(load(SAMPLES / "digits_cnn.onnx"), "static-int8", with_data=True)
    given = open_data(prepared.model, [SAMPLES / "digits_calibration.npz"], None, 4)
    stats = measure(prepared, layers_needing_moments(prepared.plan), given, None, Silent())
    found = activation_records(prepared.plan, choose_qparams(prepared.plan, stats), stats)
    assert [a.tensor for a in found] == [value.name for value in prepared.plan.calibrated()]
    quantized = {d.node.name for d in prepared.plan.quantized()}
    relu = next(a for a in found if a.nodes[0] == "Conv_0" and "Conv_3" in a.nodes)
    assert relu.nodes == ("Conv_0", "Relu_2", "Conv_3")  # the Relu is absorbed by the codes of its output
    assert all(a.nodes and set(a.nodes) <= quantized for a in found)
    assert {"Conv_0", "Relu_2", "Conv_3", "Relu_5"} <= {node for a in found for node in a.nodes}
