"""Models that read the bytes of a text need no tokenizer."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto
from text_support import save_tokenizer

from onnxq.data.reading import ModelFacts, Reading
from onnxq.data.samples import InputSpec, open_samples
from onnxq.errors import DataError

SMALL = InputSpec("input", TensorProto.UINT8, ("n", "t"))
WIDE = InputSpec("input_ids", TensorProto.INT64, ("n", "t"))


def read(folder: Path, spec: InputSpec, text: str = "Grüße\nab", **reading) -> list[list[int]]:
    (folder / "s.txt").write_text(text, "utf-8")
    samples = open_samples(folder / "s.txt", [spec], Reading(**reading), ModelFacts(folder / "m.onnx"))
    return [sample[spec.name][0].tolist() for sample in samples]


def test_an_input_of_bytes_gets_them(tmp_path: Path) -> None:
    assert read(tmp_path, SMALL) == [[*"Grüße".encode()], [97, 98]]
    named = InputSpec("bytes", TensorProto.INT32, ("n", 4))
    assert read(tmp_path, named) == [[*"Grüße".encode()[:4]], [97, 98, 0, 0]]
    assert read(tmp_path, SMALL, max_length=3) == [[*"Grüße".encode()[:3]], [97, 98]]


def test_texts_are_filled_up_to_a_length(tmp_path: Path) -> None:
    assert read(tmp_path, SMALL, "abcdef\nab", preprocess=("length=4",)) == [[*b"abcd"], [97, 98, 0, 0]]
    named = InputSpec("bytes", TensorProto.INT32, ("n", 4))
    with pytest.raises(DataError, match="takes 4 tokens, and --preprocess says length=5"):
        read(tmp_path, named, preprocess=("length=5",))
    with pytest.raises(DataError, match="length cannot be 'x'"):
        read(tmp_path, SMALL, preprocess=("length=x",))


def test_other_inputs_get_them_if_asked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no tokenizer\.json is next to"):
        read(tmp_path, WIDE)
    assert read(tmp_path, WIDE, tokenizer="bytes") == [[*"Grüße".encode()], [97, 98]]


def test_a_tokenizer_next_to_the_model_goes_before(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    save_tokenizer(tmp_path)
    assert read(tmp_path, SMALL, "the cat") != [[*b"the cat"]]


def test_next_bytes_are_labels_and_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "s.txt").write_text("abc")
    samples = open_samples(tmp_path / "s.txt", [SMALL], Reading(), ModelFacts(tmp_path / "m.onnx"))
    (following,) = samples.labels()["_next"]
    np.testing.assert_array_equal(following, [[98, 99, -1]])
    (told,) = samples.preparations
    assert (told.origin, told.settings["tokenizer"]) == ("bytes", "bytes")
