"""Files that a list names are found, so that a change of one of them is seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxq.data.listed import listed_files
from onnxq.project.entry import Entry
from onnxq.project.provenance import _data_hash


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "photos").mkdir()
    for name in ("a.jpg", "b c.png", "d.wav"):
        (tmp_path / "photos" / name).write_bytes(name.encode())
    return tmp_path


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("photos/a.jpg\n\nphotos/b c.png\n", ["a.jpg", "b c.png"]),
        ("photos/a.jpg 3\nphotos/b c.png 4\n", ["a.jpg", "b c.png"]),
        ("photos/a.jpg photos/d.wav\n", ["a.jpg", "d.wav"]),
        ("photos/a.jpg photos/d.wav 1\n", ["a.jpg", "d.wav"]),
        ("A sentence about a.jpg and others.\n", []),
        ("", []),
    ],
)
def test_lists_name_files(folder: Path, text: str, names: list[str]) -> None:
    (folder / "list.txt").write_text(text)
    assert [file.name for file in listed_files(folder / "list.txt")] == names


def test_the_data_file_of_ultralytics_names_files(folder: Path) -> None:
    (folder / "data.yaml").write_text("path: .\nval: photos\n")
    assert [file.name for file in listed_files(folder / "data.yaml")] == ["a.jpg", "b c.png"]
    (folder / "data.yaml").write_text("val: nowhere\n")
    assert listed_files(folder / "data.yaml") == ()
    assert listed_files(folder / "photos") == ()


def test_a_changed_picture_changes_the_hash_of_its_list(folder: Path) -> None:
    (folder / "list.txt").write_text("photos/a.jpg\n")
    entry = Entry(folder, folder / "m.onnx", folder / "q.onnx")
    before = _data_hash(entry, "list.txt")
    (folder / "photos" / "b c.png").write_bytes(b"another one, which nobody lists")
    assert _data_hash(entry, "list.txt") == before
    (folder / "photos" / "a.jpg").write_bytes(b"another one")
    assert _data_hash(entry, "list.txt") != before


def test_a_listed_picture_belongs_to_its_model(folder: Path) -> None:
    (folder / "list.txt").write_text("photos/a.jpg\n")
    entry = Entry(folder, folder / "m.onnx", folder / "q.onnx", verify_data=("list.txt",))
    assert folder / "photos" / "a.jpg" in entry.files()
