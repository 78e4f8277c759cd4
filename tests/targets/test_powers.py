"""Logarithms and powers of 2 that are the same on every processor."""

from __future__ import annotations

import math

import numpy as np

from onnxq.targets.powers import exp2, exp2_array, log2, log2_array

NUMBERS = np.concatenate([np.random.default_rng(0).lognormal(sigma=20, size=2000), [1.0, 0.5, 2.0**-1070, 1e300]])


def test_they_agree_with_those_of_the_c_library():
    np.testing.assert_allclose(log2_array(NUMBERS), np.log2(NUMBERS), rtol=1e-14, atol=1e-15)
    powers = np.linspace(-300, 300, 2001)
    np.testing.assert_allclose(exp2_array(powers), np.exp2(powers), rtol=1e-13)


def test_numbers_and_arrays_give_the_same_bits():
    assert log2_array(NUMBERS).tolist() == [log2(number) for number in NUMBERS.tolist()]
    powers = np.linspace(-30, 30, 1001)
    assert exp2_array(powers).tolist() == [exp2(power) for power in powers.tolist()]
    assert exp2_array(np.float64([-3, 0, 7])).tolist() == [0.125, 1, 128]
    assert log2(math.ldexp(1, -1074)) == -1074
