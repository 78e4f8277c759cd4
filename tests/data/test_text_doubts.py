"""What looks wrong about sentences: another model's tokenizer, tokens that it does not know, no names of columns."""

from __future__ import annotations

from pathlib import Path

import pytest
from text_support import encoder, save_tokenizer, sentences

from onnxq.data.reading import PLAIN, ModelFacts, Reading
from onnxq.data.samples import Samples, input_specs, open_samples
from onnxq.data.text.table_rows import table_rows
from onnxq.errors import DataError
from onnxq.ir import infer_types, load
from onnxq.verification.user_metric import check_labels, measure_metric

pytest.importorskip("tokenizers")


def opened(folder: Path, name: str, content: str, reading: Reading = PLAIN) -> Samples:
    encoder(folder / "m.onnx")
    if not (folder / "tokenizer.json").exists():
        save_tokenizer(folder)
    (folder / name).write_text(content)
    model = load(folder / "m.onnx")
    infer_types(model)
    return open_samples(folder / name, input_specs(model), reading, ModelFacts.of(model))


def codes(samples: Samples) -> list[str]:
    return [warning.code for warning in samples.warnings]


@pytest.mark.parametrize(
    ("content", "said"),
    [("[]", "it has no key 'model'"), ("{", "it is no JSON"), ('{"a": 1}', "it has no key 'model'")],
)
def test_a_file_that_is_no_tokenizer_is_told_plainly(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(DataError, match=f"t.json is no tokenizer: {said}"):
        opened(tmp_path, "s.txt", "the cat sees\n", Reading(tokenizer=str(tmp_path / "t.json")))


def test_the_tokenizer_of_another_model_is_named(tmp_path: Path) -> None:
    path = save_tokenizer(tmp_path)
    path.write_text(path.read_text().replace('"cat":6', '"cat":700').replace('"cat": 6', '"cat": 700'))
    with pytest.raises(DataError, match="makes token 700, and the model knows 64 tokens") as caught:
        opened(tmp_path, "s.txt", "the cat sees\n")
    assert caught.value.hint == "Give the model's own: --tokenizer tokenizer.json."


def test_the_table_is_found_behind_a_cast(tmp_path: Path) -> None:
    model = load(encoder(tmp_path / "m.onnx"))
    infer_types(model)
    assert table_rows(model, "input_ids") == 64
    assert table_rows(model, "token_type_ids") == 2
    assert table_rows(model, "attention_mask") is None


def test_unknown_tokens_are_counted(tmp_path: Path) -> None:
    assert codes(opened(tmp_path, "s.txt", "\n".join(sentences(8)))) == []
    (warning,) = opened(tmp_path, "s.txt", "der Hund bellt laut\nthe cat sees\n").warnings
    assert warning.code == "unknown-tokens"
    assert warning.message == "36 % of all tokens are unknown to tokenizer.json"


def test_a_table_without_names_is_noticed(tmp_path: Path) -> None:
    rows = "the cat sees,1\na dog hears,0\nthe bird sees,1\n"
    (warning,) = opened(tmp_path, "s.csv", rows).warnings
    assert warning.code == "no-header"
    assert warning.message.endswith("s.csv was taken for names of columns: 'the cat sees'")
    assert codes(opened(tmp_path, "s.csv", f"text,label\n{rows}")) == []
    assert codes(opened(tmp_path, "s.csv", rows, Reading(text_key="the cat sees"))) == []


def test_classes_of_a_table_score_a_classifier(tmp_path: Path) -> None:
    rows = "".join(f"{text},{number % 4}\n" for number, text in enumerate(sentences(24)))
    samples = opened(tmp_path, "s.csv", f"text,label\n{rows}")
    check_labels("top1", samples)
    assert 0 <= measure_metric("top1", tmp_path / "m.onnx", samples) <= 100
