"""States that are fed from step to step: which output goes to which input, and what a model sees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto
from sound_support import detector

from onnxq.data.reading import ModelFacts, Reading
from onnxq.data.recurrent.pairs import find_pairs, state_pairs
from onnxq.data.samples import Samples, input_specs, open_samples
from onnxq.data.validation import InputSpec
from onnxq.errors import DataError
from onnxq.evaluator import Evaluator
from onnxq.ir import Model, infer_types, load

FLOAT = TensorProto.FLOAT


def spec(name: str, *shape: int | str, dtype: int = FLOAT) -> InputSpec:
    return InputSpec(name, dtype, shape)


@pytest.mark.parametrize(
    ("states", "outputs", "pairs"),
    [
        (["h", "c"], ["y", "cn", "hn"], {"h": "hn", "c": "cn"}),
        (["state"], ["output", "stateN"], {"state": "stateN"}),
        (["conv_cache", "inter_cache"], ["inter_cache_out", "conv_cache_out"], None),
        (
            ["in_state1", "in_state2"],
            ["out_state1", "out_state2"],
            {"in_state1": "out_state1", "in_state2": "out_state2"},
        ),
        (["past.0.key", "past.0.value"], ["present.0.value", "present.0.key"], None),
        (["past_key_values.1.key"], ["present.0.key", "present.1.key"], {"past_key_values.1.key": "present.1.key"}),
        (["a", "b"], ["first", "second"], {"a": "first", "b": "second"}),
    ],
)
def test_names_and_order_pair(states: list[str], outputs: list[str], pairs: dict[str, str] | None) -> None:
    found = find_pairs([spec(name, 1, 4) for name in states], [spec(name, 1, 4) for name in outputs])
    if pairs is None:
        assert found is not None
        assert all(name.split("_")[0].split(".")[-1] in other for name, other in found.items() if "cache" in name)
        assert all(name.split(".")[-1] in other for name, other in found.items() if "past" in name)
    else:
        assert found == pairs


def test_what_cannot_be_paired() -> None:
    assert find_pairs([spec("h", 1, 4)], [spec("y", 1, 5)]) is None
    assert find_pairs([spec("h", 1, 4)], [spec("y", 1, 4), spec("z", 1, 4)]) is None
    assert find_pairs([spec("h", 1, 4)], [spec("hn", 1, 4, dtype=TensorProto.DOUBLE)]) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hn", "'hn', which is not OUTPUT=INPUT"),
        ("h=hn", "the wrong way round"),
        ("hm=h", "the model has no output 'hm'"),
        ("hn=g", "the model has no input 'g'"),
        ("hn=h,y=h", "feeds 'h' twice"),
        ("new_*=*", "no output and input fit 'new_"),
        ("y=h", r"output 'y' is float32\[1, 5\], and input 'h' is float32\[1, 4\]"),
    ],
)
def test_what_a_user_may_get_wrong(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        state_pairs([text], [spec("x", 1, 3), spec("h", 1, 4)], [spec("y", 1, 5), spec("hn", 1, 4)])


def test_a_star_stands_for_all_states_that_fit() -> None:
    inputs = [spec("x", 1, 3), spec("cached_key_0", 1, 4), spec("cached_key_1", 1, 4), spec("lens", 1)]
    outputs = [spec("y", 1, 5), spec("new_cached_key_0", 1, 4), spec("new_cached_key_1", 1, 4), spec("new_lens", 1)]
    expected = {name: f"new_{name}" for name in ("cached_key_0", "cached_key_1", "lens")}
    assert state_pairs(["new_*=*"], inputs, outputs) == expected
    assert state_pairs(["new_cached_*=cached_*, new_lens=lens"], inputs, outputs) == expected


def fed(tmp_path: Path, count: int = 6, state: str = "stateN=state") -> tuple[Model, np.ndarray, Samples]:
    model = load(detector(tmp_path / "m.onnx"))
    infer_types(model)
    steps = np.random.default_rng(0).normal(0, 0.1, (count, 256)).astype(np.float32)
    np.savez(tmp_path / "d.npz", input=steps, sr=np.full(count, 16000), _label=np.arange(count))
    samples = open_samples(tmp_path / "d.npz", input_specs(model), Reading(state=state), ModelFacts.of(model))
    return model, steps, samples


def test_arrays_are_steps_of_one_sequence(tmp_path: Path) -> None:
    model, steps, samples = fed(tmp_path)
    evaluator, state = Evaluator(model, wide=True), np.zeros((1, 1, 16), np.float32)
    for step, sample in zip(steps, samples, strict=True):
        np.testing.assert_array_equal(sample["input"], step[None], strict=True)
        np.testing.assert_array_equal(sample["state"], state, strict=True)
        feeds = {"input": step[None], "sr": np.array(16000), "state": state}
        state = evaluator.run(feeds, ["stateN"])["stateN"]
    assert np.abs(state).max() > 0
    assert samples.count == 6
    assert samples.limit(2).labels()["_label"][0].tolist() == [0, 1]
    assert "state: zeros, then 'stateN' of the step before (--state)" in map(str, samples.preparations)


def test_settings_of_pictures_say_nothing_about_steps(tmp_path: Path) -> None:
    model, _, samples = fed(tmp_path)
    assert samples.ignored == ()
    reading = Reading(state="stateN=state", preprocess="size=8")
    samples = open_samples(tmp_path / "d.npz", input_specs(model), reading, ModelFacts.of(model))
    assert samples.ignored == ("'preprocess' has no effect: no array is preprocessed",)


def test_a_second_pass_gives_the_same_without_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, samples = fed(tmp_path)
    first = list(samples)
    monkeypatch.setattr("onnxq.data.recurrent.feed.FloatModel.run", None)
    for one, other in zip(first, samples, strict=True):
        np.testing.assert_array_equal(one["state"], other["state"], strict=True)


def test_states_that_are_in_the_data_as_well(tmp_path: Path) -> None:
    model, steps, _ = fed(tmp_path)
    np.savez(tmp_path / "d.npz", input=steps, sr=np.full(6, 16000), state=np.zeros((6, 1, 1, 16), np.float32))
    with pytest.raises(DataError, match="holds 'state', which --state feeds from step to step"):
        open_samples(tmp_path / "d.npz", input_specs(model), Reading(state="stateN=state"), ModelFacts.of(model))
    facts = ModelFacts(outputs=(spec("stateN", 1, "batch", 16),))
    with pytest.raises(DataError, match="which is not at hand"):
        open_samples(tmp_path / "d.npz", input_specs(model), Reading(state="stateN=state"), facts)
