"""Which files next to a model belong to its data, and that the lists are those that readers look for."""

from pathlib import Path

import pytest

from onnxq.data import beside
from onnxq.data.beside import SENTENCE_SUFFIXES, files_beside
from onnxq.data.sound.source import CONFIGS as SOUND_CONFIGS
from onnxq.data.text.sentences import TABLES
from onnxq.data.text.tokenizer import CONFIGS, NAME

ALL = {*beside.TOKENIZER, *beside.PICTURES, *beside.SOUNDS, "m.xml"}


def made(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    return folder / "m.onnx"


@pytest.mark.parametrize(
    ("data", "names"),
    [
        ("d.npz", set()),
        ("arrays/a.npy", set()),
        ("s.jsonl", {*beside.TOKENIZER}),
        ("photos/deep/a.JPG", {*beside.PICTURES, "m.xml"}),
        ("wavs/a.wav", {*beside.SOUNDS}),
        ("coco.yaml", {*beside.PICTURES, "m.xml"}),
    ],
)
def test_files_go_with_the_kind_of_data(tmp_path: Path, data: str, names: set[str]) -> None:
    model = made(tmp_path, *ALL, data)
    given = tmp_path / data.split("/")[0]
    assert {path.name for path in files_beside(model, [given])} == names


def test_a_tokenizer_that_is_named_goes_before_the_one_beside(tmp_path: Path) -> None:
    model = made(tmp_path, "tokenizer.json", "s.csv", "other/tokenizer.json", "other/config.json", "mine/words.json")
    found = files_beside(model, [tmp_path / "s.csv"], tmp_path / "other")
    assert found == [tmp_path / "other/tokenizer.json", tmp_path / "other/config.json"]
    named = tmp_path / "mine/words.json"
    assert files_beside(model, [tmp_path / "s.csv"], named) == [named]


def test_the_lists_are_those_of_the_readers() -> None:
    assert (NAME, *(f"{name}.json" for name in CONFIGS)) == beside.TOKENIZER
    assert set(SOUND_CONFIGS) == set(beside.SOUNDS)
    assert set(TABLES) < set(SENTENCE_SUFFIXES)
