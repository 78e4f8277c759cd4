"""Lines of a corpus joined into windows for decoders, and what keeps its lines apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from decoders import LENGTH, genai_decoder
from onnx import TensorProto
from text_support import VOCABULARY, WORDS, decoder, save_tokenizer, sentences

from onnxq.data.reading import PLAIN, ModelFacts, Reading
from onnxq.data.samples import Samples, input_specs, open_samples
from onnxq.data.text.windows import MOST, _pieces
from onnxq.data.validation import InputSpec
from onnxq.errors import DataError
from onnxq.ir import infer_types, load

tokenizers = pytest.importorskip("tokenizers")
LOGITS = (InputSpec("logits", TensorProto.FLOAT, ("n", "t", VOCABULARY)),)


def save_decoder_tokenizer(folder: Path) -> None:
    """Words, and a mark in front of a text."""
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(
            {word: number for number, word in enumerate(["[PAD]", "[UNK]", "<s>", *WORDS])}, unk_token="[UNK]"
        )
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    made.save(str(folder / "tokenizer.json"))


def opened(
    folder: Path,
    count: int = 200,
    outputs: tuple[InputSpec, ...] = LOGITS,
    length: int | str = "t",
    reading: Reading = PLAIN,
    name: str = "corpus.txt",
) -> Samples:
    lines = sentences(count)
    rows = lines if name.endswith("txt") else ["text,label", *(f"{line},1" for line in lines)]
    (folder / name).write_text("\n".join(rows))
    if not (folder / "tokenizer.json").exists():
        save_decoder_tokenizer(folder)
    spec = InputSpec("input_ids", TensorProto.INT64, ("n", length))
    return open_samples(folder / name, [spec], reading, ModelFacts(folder / "m.onnx", outputs=outputs))


def test_lines_of_a_decoder_are_joined(tmp_path: Path) -> None:
    samples = opened(tmp_path)
    rows = [row["input_ids"] for row in samples]
    total = sum(len(line.split()) for line in sentences(200))
    size = total // 16
    assert {row.shape for row in rows} == {(1, size)}
    assert len(rows) >= 16
    assert all(row[0, 0] == 2 for row in rows)
    assert (np.concatenate([row[0, 1:] for row in rows]) > 2).all()
    told = f"200 texts joined, and cut into {len(rows)} windows of {size} tokens"
    assert samples.notes == (f"{tmp_path / 'corpus.txt'}: {told}",)


@pytest.mark.parametrize(
    ("outputs", "count", "name"),
    [
        ((InputSpec("last_hidden_state", TensorProto.FLOAT, ("n", "t", 384)),), 200, "corpus.txt"),
        (LOGITS, 3, "corpus.txt"),  # too few
        (LOGITS, 60, "corpus.csv"),  # labels
    ],
)
def test_others_keep_their_lines(outputs: tuple[InputSpec, ...], count: int, name: str, tmp_path: Path) -> None:
    assert opened(tmp_path, count, outputs, name=name).count == count


@pytest.mark.parametrize(("save", "added"), [(save_decoder_tokenizer, "1 token"), (save_tokenizer, "2 tokens")])
def test_texts_need_room_beside_marks(save: Callable[[Path], None], added: str, tmp_path: Path) -> None:
    save(tmp_path)
    with pytest.raises(DataError, match=rf"adds {added} to each text, and at most 1 leaves no room"):
        opened(tmp_path, reading=Reading(max_length=1))


def test_a_tokenizer_with_marks_on_both_sides_keeps_lines_apart(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    assert opened(tmp_path, 60).count == 60


def test_a_corpus_that_is_too_short_is_named(tmp_path: Path) -> None:
    (warning,) = opened(tmp_path, 3).warnings
    assert warning.code == "few-tokens"
    assert warning.message.startswith("the texts have only ")
    assert [one.code for one in opened(tmp_path, 60).warnings] == ["few-tokens"]
    assert not opened(tmp_path, 400).warnings
    others = (InputSpec("last_hidden_state", TensorProto.FLOAT, ("n", "t", 384)),)
    assert not opened(tmp_path, 3, others).warnings


def test_lengths_that_are_given(tmp_path: Path) -> None:
    rows = list(opened(tmp_path, length=24))
    assert {row["input_ids"].shape for row in rows} == {(1, 24)}
    rows = list(opened(tmp_path, reading=Reading(max_length=20)))
    assert {row["input_ids"].shape for row in rows} == {(1, 20)}


def test_a_cache_is_filled_by_windows(tmp_path: Path) -> None:
    model = load(decoder(tmp_path / "m.onnx"))
    infer_types(model)
    save_decoder_tokenizer(tmp_path)
    (tmp_path / "s.txt").write_text("\n".join(sentences(100)))
    samples = open_samples(tmp_path / "s.txt", input_specs(model), Reading(max_length=40), ModelFacts.of(model))
    rows = list(samples)
    lengths = [row["input_ids"].shape[1] for row in rows]
    assert lengths[:5] == [lengths[0], 1, 1, 1, 1]
    assert rows[4]["past_key_values.0.key"].shape == (1, 1, lengths[0] + 3, 16)
    assert len(rows) < 5 * 20  # in place of 5 steps for each of 100 lines


def test_windows_are_no_longer_than_the_table_of_rotations(tmp_path: Path) -> None:
    save_decoder_tokenizer(tmp_path)
    onnx.save(genai_decoder(), tmp_path / "m.onnx")
    (tmp_path / "corpus.txt").write_text("\n".join(sentences(2000)))
    model = load(tmp_path / "m.onnx")
    infer_types(model)
    samples = open_samples(tmp_path / "corpus.txt", input_specs(model), PLAIN, ModelFacts.of(model))
    assert samples.notes[-1].endswith(f"windows of {LENGTH} tokens")
    assert max(row["attention_mask"].shape[1] for row in samples.limit(20)) == LENGTH


def test_a_long_text_gives_pieces_of_all_of_it() -> None:
    lines = [f"line {number}" for number in range(20_000)]
    pieces = _pieces(lines, MOST * 100)
    assert len(pieces) == MOST
    assert pieces[0].startswith("line 0\n")
    assert pieces[-1].startswith(f"line 199{pieces[-1][8:10]}")
    assert all(60 <= len(piece) <= 200 for piece in pieces)
