"""The short search for codes in blocks: nearly the error of the full one, for a known number of products with H."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import floats

from onnxq.calibration.gram import Gram
from onnxq.calibration.im2col import Unfolding
from onnxq.calibration.second_moments import LayerMoments
from onnxq.rounding import short_block_search
from onnxq.rounding.block_solver import solve_blocks
from onnxq.rounding.coordinate_descent import Feedback
from onnxq.rounding.short_block_search import Trusted, search_shortly

N, CHANNELS = 96, 40
ROWS = np.random.default_rng(3).standard_normal((CHANNELS, N)) ** 3


def measured(block=N, seed=0):
    """Inputs of which a few directions carry most."""
    moments = LayerMoments(Unfolding(N), block)
    mixing = floats(N // 6, N, seed=9)
    for index in range(40):
        one = 10 * seed + index
        moments.add(floats(1, 16, N // 6, seed=one) @ mixing + floats(1, 16, N, seed=5000 + one) / 5)
    return moments


def single(gram):
    return Gram(gram.matrix.astype(np.float32), gram.mean, gram.rows)


def error(codes, gram):
    return gram.errors(codes.dequantized(1, 32).astype(np.float64) - ROWS).sum()


@pytest.mark.parametrize("bits", [2, 4])
def test_the_error_on_other_samples_is_nearly_that_of_the_full_search(bits):
    others = measured(seed=7).total()
    full = solve_blocks(ROWS, measured(), bits, 32)
    short = solve_blocks(ROWS, measured(), bits, 32, quick=True)
    assert short.method == "output error"
    assert short.gain > 3
    assert error(short.codes, others) < 1.25 * error(full.codes, others)


def test_float32_serves_as_well_as_float64():
    gram = measured().total()
    one, two = (search_shortly(ROWS, Trusted.of(each), 4, 32).codes for each in (gram, single(gram)))
    assert (one.codes != two.codes).mean() < 0.01
    assert error(two, gram) < 1.01 * error(one, gram)


@pytest.mark.parametrize(("weights", "inputs"), [(118, 0), (-100, 0), (60, 40), (-40, -50)])
def test_codes_are_the_same_however_large_weights_and_inputs_are(weights, inputs):
    gram = measured().total()
    other = Gram(np.ldexp(gram.matrix, 2 * inputs), np.ldexp(gram.mean, inputs), gram.rows)
    rows, larger = ROWS.astype(np.float32), np.ldexp(ROWS.astype(np.float32), weights)
    one, two = (
        search_shortly(each, Trusted.of(single(moments)), 4, 32) for each, moments in ((rows, gram), (larger, other))
    )
    np.testing.assert_array_equal(one.codes.codes, two.codes.codes)
    np.testing.assert_array_equal(np.ldexp(one.codes.scales, weights), two.codes.scales)


def test_errors_are_those_of_the_codes():
    gram = measured().total()
    trusted = Trusted.of(gram)
    found = search_shortly(ROWS, trusted, 4, 32)
    told = Gram(trusted.H[None], gram.mean, gram.rows).errors(found.codes.dequantized(1, 32).astype(np.float64) - ROWS)
    np.testing.assert_allclose(found.kept, told[:: short_block_search.COMPARED], rtol=1e-6)


def test_few_rows_are_trusted_less(monkeypatch):
    """Much of what few rows show of H is chance: rounding by it costs on others."""

    def moments(rows, seed):
        made = LayerMoments(Unfolding(N), N)
        fading = floats(1, rows, N, seed=seed) / np.arange(1, N + 1, dtype=np.float32) ** 0.7
        made.add(fading @ floats(N, N, seed=9))
        return made.total()

    def found():
        return error(search_shortly(ROWS, Trusted.of(moments(120, 1)), 4, 32).codes, moments(900, 2))

    doubted = found()
    monkeypatch.setattr(short_block_search, "DOUBT", 0)
    assert doubted < 0.98 * found()


def test_channels_in_parts_give_the_same_codes(monkeypatch):
    gram = single(measured().total())
    whole = search_shortly(ROWS, Trusted.of(gram), 4, 32).codes
    monkeypatch.setattr(short_block_search, "TOGETHER", 16 * N)
    parts = search_shortly(ROWS, Trusted.of(gram), 4, 32).codes
    assert (whole.codes != parts.codes).mean() < 0.01
    assert whole.codes.shape == parts.codes.shape


def test_h_is_decomposed_once_and_multiplied_five_times(monkeypatch):
    """Guard of the time for a weight: products with H cost most."""
    counted = {"decomposed": 0, "products": 0, "swept": 0, "fitted": 0}

    def count(owner, name, what, share):
        plain = getattr(owner, name)

        def counting(*given):
            counted[what] += share(*given)
            return plain(*given)

        monkeypatch.setattr(owner, name, counting)

    count(Feedback, "__init__", "decomposed", lambda *given: 1)
    count(short_block_search._ShortSearch, "_slope", "products", lambda own, weight, *given: weight.shape[1])
    count(short_block_search, "sweep", "swept", lambda owed, *given: owed.size)
    count(short_block_search, "refit_on_slope", "fitted", lambda codes, *given: codes.size)
    solve_blocks(ROWS, measured(32), 4, 32, quick=True)
    ranges = N // 32
    assert counted["decomposed"] == ranges
    assert counted["products"] == 3 * ranges * CHANNELS
    assert counted["swept"] == 3 * ROWS.size  # half a product each: a row owes to those behind it alone
    assert counted["fitted"] == ROWS.size


def test_columns_of_zeros_have_the_codes_of_the_weights_own_error():
    """A range of columns may show nothing where others do, as padded features."""
    moments = LayerMoments(Unfolding(N), 32)
    for index in range(4):
        moments.add(floats(16, N, seed=index) * (np.arange(N) < 64))
    found = solve_blocks(ROWS, moments, 4, 32, quick=True)
    alone = solve_blocks(ROWS[:, 64:], None, 4, 32)
    np.testing.assert_array_equal(found.codes.codes[:, 64:], alone.codes.codes)
    assert found.method == "output error"


def test_weights_that_read_the_same_share_a_decomposition(monkeypatch):
    moments, known = measured(), []
    alone = [solve_blocks(ROWS, moments, bits, 32, quick=True).codes.codes for bits in (2, 4)]
    found = [solve_blocks(ROWS, moments, 2, 32, quick=True, known=known).codes.codes]
    monkeypatch.setattr(Feedback, "__init__", None)
    found.append(solve_blocks(ROWS, moments, 4, 32, quick=True, known=known).codes.codes)
    assert len(known) == 1
    for one, other in zip(alone, found, strict=True):
        np.testing.assert_array_equal(one, other)
