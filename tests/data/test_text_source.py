"""Samples from sentences: tokens by input name, lengths, batches, and the caches of decoders."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import floats, node
from onnx import TensorProto, helper, numpy_helper
from text_support import decoder, encoder, save_tokenizer, sentences

from onnxq.data.reading import PLAIN, ModelFacts, Reading
from onnxq.data.samples import Samples, input_specs, open_samples
from onnxq.data.validation import InputSpec
from onnxq.errors import DataError
from onnxq.evaluator import Evaluator
from onnxq.ir import infer_types, load

pytest.importorskip("tokenizers")


def specs(*names: str, batch: object = "n", length: object = "t") -> list[InputSpec]:
    return [InputSpec(name, TensorProto.INT64, (batch, length)) for name in names]  # type: ignore[arg-type]


def opened(folder: Path, inputs: list[InputSpec], reading: Reading = PLAIN, lines: str = "") -> Samples:
    (folder / "s.txt").write_text(lines or "the cat sees\na dog\nthe large bird hears a small cat\n")
    if not (folder / "tokenizer.json").exists():
        save_tokenizer(folder)
    return open_samples(folder / "s.txt", inputs, reading, ModelFacts(folder / "m.onnx"))


BERT = ("input_ids", "attention_mask", "token_type_ids", "position_ids")


def test_each_sentence_has_its_own_length(tmp_path: Path) -> None:
    samples = opened(tmp_path, specs(*BERT))
    rows = list(samples)
    assert [row["input_ids"].shape for row in rows] == [(1, 5), (1, 4), (1, 9)]
    np.testing.assert_array_equal(rows[1]["input_ids"], np.array([[2, 5, 7, 3]]), strict=True)
    assert rows[2]["attention_mask"].tolist() == [[1] * 9]
    assert rows[2]["position_ids"].tolist() == [list(range(9))]
    assert rows[2]["token_type_ids"].tolist() == [[0] * 9]
    (told,) = samples.preparations
    assert told.words == "4 … 9 tokens a text, mean 6.0, at most 32"
    labels = samples.labels()
    assert labels["_next"][1].tolist() == [[5, 7, 3, -1]]
    assert [int(one[0]) for one in labels["_length"]] == [5, 4, 9]


def test_a_fixed_length_and_batch_fill_up_and_cut(tmp_path: Path) -> None:
    samples = opened(tmp_path, specs(*BERT, batch=2, length=6))
    (only,) = samples
    assert only["input_ids"].tolist() == [[2, 4, 6, 9, 3, 0], [2, 5, 7, 3, 0, 0]]
    assert only["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0]]
    assert "1 row left over" in samples.description
    assert samples.notes == (f"{tmp_path / 's.txt'}: 1 text cut to 6 tokens",)
    with pytest.raises(DataError, match="has 3 sentences, and the model takes 8 at once"):
        opened(tmp_path, specs(*BERT, batch=8))


def test_max_length_cuts_and_is_checked(tmp_path: Path) -> None:
    samples = opened(tmp_path, specs("input_ids"), Reading(max_length=5))
    assert [row["input_ids"].shape[1] for row in samples] == [5, 4, 5]
    assert list(samples)[2]["input_ids"][0, -1] == 3  # the end stays
    with pytest.raises(DataError, match=r"--max-length is 40, and the files in .* allow 32"):
        opened(tmp_path, specs("input_ids"), Reading(max_length=40))
    with pytest.raises(DataError, match="takes 6 tokens, and --max-length is 7"):
        opened(tmp_path, specs("input_ids", length=6), Reading(max_length=7))


def with_places(folder: Path, rows: int, *, given: bool) -> ModelFacts:
    """Make a model with a table of places, whose indices are given, or counted from the size of the ids."""
    arrays = {"tokens": floats(40, 6), "places": floats(rows, 6), "zero": np.int64(0), "one": np.int64(1)}
    nodes = [node("Gather", "tokens input_ids", "e")]
    if not given:
        nodes += [
            node("Shape", "e", "sizes"),
            node("Gather", "sizes one", "size"),
            node("Range", "zero size one", "at"),
        ]
    nodes += [node("Gather", f"places {'position_ids' if given else 'at'}", "p"), node("Add", "e p", "y")]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "t"])
        for name in ("input_ids", "position_ids")[: 1 + given]
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "t", 6])
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "g", inputs, [output], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    model = load(folder / "m.onnx")
    infer_types(model)
    return ModelFacts.of(model)


@pytest.mark.parametrize("given", [True, False])
def test_texts_have_no_more_tokens_than_the_model_has_places(tmp_path: Path, given: bool) -> None:
    save_tokenizer(tmp_path)
    (tmp_path / "s.txt").write_text("the cat sees\n" + "a dog hears the bird " * 4 + "\n")
    for rows, size in ((9, 9), (200, 22)):
        facts = with_places(tmp_path, rows, given=given)
        assert facts.model is not None
        samples = open_samples(tmp_path / "s.txt", input_specs(facts.model), PLAIN, facts)
        assert [row["input_ids"].shape[1] for row in samples] == [5, size]
    facts = with_places(tmp_path, 9, given=given)
    assert facts.model is not None
    inputs = input_specs(facts.model)
    cut = f"{tmp_path / 's.txt'}: 1 text cut to 9 tokens"
    assert open_samples(tmp_path / "s.txt", inputs, PLAIN, facts).notes == (cut,)
    with pytest.raises(DataError, match="--max-length is 10, and the model has places for 9 tokens"):
        open_samples(tmp_path / "s.txt", inputs, Reading(max_length=10), facts)


def test_padding_on_the_left_moves_positions(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"padding_side": "left"}')
    row = next(iter(opened(tmp_path, specs(*BERT, length=7))))
    assert row["input_ids"].tolist() == [[0, 0, 2, 4, 6, 9, 3]]
    assert row["position_ids"].tolist() == [[0, 0, 0, 1, 2, 3, 4]]


def test_pairs_have_types_and_labels_numbers(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"id2label": {"0": "no", "1": "YES"}}))
    (tmp_path / "s.csv").write_text("a,b,label\nthe cat,a dog,yes\na bird,the cat sees,no\n")
    reading = Reading(text_key=("a,b",))
    samples = open_samples(tmp_path / "s.csv", specs(*BERT), reading, ModelFacts(tmp_path / "m.onnx"))
    assert next(iter(samples))["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1]]
    assert np.concatenate(samples.labels()["_label"]).tolist() == [1, 0]
    assert samples.limit(1).labels()["_label"][0].tolist() == [1]


def test_names_and_types_of_other_exporters(tmp_path: Path) -> None:
    inputs = [
        InputSpec("input_ids:0", TensorProto.INT32, (None, 8)),
        InputSpec("segment_ids:0", TensorProto.INT32, (None, 8)),
        InputSpec("input_mask:0", TensorProto.FLOAT, (None, 8)),
        InputSpec("unique_ids_raw_output:0", TensorProto.INT32, (None,)),
    ]
    with pytest.raises(DataError, match="takes something other than tokens"):
        opened(tmp_path, inputs)
    row = next(iter(opened(tmp_path, inputs, Reading(preprocess=("unique_ids_raw_output:0.value=7",)))))
    assert row["input_ids:0"].dtype == np.int32
    assert row["input_mask:0"].dtype == np.float32
    assert row["unique_ids_raw_output:0"].tolist() == [7]


def test_a_decoder_gets_an_empty_cache_and_steps(tmp_path: Path) -> None:
    model = load(decoder(tmp_path / "m.onnx"))
    infer_types(model)
    save_tokenizer(tmp_path)
    (tmp_path / "s.txt").write_text("\n".join(sentences(3)))
    samples = open_samples(tmp_path / "s.txt", input_specs(model), Reading(), ModelFacts.of(model))
    rows = list(samples)
    assert samples.count == len(rows) == 15
    assert rows[0]["past_key_values.0.key"].shape == (1, 1, 0, 16)
    whole = np.concatenate([row["input_ids"] for row in rows[:5]], axis=1)
    size = whole.shape[1]
    assert rows[4]["past_key_values.0.key"].shape == (1, 1, size - 1, 16)
    assert rows[4]["attention_mask"].shape == (1, size)
    assert rows[4]["position_ids"].tolist() == [[size - 1]]
    # a step gives what the same token gives within the whole text, read with the keys of all before it
    feeds = {name: array.copy() for name, array in rows[4].items()}
    evaluator = Evaluator(model, wide=True)
    once = evaluator.run(feeds, ["present.0.key"])["present.0.key"]
    first = {**rows[0], "input_ids": whole, "attention_mask": np.ones_like(whole)}
    first["position_ids"] = np.arange(size)[None]
    np.testing.assert_allclose(
        once, Evaluator(model, wide=True).run(first, ["present.0.key"])["present.0.key"], atol=1e-6
    )
    again = list(samples)
    for row, other in zip(rows, again, strict=True):
        for name, array in row.items():
            np.testing.assert_array_equal(array, other[name], strict=True)


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s.txt").write_text("a\n")
    facts = ModelFacts(tmp_path / "m.onnx")
    with pytest.raises(DataError, match=r"holds sentences, and no tokenizer\.json is next to") as caught:
        open_samples(tmp_path / "s.txt", specs("input_ids"), Reading(), facts)
    assert "--tokenizer" in caught.value.hint
    with pytest.raises(DataError, match="does not exist"):
        open_samples(tmp_path / "s.txt", specs("input_ids"), Reading(tokenizer=tmp_path / "none.json"), facts)
    save_tokenizer(tmp_path / "other")
    given = Reading(tokenizer=tmp_path / "other")
    assert open_samples(tmp_path / "s.txt", specs("input_ids"), given, facts).count == 1
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(DataError, match="reading sentences needs tokenizers, which is not installed") as caught:
        open_samples(tmp_path / "s.txt", specs("input_ids"), given, facts)
    assert caught.value.hint == "Install it: pip install 'onnxq[text]'"


BROKEN = {
    "empty": "",
    "text": "hello",
    "cut": '{"version": "1.0", "model": {"type": "Word',
    "list": "[]",
    "null": "null",
    "number": "5",
    "other": '{"a": 1}',
    "no model": '{"version": "1.0", "model": null}',
    "model": '{"version": "1.0", "model": {"type": "Nothing"}}',
    "vocabulary": '{"version": "1.0", "model": {"type": "WordLevel", "vocab": 5}}',
    "pointer": "version https://git-lfs.github.com/spec/v1\noid sha256:1\n",
    "page": "<!DOCTYPE html><html></html>",
    "config": '{"model_max_length": 512, "tokenizer_class": "BertTokenizer"}',
    "vocab.txt": "[PAD]\n[UNK]\nthe\n",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_tokenizers_are_named(kind: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(BROKEN[kind])
    with pytest.raises(DataError, match=r"tokenizer\.json is (no tokenizer|a Git LFS pointer|a web page)") as caught:
        opened(tmp_path, specs("input_ids"))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([*specs("input_ids"), *specs("decoder_input_ids")], "'decoder_input_ids' .* takes something other"),
        (specs("input_ids", "input_tokens"), "both look like token ids"),
        (
            [*specs("input_ids"), InputSpec("attention_mask", TensorProto.INT64, (1, 1, "t", "t"))],
            "is no row of numbers",
        ),
        ([*specs("input_ids"), InputSpec("past.k", TensorProto.FLOAT, ("n", "h", "t", 4))], "no outputs go with"),
    ],
)
def test_models_that_take_something_else(inputs: list[InputSpec], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        opened(tmp_path, inputs)


def test_an_encoder_decoder_is_told_what_to_save(tmp_path: Path) -> None:
    states = InputSpec("encoder_hidden_states", TensorProto.FLOAT, ("n", "s", 16))
    with pytest.raises(DataError, match=r"'encoder_hidden_states' .* takes something other") as caught:
        opened(tmp_path, [*specs("input_ids"), states])
    assert caught.value.hint.startswith("Run what makes it, such as an encoder, on your texts.")
    shape = ("n", 2, "t", 4)
    names = [f"past.{layer}.{which}" for layer in range(2) for which in ("decoder", "encoder")]
    caches = [InputSpec(name, TensorProto.FLOAT, shape) for name in names]
    made = tuple(InputSpec(f"present.{layer}.decoder", TensorProto.FLOAT, shape) for layer in range(2))
    facts = ModelFacts(tmp_path / "m.onnx", outputs=made)
    with pytest.raises(DataError, match=r"no outputs go with the caches past\.0\.encoder, past\.1\.encoder$"):
        open_samples(tmp_path / "s.txt", [*specs("input_ids"), *caches], PLAIN, facts)


def test_state_is_refused_for_sentences(tmp_path: Path) -> None:
    encoder(tmp_path / "m.onnx")
    model = load(tmp_path / "m.onnx")
    save_tokenizer(tmp_path)
    (tmp_path / "s.txt").write_text("a\n")
    with pytest.raises(DataError, match="the model has no input 'h'"):
        open_samples(tmp_path / "s.txt", input_specs(model), Reading(state="logits=h"), ModelFacts.of(model))
