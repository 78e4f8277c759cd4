"""What comparing two models measures, and whom it blames."""

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper, numpy_helper

from onnxq.errors import CheckFailed, DataError, InvalidResult, ModelError
from onnxq.verification.compare import FIRST_LOOK, _is_steady, check_wellformed, compare
from onnxq.verification.error_stats import Difference
from onnxq.verification.records import Comparison, MetricComparison, OutputComparison

F = np.float32
finite = st.floats(-1e3, 1e3, width=32)
arrays = hnp.arrays(F, st.shared(hnp.array_shapes(max_dims=3, max_side=5), key="shape"), elements=finite)


def model(op_type: str = "Identity", dtype: int = TensorProto.FLOAT, scale: float = 1.0, **names: str) -> bytes:
    """A model that multiplies by a constant and applies one operator."""
    x, y = names.get("x", "x"), names.get("y", "y")
    out = {"ArgMax": TensorProto.INT64}.get(op_type, dtype)
    graph = helper.make_graph(
        [helper.make_node("Mul", [x, "scale"], ["m"]), helper.make_node(op_type, ["m"], [y])],
        "g",
        [helper.make_tensor_value_info(x, dtype, ["n", 4])],
        [helper.make_tensor_value_info(y, out, None)],
        [numpy_helper.from_array(np.array(scale, helper.tensor_dtype_to_np_dtype(dtype)), "scale")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def samples(count: int = 3) -> list[dict[str, np.ndarray]]:
    return [{"x": np.random.default_rng(i).standard_normal((i + 1, 4)).astype(F)} for i in range(count)]


@given(st.lists(st.tuples(arrays, arrays), min_size=1, max_size=4))
def test_sums_over_samples_are_those_of_one_long_array(pairs: list[tuple[np.ndarray, np.ndarray]]) -> None:
    difference = Difference()
    for first, second in pairs:
        assert difference.add(first, second) == ""
    r, q = (np.concatenate([pair[side].ravel() for pair in pairs]).astype(np.float64) for side in (0, 1))
    assert difference.equal == bool((r == q).all())
    assert difference.elements == r.size
    assert difference.max_abs == np.abs(r - q).max()
    noise, signal = ((r - q) ** 2).sum(), (r**2).sum()
    if noise > 0 and signal > 0:
        assert difference.sqnr == pytest.approx(10 * np.log10(signal / noise), abs=1e-9)
    elif not difference.equal:
        assert math.isinf(difference.sqnr)
    if signal > 1e-30 and (q**2).sum() > 1e-30:
        assert difference.cosine == pytest.approx((r @ q) / (np.linalg.norm(r) * np.linalg.norm(q)), abs=1e-9)


def test_figures_of_a_known_pair() -> None:
    difference = Difference()
    difference.add(np.array([[3.0, 4.0]], F), np.array([[3.0, 3.5]], F))
    assert difference.sqnr == 20.0  # 10·log10(25 / 0.25)
    assert difference.max_abs == 0.5
    assert difference.cosine == pytest.approx((9 + 14) / (5 * math.hypot(3, 3.5)), abs=1e-12)
    assert difference.agreement == 100.0


def test_equal_outputs_have_infinite_sqnr() -> None:
    difference = Difference()
    difference.add(np.zeros((2, 3), F), np.zeros((2, 3), F))
    assert (difference.sqnr, difference.equal, difference.cosine) == (math.inf, True, None)


def test_noise_over_silence_has_none() -> None:
    difference = Difference()
    difference.add(np.zeros(3, F), np.ones(3, F))
    assert difference.sqnr == -math.inf


def test_numbers_whose_squares_are_too_large_have_no_figures() -> None:
    difference = Difference()
    difference.add(np.array([1e200, 1.0]), np.array([1.1e200, 1.0]))
    assert (difference.sqnr, difference.cosine, difference.equal) == (-math.inf, None, False)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_only_one_model_loses_ruins_the_output(bad: float) -> None:
    for pair in ((1.0, bad), (bad, 1.0))[: 1 if np.isnan(bad) else 2]:
        difference = Difference()
        difference.add(*(np.array([1.0, 2.0, value], F) for value in pair))
        assert (difference.sqnr, difference.max_abs, difference.equal) == (-math.inf, math.inf, False)


def test_nan_of_the_float_model_is_left_out_whatever_becomes_of_it() -> None:
    difference = Difference()
    difference.add(np.array([np.nan, np.nan, 2.0], F), np.array([1.0, np.nan, 1.0], F))
    assert difference.sqnr == pytest.approx(10 * math.log10(4))
    assert (difference.max_abs, difference.undefined, difference.unsound, difference.equal) == (1.0, 2, 2, False)
    difference = Difference()
    difference.add(np.array([np.nan, 2.0], F), np.array([1.0, 2.0], F))
    assert (difference.sqnr, difference.equal) == (math.inf, True)


def test_a_value_that_both_models_lose_is_equal() -> None:
    difference = Difference()
    difference.add(np.array([np.nan, np.inf, 2.0], F), np.array([np.nan, np.inf, 1.0], F))
    assert difference.sqnr == pytest.approx(10 * math.log10(4))
    difference = Difference()
    difference.add(np.array([np.nan, -np.inf], F), np.array([np.nan, -np.inf], F))
    assert (difference.sqnr, difference.equal) == (math.inf, True)


def test_infinities_of_opposite_sign_differ() -> None:
    difference = Difference()
    difference.add(np.array([np.inf], F), np.array([-np.inf], F))
    assert difference.sqnr == -math.inf


def test_classes_agree_where_the_float_model_likes_the_other_choice_as_much() -> None:
    difference = Difference()
    reference = np.array([[1, 1, 0], [0, 2, 1], [3, 0, 0], [0, 0, 1]], F)
    result = np.array([[0, 1, 0], [0, 1, 2], [3, 0, 0], [0, 0, 1]], F)
    difference.add(reference, result)
    assert difference.agreement == 75.0


@pytest.mark.parametrize("shape", [(4, 3, 1, 1), (4, 1, 3, 1), (4, 1, 1, 3), (4, 3), (2, 2, 3)])
def test_the_only_axis_beside_the_batch_holds_classes(shape: tuple[int, ...]) -> None:
    reference = np.zeros((4, 3), F)
    reference[:, 0] = 1
    result = reference.copy()
    result[0] = [0, 1, 0]
    difference = Difference()
    difference.add(reference.reshape(shape), result.reshape(shape))
    assert difference.agreement == 75.0


@pytest.mark.parametrize("shape", [(1, 1, 4, 4), (4, 1), (), (1, 16, 1)])
def test_arrays_without_classes_have_no_agreement(shape: tuple[int, ...]) -> None:
    difference = Difference()
    difference.add(np.ones(shape, F), np.zeros(shape, F))
    assert difference.agreement is None


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_, np.int8])
def test_integers_agree_element_by_element(dtype: type) -> None:
    difference = Difference()
    difference.add(np.array([1, 0, 1, 1], dtype), np.array([1, 1, 1, 0], dtype))
    assert difference.agreement == 50.0
    assert difference.sqnr == pytest.approx(10 * math.log10(3 / 2))


def test_strings_are_equal_or_not() -> None:
    difference = Difference()
    difference.add(np.array(["a", "b"], object), np.array(["a", "b"], object))
    assert (difference.dtype, difference.sqnr, difference.agreement) == ("string", math.inf, 100.0)
    difference.add(np.array(["a", "b"], object), np.array(["a", "c"], object))
    assert (difference.sqnr, difference.agreement) == (-math.inf, 75.0)


def test_sequences_and_maps_are_compared_array_by_array() -> None:
    difference = Difference()
    assert difference.add([{1: 0.25, 2: 0.75}], [{2: 0.75, 1: 0.25}]) == ""
    assert difference.equal
    assert difference.add([np.ones(2, F)], [np.ones(2, F), np.ones(2, F)]) == "holds 2 arrays instead of 1"
    assert difference.add(None, None) == ""


def test_empty_arrays_say_nothing() -> None:
    difference = Difference()
    assert difference.add(np.zeros((0, 3), F), np.zeros((0, 3), F)) == ""
    assert (difference.elements, difference.equal, difference.agreement) == (0, True, None)


def test_shapes_and_types_must_be_the_same() -> None:
    difference = Difference()
    assert difference.add(np.ones((2, 3), F), np.ones((3, 2), F)) == "has shape [3, 2] instead of [2, 3]"
    assert difference.add(np.ones(2, F), np.ones(2, np.float64)) == "is float64 instead of float32"


def test_float16_is_summed_in_float64() -> None:
    difference = Difference()
    difference.add(np.full(10_000, 200, np.float16), np.full(10_000, 100, np.float16))
    assert difference.sqnr == pytest.approx(20 * math.log10(2))


def test_compare_runs_every_sample_and_counts() -> None:
    seen: list[tuple[int, int | None]] = []
    comparison = compare(model(), model(scale=0.9), samples(), progress=lambda *at: seen.append(at))
    (output,) = comparison.outputs
    assert output.sqnr == pytest.approx(20.0, abs=1e-3)  # float32 rounding of 0.9
    assert (output.name, output.dtype, output.elements, comparison.samples) == ("y", "float32", 24, 3)
    assert comparison.worst_sqnr == output.sqnr
    assert seen == [(0, None), (1, None), (2, None), (3, None)]
    latency = comparison.latency
    assert latency is not None
    assert min(latency.float_ms, latency.quantized_ms, latency.ratio) > 0
    assert latency.pairs >= 7


@pytest.mark.parametrize(("spread", "steady"), [(0.0, True), (0.01, True), (0.1, False)])
def test_timing_ends_when_the_median_of_ratios_is_known(spread: float, steady: bool) -> None:
    ratios = 0.8 * (1 + spread * np.random.default_rng(0).standard_normal(FIRST_LOOK))
    assert bool(_is_steady([*ratios[1:].tolist(), 9.0])) is steady  # one run that was interrupted counts for nothing


def test_compare_without_latency(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model())
    comparison = compare(path, path, samples(), latency=False)
    assert comparison.latency is None
    assert comparison.worst_sqnr == math.inf


def test_compare_with_integer_outputs() -> None:
    (output,) = compare(model("ArgMax"), model("ArgMax", scale=-1.0), samples(), latency=False).outputs
    assert output.dtype == "int64"
    assert output.agreement == pytest.approx(100 / 3)  # ArgMax over one row is 0 on both sides: 4 of 12 elements


def test_a_float_model_that_does_not_load_is_to_blame() -> None:
    with pytest.raises(ModelError, match="onnxruntime cannot load the float model"):
        compare(b"nonsense", model(), samples())


@pytest.mark.parametrize("blame", [InvalidResult, CheckFailed])
def test_a_quantized_model_that_does_not_load_is_to_blame(blame: type[InvalidResult]) -> None:
    with pytest.raises(blame, match="onnxruntime cannot load the quantized model") as caught:
        compare(model(), b"nonsense", samples(), blame=blame)
    assert len(caught.value.message.splitlines()) == 1


def test_a_float_model_that_does_not_run_is_to_blame_where_the_quantized_one_does_not_even_load() -> None:
    """onnxruntime takes a Gemm of shapes that do not fit, up to opset 12, and no MatMulInteger."""
    with pytest.raises(DataError, match="cannot run the float model on sample 0"):
        compare(model(), b"nonsense", [{"x": np.zeros((1, 5), F)}])


def test_samples_that_the_float_model_refuses_are_to_blame() -> None:
    with pytest.raises(DataError, match="cannot run the float model on sample 0"):
        compare(model(), model(), [{"x": np.zeros((1, 5), F)}])


def test_no_samples() -> None:
    with pytest.raises(DataError, match="no samples"):
        compare(model(), model(), [])


def reshaping(rank: int) -> bytes:
    """Return a model whose output has as many axes as an input says, and states `rank`."""
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "t"], ["y"])],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [4]),
            helper.make_tensor_value_info("t", TensorProto.INT64, ["n"]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1] * (rank - 1) + ["length"])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def test_outputs_are_compared_by_what_they_are_and_not_by_what_a_file_states() -> None:
    """PyTorch 1.9 states two axes of a text recognizer's output, which has three."""
    feeds = [{"x": np.arange(4, dtype=F), "t": np.array([1, 2, 2])}]
    assert compare(reshaping(2), reshaping(3), feeds).worst_sqnr == np.inf


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (model(y="z"), r"has the outputs \['z'\], the float model \['y'\]"),
        (model(x="z"), r"has the inputs \['z'\], the float model \['x'\]"),
        (model(dtype=TensorProto.DOUBLE), r"input 'x' is tensor\(double\)"),
        (model("ArgMax"), r"output 'y' is tensor\(int64\)"),
    ],
)
def test_another_interface_is_refused(other: bytes, sentence: str) -> None:
    with pytest.raises(InvalidResult, match=sentence):
        compare(model(), other, samples())


def test_nothing_reaches_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidResult):
        compare(model(), b"nonsense", samples())
    with pytest.raises(DataError):
        compare(model(), model(), [{"x": np.zeros((1, 5), F)}])
    assert capfd.readouterr() == ("", "")


def test_thresholds() -> None:
    worse = OutputComparison("a", "float32", 4, False, 10.0, 0.5, 0.9, 80.0)
    better = OutputComparison("b", "float32", 4, False, 30.0, 0.1, 0.99, None)
    comparison = Comparison((worse, better), 1)
    assert comparison.missed() == []
    assert comparison.missed(min_sqnr=10.0, max_abs=0.5, min_agreement=80.0) == []
    assert comparison.missed(min_sqnr=31.5) == [
        "output 'a' has 10.00 dB, 21.50 dB below the 31.5 dB asked for",
        "output 'b' has 30.00 dB, 1.50 dB below the 31.5 dB asked for",
    ]
    assert comparison.missed(max_abs=0.2) == ["output 'a' is off by up to 0.5, 0.3 above 0.2"]
    assert comparison.missed(min_agreement=99) == ["output 'a' agrees in 80.00 %, 19.00 points below 99 %"]
    assert comparison.missed(min_cosine=0.9) == []
    assert comparison.missed(min_cosine=0.95) == ["output 'a' has a cosine of 0.900000, 0.05 below 0.95"]
    assert len(comparison.missed(min_sqnr=20, max_abs=0.2, min_agreement=99, min_cosine=0.995)) == 5
    with pytest.raises(CheckFailed, match="no output has classes"):
        Comparison((better,), 1).missed(min_agreement=99)


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        (OutputComparison("y", "float32", 4, False, -math.inf, math.inf, 0.99, None), "gives NaN or infinity"),
        (OutputComparison("y", "float32", 4, False, -math.inf, 3.0, None, None), "gives nothing but zeros"),
    ],
)
def test_an_output_without_cosine_misses_any(output: OutputComparison, sentence: str) -> None:
    (missed,) = Comparison((output,), 1).missed(min_cosine=-1)
    assert sentence in missed


def test_text_is_not_held_to_an_sqnr_if_there_are_numbers() -> None:
    text = OutputComparison("t", "string", 4, False, -math.inf, 0.0, None, 50.0)
    numbers = OutputComparison("y", "float32", 4, False, 35.0, 0.1, 1.0, None)
    assert Comparison((text, numbers), 1).worst_sqnr == 35
    assert Comparison((text, numbers), 1).missed(min_sqnr=30) == []
    assert Comparison((text,), 1).missed(min_sqnr=30) == ["output 't' has other text: 30 dB are asked for"]


def test_equal_outputs_and_text_have_no_cosine_to_miss() -> None:
    equal = OutputComparison("y", "float32", 4, True, math.inf, 0.0, None, None)
    text = OutputComparison("t", "string", 4, False, -math.inf, 0.0, None, 50.0)
    assert Comparison((equal, text), 1).missed(min_cosine=1) == []


def test_a_metric_may_fall_so_far() -> None:
    comparison = Comparison((), 1, metric=MetricComparison("m:accuracy", 0.95, 0.9))
    assert comparison.missed(max_drop=0.06) == []
    assert comparison.missed(max_drop=0.01) == ["m:accuracy fell by 0.05, 0.04 more than 0.01"]
    risen = Comparison((), 1, metric=MetricComparison("m:accuracy", 0.9, 0.95))
    assert risen.missed(max_drop=0) == []
    assert risen.missed(max_drop=-0.1) == ["m:accuracy fell by -0.05, 0.05 more than -0.1"]
    unknown = MetricComparison("psnr", 30.0, math.nan)
    assert Comparison((), 1, metric=unknown).missed(max_drop=1) == ["psnr went from 30 to nan: no drop can be told"]
    assert unknown.change_words() == "not finite"
    with pytest.raises(CheckFailed, match="no metric was measured"):
        Comparison((), 1).missed(max_drop=1)


def test_the_checker(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    made = onnx.ModelProto.FromString(model())
    del made.graph.output[:]
    made.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4]))
    onnx.save(made, path)
    assert check_wellformed(path) is None
    made.graph.node[0].input[0] = "nowhere"
    onnx.save(made, path)
    objection = check_wellformed(path)
    assert objection is not None
    assert "nowhere" in objection
    assert "\n" not in objection


@pytest.mark.parametrize(
    ("expected", "got", "count"),
    [
        ([1.0, 2.0], [1.0, np.nan], 1),
        ([1.0, 2.0], [np.inf, -np.inf], 2),
        ([1.0, np.nan], [np.nan, 2.0], 0),  # the float model itself has no answer for such samples
        ([1.0, 2.0], [3.0, 4.0], 0),
    ],
)
def test_what_only_the_quantized_model_makes_infinite_is_spoilt(
    expected: list[float], got: list[float], count: int
) -> None:
    made = [run_identity(values) for values in (expected, got)]
    (output,) = compare(*made, [{"x": np.zeros((1, 2), F)}], latency=False).outputs
    assert output.spoilt == count
    said = compare(*made, [{"x": np.zeros((1, 2), F)}], latency=False).spoilt()
    assert said == ([f"'y' holds NaN or infinity {count} times, in the float model never"] if count else [])
    said = compare(*made, [{"x": np.zeros((1, 2), F)}], latency=False).undefined()
    assert said == (["'y' is NaN 1 of 2 times in the float model: left out here"] if np.isnan(expected).any() else [])


def run_identity(values: list[float]) -> bytes:
    """A model that gives these values, whatever it reads."""
    graph = helper.make_graph(
        [helper.make_node("Where", ["never", "x", "values"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
        [numpy_helper.from_array(np.array([[False, False]]), "never"), numpy_helper.from_array(F([values]), "values")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def test_what_only_one_of_two_outputs_has_is_held_against_zeros():
    long, short = np.array([[3, 4], [0, 5]], F), np.array([[3, 4]], F)
    for pair in ((long, short), (short, long)):
        difference = Difference(lengths=[0])
        assert difference.add(*pair) == ""
        assert difference.noise == 25
        assert difference.elements == 4
    assert "shape" in Difference(lengths=[1]).add(long, short)
    assert "shape" in Difference(lengths=[0, 1]).add(long, short[0])
