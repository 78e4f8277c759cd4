"""What is said about samples before they are used: figures of inputs, and samples that cannot be right."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from unittest import mock

import numpy as np
import pytest
from onnx import parser

from onnxq.data import examine as examine_module
from onnxq.data.examine import examine, examining
from onnxq.data.input_summary import channel_axis, short
from onnxq.data.samples import wrap_samples
from onnxq.data.synthetic import random_samples
from onnxq.data.validation import input_specs
from onnxq.errors import DataError
from onnxq.ir import Model, parse
from onnxq.ir.shape_inference.types import infer_types
from onnxq.runtime.ownership import own_process
from onnxq.targets import host


def model(text: str) -> Model:
    made = parse(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}').SerializeToString())
    infer_types(made)
    return made


ADD = "main (float[n, 3, 4, 4] x, int64[n, 5] ids) => (float[n, 3, 4, 4] y) { y = Add(x, x) }"
ONE = "main (float[n, 3, 4, 4] x) => (float[n, 3, 4, 4] y) { y = Add(x, x) }"
IDS = "main (int64[n, 6] ids) => (int64[n, 6] y) { y = Add(ids, ids) }"


def pictures(count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(seed)
    return [{"x": random.random((1, 3, 4, 4), np.float32)} for _ in range(count)]


def codes(text: str, samples) -> list[str]:
    found = examine(model(text), samples)
    assert all(warning.message and warning.remedy.endswith(".") for warning in found.warnings)
    return [warning.code for warning in found.warnings]


def test_inputs_are_summed_up_by_channel() -> None:
    samples = [{**sample, "ids": np.full((1, 5), index)} for index, sample in enumerate(pictures(20))]
    for sample in samples:
        sample["x"][:, 1] -= 2
    stacked = np.concatenate([sample["x"] for sample in samples])
    found = examine(model(ADD), samples)
    assert found.samples == 20
    assert not found.warnings
    x, ids = found.inputs
    assert (x.name, x.type, x.given, x.channel_axis) == ("x", "float32[n, 3, 4, 4]", None, 1)
    assert x.values is not None
    assert x.values.least == stacked.min()
    assert x.values.greatest == stacked.max()
    assert x.values.mean == pytest.approx(stacked.mean(), rel=1e-5)
    assert x.values.std == pytest.approx(stacked.std(), rel=1e-5)
    assert [channel.mean for channel in x.channels] == pytest.approx(stacked.mean((0, 2, 3)), rel=1e-5)
    assert [channel.std for channel in x.channels] == pytest.approx(stacked.std((0, 2, 3)), rel=1e-5)
    assert (ids.channels, ids.channel_axis) == ((), None)
    assert str(ids) == "ids  int64[n, 5]  values 0 … 19, mean 9.5"


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="copies are made on Linux")
def test_a_copy_of_the_process_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [*pictures(12), *pictures(12)]
    here, alone = os.getpid(), examine(model(ONE), samples)
    looked = mock.Mock(side_effect=AssertionError("looked at in this process"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    monkeypatch.setattr(host, "_limit", None)
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread()])
    monkeypatch.setattr(threading, "current_thread", threading.main_thread)
    before = examine_module.unused_options
    monkeypatch.setattr(
        examine_module, "unused_options", lambda given: looked() if os.getpid() == here else before(given)
    )
    with own_process(), examining(model(ONE), samples, calibrating=True, judging=False) as seen:
        assert repr(seen()) == repr(alone)
        assert seen() is seen()


def test_few_samples_are_counted_by_rows() -> None:
    assert codes(ONE, pictures(15)) == ["few-samples"]
    assert codes(ONE, pictures(16)) == []
    batches = [{"x": np.concatenate([sample["x"] for sample in pictures(8, seed)])} for seed in (0, 1)]
    assert codes(ONE, batches) == []


def test_one_sample_is_few() -> None:
    found = examine(model(ONE), pictures(1))
    assert [warning.message for warning in found.warnings] == ["ranges come from only 1 sample"]
    assert "32 to 200" in found.warnings[0].remedy


def test_equal_samples_are_named() -> None:
    first = pictures(1)[0]
    found = examine(model(ONE), [first] * 20)
    assert [warning.code for warning in found.warnings] == ["equal-samples"]
    assert "all 20 samples" in found.warnings[0].message


def test_nearly_equal_samples_are_named() -> None:
    noisy = [{"x": pictures(1)[0]["x"] + 1e-3 * sample["x"]} for sample in pictures(20, 1)]
    assert codes(ONE, noisy) == ["equal-samples"]


def test_many_equal_samples_among_others_are_named() -> None:
    found = examine(model(ONE), pictures(20) + pictures(8))
    assert [warning.code for warning in found.warnings] == ["equal-samples"]
    assert found.warnings[0].message.startswith("8 of 28 samples")
    assert codes(ONE, pictures(20) + pictures(2)) == []


def test_constant_samples_are_named_even_where_they_differ() -> None:
    shape = (1, 3, 4, 4)
    assert codes(ONE, [{"x": np.zeros(shape, np.float32)}] * 64) == ["constant-samples"]
    assert codes(ONE, [{"x": np.full(shape, i, np.float32)} for i in range(64)]) == ["constant-samples"]


def test_an_input_that_is_constant_beside_others_is_usual() -> None:
    assert codes(ADD, [{**sample, "ids": np.zeros((1, 5), np.int64)} for sample in pictures(20)]) == []


def test_words_that_differ_by_one_are_other_words() -> None:
    rows = np.tile(np.arange(6) * 1000, (20, 1))
    rows[:, 3] += np.arange(20)
    assert codes(IDS, [{"ids": row[None]} for row in rows]) == []
    assert codes(IDS, [{"ids": rows[:1]}] * 20) == ["equal-samples"]


def test_pictures_in_8_bit_that_were_converted_are_named() -> None:
    samples = [{"x": (255 * sample["x"]).astype(np.uint8)} for sample in pictures(20)]
    found = examine(model(ONE), samples)
    assert [warning.code for warning in found.warnings] == ["dtype-converted"]
    assert "uint8" in found.warnings[0].message
    assert ", given as uint8  values" in str(found.inputs[0])


def test_floats_of_another_width_are_said_without_a_warning() -> None:
    samples = [{"x": sample["x"].astype(np.float64)} for sample in pictures(20)]
    found = examine(model(ONE), samples)
    assert not found.warnings
    assert found.inputs[0].given == "float64"


def test_outputs_that_hardly_differ_are_named() -> None:
    nodes = "z = ReduceMean<axes=[2, 3], keepdims=0>(x)  y = Add(z, one)"
    made = f"main (float[1, 3, 4, 4] x) => (float[1, 3] y) <float one = {{1000.0}}> {{ {nodes} }}"
    assert codes(made, pictures(20)) == ["equal-outputs"]
    assert codes(made.replace("1000.0", "1.0"), pictures(20)) == []


def test_outputs_that_are_all_0_are_named() -> None:
    """A dead ReLU behind everything: quantized and float model are equal, and nothing is said by that."""
    made = "main (float[n, 3, 4, 4] x) => (float[n, 3, 4, 4] y) { a = Abs(x)  b = Neg(a)  y = Relu(b) }"
    assert codes(made, pictures(20)) == ["equal-outputs"]


def test_samples_without_a_value_are_named() -> None:
    made = "main (float[n, k] x) => (float[n, k] y) { y = Add(x, x) }"
    assert codes(made, [{"x": np.zeros((0, 4), np.float32)}] * 20) == ["empty-samples"]
    assert codes(made, [{"x": np.ones((1, index % 3), np.float32)} for index in range(20)]) != ["empty-samples"]


def test_a_model_that_does_not_run_is_not_judged() -> None:
    made = "main (float[1, 3, 4, 4] x) => (float[a, b] y) { y = other.Thing(x) }"
    text = f'<ir_version: 8, opset_import: ["" : 17, "other": 1]> {made}'
    found = examine(parse(parser.parse_model(text).SerializeToString()), pictures(20))
    assert not found.warnings
    assert found.inputs[0].values is not None


def test_numbers_made_up_are_not_judged_by_the_model() -> None:
    made = model(ONE)
    found = examine(made, random_samples(input_specs(made), 16))
    assert found.inputs[0].values is not None


def test_the_model_is_left_as_it_is() -> None:
    made = model(ONE)
    before = made.serialize()
    examine(made, pictures(2))
    assert made.serialize() == before


def test_samples_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError):
        examine(model(ONE), wrap_samples([{"x": np.zeros((1, 2, 4, 4), np.float32)}], input_specs(model(ONE))))


def test_samples_of_several_sizes_are_compared_by_size() -> None:
    made = "main (float[n, m] x) => (float[n, m] y) { y = Add(x, x) }"
    random = np.random.default_rng(0)
    samples = [{"x": random.random((1, 2 + index % 3)).astype(np.float32)} for index in range(24)]
    assert codes(made, samples) == []


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((1, 3, 224, 224), 1),
        ((1, 224, 224, 3), 3),
        (("n", 1, 28, 28), 1),
        ((1, 64, 7, 7), None),
        ((1, 3), None),
        ((1, 1, 1, 3), None),
        (None, None),
    ],
)
def test_channels_are_on_the_axis_that_has_few(shape, axis) -> None:
    assert channel_axis(shape) == axis


def test_values_are_written_short() -> None:
    assert [short(value) for value in (-2.1179, 151.06, 0.0, 1e-8, 44171.0)] == [
        "-2.12",
        "151",
        "0",
        "1.00e-08",
        "44171",
    ]


def test_text_has_no_figures() -> None:
    made = model("main (string[n] x) => (string[n] y) { y = Identity(x) }")
    for dtype in (object, str):
        found = examine(made, [{"x": np.array([str(index)], dtype)} for index in range(20)])
        assert found.inputs[0].values is None
        assert found.inputs[0].given is None
        assert not found.warnings


def test_one_sample_far_beyond_the_others_is_named() -> None:
    samples = pictures(20)
    assert codes(ONE, samples) == []
    samples[7]["x"][0, 0, 0, 0] = 1e6
    assert codes(ONE, samples) == ["odd-sample"]
    found = examine(model(ONE), samples)
    assert found.warnings[0].message == "row 7 of 'x' reaches 1.00e+06, and no other more than 0.998"
    assert examine(model(ONE), samples, calibrating=False).warnings == ()


TABLE = "main (float[n, 5] x) => (float[n, 5] y) { y = Add(x, x) }"


def table(count: int = 20) -> list[dict[str, np.ndarray]]:
    return [{"x": row[None]} for row in np.random.default_rng(0).normal(size=(count, 5)).astype(np.float32)]


def test_a_number_in_place_of_missing_values_is_named() -> None:
    samples = table(32)
    assert codes(TABLE, samples) == []
    for sample in samples[::3]:
        sample["x"][0, 2] = -999
    (found,) = [one for one in examine(model(TABLE), samples).warnings if one.code == "odd-sample"]
    assert found.message.startswith("11 rows of 'x' reach 999, and no other more than ")
    assert "missing value" in found.remedy


def test_a_column_that_numbers_the_rows_is_named() -> None:
    samples = table()
    for row, sample in enumerate(samples):
        sample["x"][0, 0] = row + 5
    (found,) = examine(model(TABLE), samples).warnings
    assert str(found).startswith("column 0 of 'x' rises by 1 from row to row (index-column).")
    samples[7]["x"][0, 0] += 1
    assert codes(TABLE, samples) == []


def test_a_column_far_beyond_the_others_is_named_and_makes_no_rows_equal() -> None:
    text = """main (float[n, 5] x) => (float[n, 4] y)
        <float[5, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2}> { y = MatMul(x, w) }"""
    rows = np.random.default_rng(0).normal(size=(20, 1, 5)).astype(np.float32)
    assert codes(text, [{"x": row} for row in rows]) == []
    rows[:, 0, 2] = 1.7e9 + 60 * np.arange(20)
    (found,) = examine(model(text), [{"x": row} for row in rows]).warnings
    assert found.code == "unscaled-column"
    assert found.message == "column 2 of 'x' has values around 1.70e+09, and a typical column around 0.833"
    seen = examine(model(text), [{"x": row} for row in rows], calibrating=False)
    assert [one.code for one in seen.warnings] == [
        "unscaled-column"
    ]  # weights alone are quantized, and it is wrong still
    scaled = text.replace("MatMul(x, w)", "MatMul(s, w)").replace("{ y", "{ s = Sigmoid(x) y")
    assert codes(scaled, [{"x": row} for row in rows]) == []


def test_truths_that_were_converted_are_no_pictures() -> None:
    samples = [{"x": one["x"] > 0.5} for one in table()]
    (found,) = [one for one in examine(model(TABLE), samples).warnings if one.code == "dtype-converted"]
    assert found.remedy == "Convert and scale them as in training: True became 1, and False 0."


def test_sound_that_was_divided_twice_is_named() -> None:
    text = "main (float[n, 600] x) => (float[n, 600] y) { y = Neg(x) }"
    sound = np.sin(np.cumsum(np.random.default_rng(0).random((20, 1, 600)), axis=-1)).astype(np.float32)
    assert codes(text, [{"x": row} for row in sound]) == []
    assert codes(text, [{"x": row / 300} for row in sound]) == []
    (found,) = examine(model(text), [{"x": row / 32768} for row in sound]).warnings
    assert "(-3.05e-05 … 3.05e-05) are those of sound that was divided by 32768 twice" in str(found)


def test_an_array_that_is_given_for_two_inputs_is_named() -> None:
    text = "main (float[n, 5] a, float[n, 5] b) => (float[n, 5] y) { y = Add(a, b) }"
    samples = [{"a": one["x"], "b": one["x"]} for one in table()]
    assert codes(text, samples) == ["repeated-input"]
    samples[3]["b"] = samples[3]["a"] + 1
    assert codes(text, samples) == []
    assert codes(text, [{"a": one["x"], "b": 0 * one["x"] + 1} for one in table()]) == []
    assert "repeated-input" not in codes(text, [{"a": 0 * one["x"], "b": 0 * one["x"]} for one in table()])


def test_token_ids_that_are_all_the_same_are_named() -> None:
    text = "main (int64[n, m] ids, float[n, 5] x) => (float[n, m] y, float[n, 5] z) <float[120] table = {TABLE}>"
    text = f"{text} {{ y = Gather(table, ids) z = Neg(x) }}".replace("{TABLE}", "{" + ", ".join(["0.5"] * 120) + "}")
    zeros = [{"ids": np.zeros((1, 6), np.int64), **one} for one in table()]
    assert "constant-ids" in codes(text, zeros)
    assert "constant-ids" not in codes(text, [{"ids": np.zeros((1, 1), np.int64), **one} for one in table()])
    zeros[4]["ids"][0, 3] = 1
    assert "constant-ids" not in codes(text, zeros)


def test_a_mask_of_zeros_and_samples_that_do_not_run() -> None:
    ends = "(int64[n, 6] ids, int64[n, 6] attention_mask) => (float[n, 6] y) <float[4] table = {1, 2, 3, 4}>"
    text = f"main {ends} {{ y = Gather(table, ids) z = Neg(attention_mask) }}"
    samples = [{"ids": np.full((1, 6), index % 4), "attention_mask": np.zeros((1, 6), int)} for index in range(20)]
    assert "empty-mask" in codes(text, samples)
    samples = [{"ids": np.full((1, 6), index), "attention_mask": np.ones((1, 6), int)} for index in range(20)]
    assert codes(text, samples)[-1] == "not-run"


@pytest.mark.parametrize("mask", ["float[1, 1, 4, 4] mask", "bool[n, 16] src_key_padding_mask"])
def test_a_mask_of_padding_may_be_zeros(mask: str) -> None:
    text = f"main (float[n, 5] x, {mask}) => (float[n, 5] y, {mask.split('[')[0]}[a] z) {{ y = Neg(x) "
    text += f"shape = Constant<value_ints = [-1]>() z = Reshape({mask.split()[-1]}, shape) }}"
    kind, sizes = (np.float32, (1, 1, 4, 4)) if "float" in mask else (bool, (1, 16))
    assert "empty-mask" not in codes(text, [{**one, mask.split()[-1]: np.zeros(sizes, kind)} for one in table()])


def test_sizes_that_have_to_be_multiples_are_named() -> None:
    fours = model(
        "main (float[n, length] x) => (float[n, m, 4] y) <int64[3] shape = {0, -1, 4}> { y = Reshape(x, shape) }"
    )
    samples = [{"x": np.random.default_rng(seed).random((1, 13), np.float32)} for seed in range(20)]
    (warning,) = [one for one in examine(fours, samples).warnings if one.code == "not-run"]
    assert warning.remedy.startswith(
        "The model runs where sizes are multiples of 4: 'x' as [1, 16] in place of [1, 13]."
    )


def test_a_model_with_a_scalar_input_may_fail_on_its_samples() -> None:
    parts = "(float[n, length] x, float scale) => (float[n, m, 4] y) <int64[3] shape = {0, -1, 4}>"
    fours = model(f"main {parts} {{ a = Mul(x, scale) y = Reshape(a, shape) }}")
    samples = [{"x": np.ones((1, 13), np.float32), "scale": np.float32(index)} for index in range(20)]
    assert "not-run" in [one.code for one in examine(fours, samples).warnings]


def test_integers_of_sound_have_another_remedy() -> None:
    mono = model("sound (float[n, 512] x) => (float[n, 512] y) { y = Tanh(x) }")
    rows = [{"x": np.random.default_rng(seed).integers(-9000, 9000, (1, 512), np.int16)} for seed in range(20)]
    (warning,) = [one for one in examine(mono, rows).warnings if one.code == "dtype-converted"]
    assert warning.remedy.endswith("sound is often divided by 32768.")


def test_zero_has_no_sign() -> None:
    assert short(-0.0) == "0"


def test_one_huge_sample_makes_no_others_equal() -> None:
    samples = pictures(20)
    samples[4] = {"x": samples[4]["x"] * np.float32(1e30)}
    assert codes(ONE, samples) == ["odd-sample"]


EMBED = """main (int64[n, 6] ids) => (float[n, 6, 4] y) <float[9, 4] table = {TABLE}> { c = Cast<to = 6>(ids)
    y = Gather(table, c) }"""


MASKED = """main (int64[1, 6] attention_mask, float[1, 6] x) => (float[1, 6] y)
    { c = Cast <to = 1> (attention_mask)  y = Mul (x, c) }"""


def test_a_mask_of_other_numbers_than_0_and_1_is_named() -> None:
    random = np.random.default_rng(0)
    masks = random.integers(0, 2, (20, 1, 6))
    samples = [{"attention_mask": mask, "x": random.normal(size=(1, 6)).astype(np.float32)} for mask in masks]
    assert "mask-values" not in codes(MASKED, samples)
    samples[3]["attention_mask"] = random.integers(50, 99, (1, 6))
    (warning,) = [one for one in examine(model(MASKED), samples).warnings if one.code == "mask-values"]
    assert "of whole numbers holds 0 and 1 (mask-values). Check that arrays of two inputs" in str(warning)


def test_a_function_that_gives_other_samples_each_time_is_named() -> None:
    def drawn(random: np.random.Generator) -> Iterator[dict[str, np.ndarray]]:
        return (
            {"attention_mask": np.ones((1, 6), np.int64), "x": random.random((1, 6), np.float32)} for _ in range(20)
        )

    unseeded = np.random.default_rng(0)
    assert "other-samples" in codes(MASKED, lambda: drawn(unseeded))
    assert "other-samples" not in codes(MASKED, lambda: drawn(np.random.default_rng(0)))


def test_token_ids_below_zero_are_named() -> None:
    text = EMBED.replace("{TABLE}", "{" + ", ".join(["0.5"] * 36) + "}")
    ids = np.random.default_rng(0).integers(0, 9, (20, 1, 6))
    assert "negative-ids" not in codes(text, [{"ids": row} for row in ids])
    ids[3, 0, 5] = -1
    (warning,) = [one for one in examine(model(text), [{"ids": row} for row in ids]).warnings if "ids" in one.code]
    assert str(warning).startswith("'ids' holds -1, and rows of its table count from 0 to 8 (negative-ids). Fill up")
    assert "negative-ids" not in codes(IDS, [{"ids": row} for row in ids])


@pytest.mark.parametrize(
    ("node", "named"),
    [
        ("RandomNormalLike", "RandomNormalLike"),
        ("RandomNormalLike <seed = 1.0>", ""),
        ("Identity", ""),
    ],
)
def test_nodes_that_draw_random_numbers_are_named(node: str, named: str) -> None:
    text = f"main (float[n, 3, 4, 4] x) => (float[n, 3, 4, 4] y) {{ r = {node}(x) y = Add(x, r) }}"
    found = [one for one in examine(model(text), pictures(20)).warnings if one.code == "random-outputs"]
    assert [str(one).partition(" node")[0] for one in found] == ([named] if named else [])


@pytest.mark.parametrize("training", [0, 1])
def test_dropout_in_training_is_named(training: int) -> None:
    text = (
        "main (float[n, 3, 4, 4] x) => (float[n, 3, 4, 4] y) "
        f"<float ratio = {{0.5}}, bool training = {{{training}}}> {{ y = Dropout(x, ratio, training) }}"
    )
    assert ("random-outputs" in codes(text, pictures(20))) == bool(training)


def test_ids_beyond_a_table_are_said_in_words() -> None:
    text = EMBED.replace("{TABLE}", "{" + ", ".join(["0.5"] * 36) + "}")
    ids = np.random.default_rng(0).integers(0, 9, (20, 1, 6))
    ids[0, 0, 3] = 30
    (warning,) = [one for one in examine(model(text), [{"ids": row} for row in ids]).warnings if one.code == "not-run"]
    assert "it reads row 30 of a table whose last row is 8" in warning.message
    assert "its own tokenizer" in warning.remedy


def test_one_sample_judges_no_model() -> None:
    def found(count: int) -> list[str]:
        seen = examine(model(ONE), pictures(count), calibrating=False, judging=True)
        return [warning.message for warning in seen.warnings if warning.code == "few-samples"]

    assert found(1) == ["accuracy is judged on only 1 sample"]
    assert not found(2)
