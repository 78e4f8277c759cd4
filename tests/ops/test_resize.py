"""Resize and Upsample against onnxruntime."""

import numpy as np
import pytest
from float_support import check, evaluate_single, normal

from onnxq.errors import ModelError

X = normal(1, 2, 5, 6)
COORDINATES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
NEAREST = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]


def scales(*values):
    return np.array(values, np.float32)


@pytest.mark.parametrize("rounding", NEAREST)
@pytest.mark.parametrize("kind", COORDINATES)
@pytest.mark.parametrize("factor", [(2, 3), (0.6, 0.5), (1.6, 1)])
def test_nearest_agrees_with_onnxruntime(factor, kind, rounding):
    check(
        "Resize", [X, None, scales(1, 1, *factor)], opset=13, mode="nearest", coordinate_transformation_mode=kind,
        nearest_mode=rounding,
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("kind", COORDINATES)
@pytest.mark.parametrize("sizes", [(10, 9), (3, 4), (5, 12), (1, 1)])
def test_interpolation_agrees_with_onnxruntime(sizes, kind, mode):
    check(
        "Resize", [X, None, None, np.array([1, 2, *sizes], np.int64)], opset=13, mode=mode,
        coordinate_transformation_mode=kind, atol=2e-5,
    )  # fmt: skip


def test_cubic_without_what_lies_outside_agrees_with_onnxruntime():
    check(
        "Resize",
        [X, None, scales(1, 1, 1.8, 0.7)],
        opset=13,
        mode="cubic",
        exclude_outside=1,
        cubic_coeff_a=-0.5,
        atol=2e-5,
    )


def test_crops_agree_with_onnxruntime():
    roi = np.array([0, 0, 0.4, 0.2, 1, 1, 1.3, 0.8], np.float32)
    check(
        "Resize", [X, roi, None, np.array([1, 2, 3, 4], np.int64)], opset=13, mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=9.0, atol=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
def test_axes_and_policies_agree_with_onnxruntime(policy):
    check(
        "Resize", [X, None, None, np.array([7, 13], np.int64)], opset=18, axes=[2, 3], keep_aspect_ratio_policy=policy,
        mode="linear", atol=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_upsample_and_the_first_resize_agree_with_onnxruntime(mode):
    check("Upsample", [X], opset=7, scales=[1.0, 1.0, 2.0, 3.0], mode=mode)
    check("Upsample", [X, scales(1, 1, 2, 2)], opset=9, mode=mode)
    check("Resize", [X, scales(1, 1, 2, 0.5)], opset=10, mode=mode)
    (y,) = evaluate_single("Upsample", [X], opset=1, height_scale=2.0, width_scale=2.0, mode=mode)
    assert y.shape == (1, 2, 10, 12)


def test_integers_are_resized_as_integers():
    (y,) = evaluate_single("Resize", [np.arange(4, dtype=np.uint8), None, scales(2)], opset=13, mode="nearest")
    assert y.dtype == np.uint8
    assert y.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_region_counts_for_crops_alone():
    (y,) = evaluate_single("Resize", [X, np.float32([0, 0, 1]), scales(1, 1, 2, 2)], opset=13)
    (expected,) = evaluate_single("Resize", [X, None, scales(1, 1, 2, 2)], opset=13)
    assert np.array_equal(y, expected)


def test_what_does_not_exist_is_refused():
    with pytest.raises(ModelError, match="mode 'best' does not exist"):
        evaluate_single("Resize", [X, None, scales(1, 1, 2, 2)], opset=13, mode="best")
    with pytest.raises(ModelError, match="neither scales nor sizes"):
        evaluate_single("Resize", [X], opset=13)
