"""Codes are integers of least error as far as the search goes, never worse than nearest, the same bytes everywhere."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from helpers import floats, peak_memory
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from onnxq.calibration.data_free_moments import prior_moments
from onnxq.calibration.gram import Gram
from onnxq.calibration.im2col import Unfolding
from onnxq.calibration.second_moments import LayerMoments
from onnxq.ir import infer_types, parse
from onnxq.rounding import coordinate_descent, gptq
from onnxq.rounding import jobs as jobs_module
from onnxq.rounding.coordinate_descent import Feedback, damped, descend, errors, nearest
from onnxq.rounding.jobs import RoundingJob, solve, solve_all
from onnxq.rounding.round_to_nearest import nearest_rows
from onnxq.rounding.scale_layout import ScaleLayout, storable
from onnxq.runtime.blas_threads import single_threaded_blas


def solve_codes(rows, moments, **given):
    with single_threaded_blas():
        return solve(RoundingJob(rows, moments, **given))


def problem(seed, problems=1, columns=12, channels=5, rows=40):
    """Correlated inputs with outliers, heavy-tailed weights."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((problems, rows, columns)) @ random.standard_normal((problems, columns, columns))
    x *= np.exp(random.standard_normal(columns))
    weight = random.standard_normal((problems, columns, channels)) ** 3
    return x.transpose(0, 2, 1) @ x / rows, weight


def measured(x, unfolding=None):
    unfolding = unfolding or Unfolding(x.shape[-1])
    moments = LayerMoments(unfolding, unfolding.n)
    moments.add(x.astype(np.float32))
    return moments


def correlated(seed, n=48, items=40, rows=16):
    """Inputs of one kind: a few directions carry most."""
    mixing = np.random.default_rng(1000 + n).standard_normal((n // 4, n))
    random = np.random.default_rng(seed)
    return np.maximum(random.standard_normal((items, rows, n // 4)) @ mixing + 0.1, 0).astype(np.float32)


def change(found, rows):
    """What the codes change of the weight, without rounding their product with the scale to float32."""
    layout = ScaleLayout.of(found.codes.shape, found.scales)
    return found.codes * layout.expand(found.scales.astype(np.float64)) - rows


# -- the parts --------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 9999), st.integers(1, 3), st.sampled_from([1, 5, 40]), st.sampled_from([1, 7, 127]))
def test_coordinate_descent_never_increases_the_error_and_ends_where_no_single_step_helps(seed, problems, n, limit):
    H, weight = problem(seed, problems, n)
    steps = np.broadcast_to(np.abs(weight).max(axis=1, keepdims=True) / limit, weight.shape)
    codes = nearest(weight, steps, (-limit, limit))
    before = errors(weight, codes, steps, H)
    for _ in range(4):
        codes = descend(weight, codes, steps, H, (-limit, limit), 1).codes
        after = errors(weight, codes, steps, H)
        assert (after <= before * (1 + 1e-9) + 1e-12 * np.abs(before).max()).all()
        before = after
    assert np.abs(codes).max() <= limit
    np.testing.assert_array_equal(codes, np.rint(codes))
    settled = descend(weight, codes, steps, H, (-limit, limit), 200).codes
    least = errors(weight, settled, steps, H)
    for column in range(n):
        for step in (-1, 1):
            moved = settled.copy()
            moved[:, column] = np.clip(moved[:, column] + step, -limit, limit)
            assert (errors(weight, moved, steps, H) >= least * (1 - 1e-9) - 1e-9 * least.max()).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 9999), st.integers(1, 3), st.sampled_from([1, 40, 70]), st.sampled_from([7, 127]))
def test_coordinate_descent_takes_one_column_after_the_other(seed, problems, n, limit):
    H, weight = problem(seed, problems, n)
    steps = np.broadcast_to(np.abs(weight).max(axis=1, keepdims=True) / limit, weight.shape)
    codes = nearest(weight, steps, (-limit, limit))
    expected = codes.copy()
    for p, column in np.ndindex(problems, n):  # by definition, with all slopes computed anew for each
        slope = H[p, column] @ (expected[p] * steps[p] - weight[p])
        best = expected[p, column] - slope / H[p, column, column] / steps[p, column]
        expected[p, column] = np.clip(np.rint(best), -limit, limit)
    np.testing.assert_array_equal(descend(weight, codes, steps, H, (-limit, limit), 1).codes, expected)


def test_a_descent_gives_the_slope_of_its_codes_whether_that_of_its_start_is_known_or_not():
    H, weight = problem(2, columns=70, channels=20)
    steps = np.broadcast_to(np.abs(weight).max(axis=1, keepdims=True) / 7, weight.shape)
    start = nearest(weight, steps, (-7, 7))
    known = H @ (start * steps - weight)
    for slope in (None, known):
        found = descend(weight, start, steps, H, (-7, 7), 2, slope)
        assert (found.codes != start).any()
        change = found.codes * steps - weight
        np.testing.assert_allclose(found.slope, H @ change, rtol=0, atol=1e-11 * np.abs(known).max())
        np.testing.assert_allclose(
            (change * found.slope).sum(axis=1), errors(weight, found.codes, steps, H), rtol=1e-10
        )


def test_coordinate_descent_leaves_channels_alone_that_have_settled(monkeypatch):
    H, weight = problem(1, columns=70, channels=20)
    steps = np.broadcast_to(np.abs(weight).max(axis=1, keepdims=True) / 127, weight.shape)
    settled = descend(weight, nearest(weight, steps, (-127, 127)), steps, H, (-127, 127), 200).codes
    seen, work = [], coordinate_descent.in_turn
    monkeypatch.setattr(
        coordinate_descent, "in_turn", lambda codes, *others: [seen.append(codes.shape), work(codes, *others)][1]
    )
    np.testing.assert_array_equal(descend(weight, settled, steps, H, (-127, 127), 4).codes, settled)
    assert not seen
    settled[0, 40, 7] += 3
    descend(weight, settled, steps, H, (-127, 127), 1)
    assert {shape[1] for shape in seen} == {1}


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 9999), st.sampled_from([1, 6, 45]))
def test_error_feedback_is_gptq_by_its_definition(seed, n):
    H, weight = problem(seed, 1, n, rows=3 * n)
    H = damped(H, 1e-2)
    steps = np.broadcast_to(np.abs(weight).max(axis=1, keepdims=True) / 7, weight.shape)
    feedback = Feedback(H)
    order = np.argsort(-np.diagonal(H[0]), kind="stable")
    U = np.linalg.cholesky(np.linalg.inv(H[0][np.ix_(order, order)])).T  # upper factor of the inverse
    left, expected = weight[0][order].copy(), np.empty_like(weight[0])
    for i in range(n):  # https://arxiv.org/abs/2210.17323, algorithm 1, with blocks of one column
        code = np.clip(np.rint(left[i] / steps[0, 0]), -7, 7)
        expected[order[i]] = code
        left[i + 1 :] -= np.outer(U[i, i + 1 :], (left[i] - code * steps[0, 0]) / U[i, i])
    np.testing.assert_array_equal(feedback.round(weight, steps, (-7, 7))[0], expected)
    np.testing.assert_allclose(feedback.weights[0][order], np.diagonal(U) ** -2.0, rtol=1e-6)


def test_damping_adds_to_the_diagonal_alone_and_never_leaves_a_problem_singular():
    H = np.stack([np.full((2, 2), 4.0), np.zeros((2, 2))])
    result = damped(H, 0.5)
    np.testing.assert_allclose(result - H, np.stack([2 * np.eye(2), 2e-6 * np.eye(2)]))
    assert np.linalg.cholesky(result).shape == H.shape


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 9999), st.sampled_from(["channel", "tensor", "block"]), st.sampled_from([1, 7, 127]))
def test_predicted_scales_minimise_the_stated_cost(seed, kind, limit):
    random = np.random.default_rng(seed)
    rows, weights = random.standard_normal((4, 10)) ** 3, random.random((2, 10)) + 0.1
    layout = ScaleLayout(rows.shape, kind == "tensor", 4 if kind == "block" else None)
    covering = storable(layout.peak(np.abs(rows)) / limit)
    chosen = layout.least_predicted(rows, weights, covering, limit)
    assert (chosen <= covering).all()

    def cost(scales):
        steps = layout.expand(scales)
        beyond = np.maximum(np.abs(rows) - limit * steps, 0)
        return layout.total(np.repeat(weights, 2, axis=0) * (steps**2 / 12 + beyond**2))

    least = cost(chosen)
    for factor in np.linspace(0.5 if limit == 127 else 0.25, 1, 9):
        assert (least <= cost(covering * factor) * 1.02).all()  # 40 candidates are not all scales


def test_scales_have_the_shape_of_their_granularity():
    rows = np.arange(20.0).reshape(2, 10)
    for options, shape, wide in (
        ({}, (2,), [9, 19]),
        ({"per_tensor": True}, (1,), [19, 19]),
        ({"block_size": 4}, (2, 3), None),
    ):
        layout = ScaleLayout(rows.shape, **options)
        scales = layout.peak(rows)
        assert layout.shaped(scales).shape == shape
        assert (
            ScaleLayout.of(rows.shape, layout.shaped(scales)).expand(scales).tolist() == layout.expand(scales).tolist()
        )
        if wide:
            assert layout.expand(scales)[:, 0].tolist() == wide
    assert layout.expand(scales)[0].tolist() == [3] * 4 + [7] * 4 + [9] * 2
    with pytest.raises(ValueError, match="one scale for all"):
        ScaleLayout((2, 10), per_tensor=True, block_size=4)


# -- the choice -------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 9999), st.sampled_from([2, 4, 8]), st.sampled_from(["channel", "tensor", "block"]))
def test_no_choice_is_worse_than_nearest_on_held_out_samples(seed, bits, kind):
    random = np.random.default_rng(seed)
    # from few samples, of which much cannot be learned, to many
    x = correlated(seed, 24, int(random.integers(1, 30)), int(random.integers(1, 5)))
    moments = measured(x)
    rows = (random.standard_normal((6, 24)) ** 3).astype(np.float32)
    found = solve_codes(
        rows, moments, bits=bits, per_tensor=kind == "tensor", block_size=8 if kind == "block" else None
    )
    limit = 2 ** (bits - 1) - 1
    assert found.codes.dtype == np.int8
    assert np.abs(found.codes.astype(int)).max() <= limit
    assert found.scales.shape == {"channel": (6,), "tensor": (1,), "block": (6, 3)}[kind]
    layout = ScaleLayout(rows.shape, kind == "tensor", 8 if kind == "block" else None)
    covering = storable(layout.peak(np.abs(rows)) / limit)
    plain = nearest(rows, layout.expand(covering), (-limit, limit)) * layout.expand(covering)
    held = moments.held_out()
    ours, theirs = held.errors(change(found, rows)), held.errors(plain - rows)
    if kind == "tensor":
        ours, theirs = ours.sum(), theirs.sum()
    assert (ours <= theirs * (1 + 1e-9)).all()


@pytest.mark.parametrize("bits", [8, 4])
def test_on_inputs_not_seen_the_gain_is_what_was_promised(bits):
    moments, fresh = measured(correlated(0)), measured(correlated(1)).total()
    rows = (np.random.default_rng(2).standard_normal((16, 48)) ** 3).astype(np.float32)
    found, (codes, scales) = solve_codes(rows, moments, bits=bits), nearest_rows(rows, 2 ** (bits - 1) - 1)
    assert found.method == "output error"
    nearby = codes * scales[:, None].astype(float) - rows
    gain = 10 * np.log10(fresh.errors(nearby).sum() / fresh.errors(change(found, rows)).sum())
    assert gain >= 4
    assert abs(gain - found.gain) <= 2  # it is measured on other samples and with half of them


def test_where_held_out_samples_contradict_it_stays_with_nearest():
    direction = np.ones(16, np.float32)
    x = np.zeros((41, 2, 16), np.float32)
    x[1::2] = np.random.default_rng(0).standard_normal((20, 2, 1)) * direction  # held out: the mean of a row only
    signs = np.where(np.arange(16) % 2, -1, 1)
    x[::2] = np.random.default_rng(1).standard_normal((21, 2, 1)) * signs * np.arange(1, 17)  # fitted: another
    rows = np.random.default_rng(3).standard_normal((8, 16)).astype(np.float32)
    found = solve_codes(rows, measured(x))
    codes, scales = nearest_rows(rows, 127)
    kept = (found.codes == codes).all(axis=1)
    assert kept.any()
    np.testing.assert_array_equal(found.scales[kept], scales[kept])
    held = measured(x).held_out()
    theirs = codes * scales[:, None].astype(float) - rows
    assert (held.errors(change(found, rows)) <= held.errors(theirs) * (1 + 1e-9)).all()


def test_one_row_alone_is_no_evidence():
    rows = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    found = solve_codes(rows, measured(np.ones((1, 6))))
    assert (found.method, found.gain) == ("nearest", 0)
    np.testing.assert_array_equal(found.codes, nearest_rows(rows, 127)[0])


@pytest.mark.parametrize("moments", [None, measured(correlated(0, 24))], ids=["no data", "data"])
@pytest.mark.parametrize("per_tensor", [False, True])
def test_no_scale_is_below_its_minimum(moments, per_tensor):
    rows = np.random.default_rng(4).standard_normal((5, 24)).astype(np.float32)
    free = solve_codes(rows, moments, per_tensor=per_tensor)
    minimum = np.float32([0, 0, 0.05, 0.3, 0])
    bound = solve_codes(rows, moments, per_tensor=per_tensor, minimum_scale=minimum)
    assert (bound.scales >= (minimum.max() if per_tensor else minimum)).all()
    if not per_tensor:
        np.testing.assert_array_equal(bound.codes[:2], free.codes[:2])
    if moments is None:
        step = bound.scales[0] if per_tensor else bound.scales[3]
        assert np.abs(bound.dequantized()[3] - rows[3]).max() <= step * 0.500001


def test_without_samples_scales_have_the_least_weight_error():
    rows = (np.random.default_rng(5).standard_normal((6, 400)) ** 3).astype(np.float32)
    for bits in (4, 8):
        found = solve_codes(rows, None, bits=bits)
        ours, limit = np.square(found.dequantized() - rows).sum(axis=1), 2 ** (bits - 1) - 1
        steps = nearest_rows(rows, limit)[1][:, None] * np.linspace(0.25, 1, 61)[:, None, None]
        tried = np.square(np.clip(np.rint(rows / steps), -limit, limit) * steps - rows).sum(axis=2)
        assert (ours <= tried[-1] * (1 + 1e-6)).all()
        assert (ours <= tried.min(axis=0) * 1.02).all()


def test_channels_and_inputs_that_are_zero_are_no_trouble():
    rows = np.random.default_rng(6).standard_normal((4, 24)).astype(np.float32)
    rows[1] = 0
    x = correlated(0, 24)
    x[..., 5:9] = 0
    found = solve_codes(rows, measured(x))
    assert (found.codes[1] == 0).all()
    assert found.scales[1] == 1
    assert np.isfinite(found.scales).all()
    assert solve_codes(rows, measured(np.zeros((4, 3, 24)))).method == "weight error"
    assert solve_codes(np.zeros((0, 24), np.float32), measured(x)).codes.shape == (0, 24)


def test_what_does_not_fit_is_refused():
    rows = np.zeros((2, 5), np.float32)
    with pytest.raises(ValueError, match="5 elements do not fit moments of 24"):
        solve_codes(rows, measured(correlated(0, 24)))
    with pytest.raises(ValueError, match="9 bits"):
        solve_codes(rows, None, bits=9)


def test_each_group_and_block_has_its_own_moments():
    unfolding = Unfolding(36, 2, 1, (3, 3), (1, 1), (1, 1), (0, 0, 0, 0))
    x = np.random.default_rng(7).standard_normal((60, 4, 5, 5)).cumsum(axis=-1).cumsum(axis=-2)
    x[:, 1::2] = x[:, ::2] + 0.1 * x[:, 1::2]
    rows = np.random.default_rng(8).standard_normal((6, 18)).astype(np.float32)
    alone = [measured(x[:, part], Unfolding(18, 1, *_geometry(unfolding))) for part in (slice(0, 2), slice(2, 4))]
    together = measured(x, unfolding)
    for group, moments in enumerate(alone):
        np.testing.assert_array_equal(moments.total().matrix[0], together.total().matrix[group])
    found = solve_codes(rows, together)
    assert found.gain > 3
    blocks = LayerMoments(unfolding, 9)
    blocks.add(x.astype(np.float32))
    by_block = solve_codes(rows, blocks)
    assert by_block.gain > 1
    held = together.held_out()
    assert held.errors(found.dequantized() - rows).sum() < held.errors(by_block.dequantized() - rows).sum()


def _geometry(unfolding):
    return unfolding.axis, unfolding.kernel, unfolding.strides, unfolding.dilations, unfolding.pads


def test_noise_of_the_input_counts_against_large_changes():
    moments = measured(correlated(0, 24))
    rows = np.random.default_rng(10).standard_normal((5, 24)).astype(np.float32)
    quiet, noisy = (solve_codes(rows, moments, bits=4, noise=noise) for noise in (0.0, 1e3))
    change = [np.square(found.dequantized() - rows).sum() for found in (quiet, noisy)]
    assert change[1] < change[0]
    total = moments.total()
    assert total.errors(quiet.dequantized() - rows).sum() < total.errors(noisy.dequantized() - rows).sum()


# -- the same bytes ---------------------------------------------------------------------------------------------------


def digest() -> str:
    """Codes and scales of a few layers, whose products are large enough for OpenBLAS to share among threads."""
    jobs = {}
    for index, (channels, n) in enumerate([(96, 320), (200, 130), (64, 64)]):
        rows = (np.random.default_rng(index).standard_normal((channels, n)) ** 3).astype(np.float32)
        jobs[index] = RoundingJob(rows, measured(correlated(index, n, 30, 24)))
    hashed = hashlib.sha256()
    for threads in (1, 3):
        for index, found in solve_all(jobs, threads=threads).items():
            hashed.update(b"%d" % index + found.codes.tobytes() + found.scales.tobytes())
        yield hashed.hexdigest()
        hashed = hashlib.sha256()


FOLDERS = [str(Path(__file__).parent), *(str(Path(__file__).parents[1] / name) for name in (".", "support"))]


def test_threads_change_no_bit():
    """OpenBLAS has as many as there are processors in this process, and another number in the other one."""
    code = "import sys; sys.path[:0] = sys.argv[1:]; import test_jobs as t; print(*set(t.digest()))"
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "2" if os.cpu_count() == 1 else "1"}
    command = [sys.executable, "-c", code, *FOLDERS]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert len({*digest(), *output.split()}) == 1


# -- no samples -------------------------------------------------------------------------------------------------------


def conv_after(op, kernel, channels=4, **attributes):
    """A convolution that reads what `op` gives."""
    weight = np.random.default_rng(0).standard_normal((5, channels, *kernel)).astype(np.float32)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["h"], **attributes), helper.make_node("Conv", ["h", "w"], ["y"])],
        "pair",
        [info("x", TensorProto.FLOAT, [1, channels, *(9 for _ in kernel)])],
        [info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    model = parse(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    infer_types(model)
    return model.graph.nodes[1], weight.reshape(5, -1)


def test_a_window_of_a_picture_is_assumed_to_be_smooth():
    node, rows = conv_after("Tanh", (3, 3))
    matrix = prior_moments(node).total().matrix[0]
    expected = np.zeros((36, 36))
    for a in range(36):
        for b in range(36):
            apart = abs(a % 9 // 3 - b % 9 // 3) + abs(a % 3 - b % 3)
            expected[a, b] = 0.95**apart if a // 9 == b // 9 else 0
    np.testing.assert_allclose(matrix, expected)
    found = solve_codes(rows, prior_moments(node), bits=4)
    assert (found.method, found.gain) == ("assumed inputs", 0)
    sums = lambda codes: np.abs((codes - rows).reshape(5, 4, 9).sum(axis=2)).mean()  # noqa: E731
    assert sums(found.dequantized()) < 0.5 * sums(solve_codes(rows, None, bits=4).dequantized())
    np.testing.assert_array_equal(prior_moments(node).total().mean, 0)


@pytest.mark.parametrize(("op", "known"), [("Relu", True), ("Sigmoid", True), ("Tanh", False), ("Neg", False)])
def test_behind_a_relu_channels_are_assumed_to_have_a_mean(op, known):
    moments = prior_moments(conv_after(op, (1, 1))[0])
    if not known:
        assert moments is None
        return
    np.testing.assert_allclose(moments.total().matrix[0], 0.7 * np.eye(4) + 0.3)


def test_no_matrix_is_decomposed_twice(monkeypatch):
    made = []
    before = gptq.Feedback

    def count(H):
        made.append(len(H))
        return before(H)

    monkeypatch.setattr(gptq, "Feedback", count)
    rows = np.random.default_rng(1).standard_normal((80, 48))
    assert solve_codes(rows, measured(correlated(1))).method == "output error"
    assert sum(made) == len(gptq.DAMPINGS) + 1  # of one half of the samples, and of all of them
    made.clear()
    assert solve_codes(rows, prior_moments(conv_after("Relu", (1, 1), 48)[0])).method == "assumed inputs"
    assert sum(made) == len(gptq.DAMPINGS)


def test_what_is_assumed_takes_no_memory_until_it_is_asked_for():
    tracemalloc.start()
    moments = [prior_moments(conv_after("Relu", (3, 3), 64)[0]) for _ in range(4)]
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 1e6 < moments[0].total().matrix.nbytes


def test_a_text_is_not_assumed_to_be_smooth():
    assert prior_moments(conv_after("Tanh", (5, 1))[0]) is None
    assert prior_moments(conv_after("Tanh", (5,))[0]) is None
    matrix = prior_moments(conv_after("Relu", (3,))[0]).total().matrix[0]
    assert set(np.unique(matrix.round(6))) == {0.0, 0.3, 1.0}


def test_a_large_prior_is_of_blocks_that_end_with_the_columns():
    node, rows = conv_after("Relu", (3, 3), channels=300)
    moments = prior_moments(node)
    assert moments.total().matrix.shape == (11, 252, 252)
    assert np.einsum("pbb->", moments.total().matrix) == 2700
    assert isinstance(moments.total(), Gram)
    assert solve_codes(rows, moments).method == "assumed inputs"


def test_a_half_of_samples_that_is_all_zero_teaches_nothing():
    """As in a branch that few samples take: one half shows no input at all, the other does."""
    x = correlated(1, items=4)
    for silent in (0, 1):
        halves = x.copy()
        halves[silent::2] = 0
        found = solve_codes(correlated(2)[0, :5], measured(halves))
        assert found.method in ("nearest", "output error")
        assert np.isfinite(found.scales).all()
    assert solve_codes(correlated(2)[0, :5], measured(0 * x)).method == "weight error"


# -- memory -----------------------------------------------------------------------------------------------------------


def test_a_search_holds_few_matrices_of_second_moments():
    n = 256
    moments = measured(correlated(1, n))
    rows = (np.random.default_rng(0).standard_normal((4, n)) ** 3).astype(np.float32)
    assert solve_codes(rows, moments, noise=0.01).method == "output error"
    peak = peak_memory(lambda: solve_codes(rows, moments, noise=0.01))
    assert peak < (jobs_module.COPIES + 0.5) * moments.total().matrix.nbytes


def test_many_processors_take_no_more_memory(monkeypatch):
    monkeypatch.setattr(jobs_module, "WORTH", 0)
    jobs = {
        index: RoundingJob(np.random.default_rng(index).standard_normal((4, 32)), measured(correlated(index, 32)))
        for index in range(8)
    }
    expected = solve_all(jobs, threads=4)
    monkeypatch.setattr(jobs_module, "IN_WORK", 2 * jobs[0].bytes)
    working, most = set(), []
    before = jobs_module.solve

    def choose(job):
        working.add(id(job))
        most.append(len(working))
        time.sleep(0.01)
        working.remove(id(job))
        return before(job)

    monkeypatch.setattr(jobs_module, "solve", choose)
    found = solve_all(jobs, threads=4)
    assert max(most) == 2
    assert all((found[index].codes == expected[index].codes).all() for index in jobs)
    monkeypatch.setattr(jobs_module, "IN_WORK", 1)  # less than one of them takes
    most.clear()
    assert solve_all(jobs, threads=4).keys() == jobs.keys()
    assert max(most) == 1


@pytest.mark.parametrize("groups", [1, 4])
def test_what_is_tried_side_by_side_has_the_codes_of_one_after_the_other(monkeypatch, groups):
    rows = np.random.default_rng(3).standard_normal((32, 24))
    unfolding = Unfolding(24 * groups, groups)
    moments = LayerMoments(unfolding, 24)
    for seed in range(4):
        moments.add(np.maximum(floats(1, 200, 24 * groups, seed=seed), 0))
    together = solve_codes(rows, moments)
    monkeypatch.setattr(gptq, "SLAB", 1)
    monkeypatch.setattr(gptq, "SIDE_BY_SIDE", 1)
    apart = solve_codes(rows, moments)
    assert together.damping == apart.damping
    np.testing.assert_array_equal(together.codes, apart.codes)
    np.testing.assert_array_equal(together.scales, apart.scales)
