"""Which pictures there are: folders, classes, lists of paths, data files of ultralytics."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from onnxq.data.pictures.files import (
    holds_pictures,
    read_data_yaml,
    read_folder_of_pictures,
    read_list_of_pictures,
)
from onnxq.errors import DataError


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def names(rows: tuple[tuple[Path, ...], ...]) -> list[str]:
    return [" ".join(path.name for path in row) for row in rows]


def test_pictures_come_in_natural_order_and_hidden_files_are_none(tmp_path: Path) -> None:
    touch(tmp_path, "10.JPG", "2.png", "1.webp", ".hidden.png", "Thumbs.db", ".cache/a.png", "more/3.bmp")
    found = read_folder_of_pictures(tmp_path)
    assert names(found.rows) == ["1.webp", "2.png", "10.JPG", "3.bmp"]
    assert found.classes is None
    assert found.notes == ()


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    touch(tmp_path, "a.png", "b.gif", "c.txt", "d.txt")
    assert read_folder_of_pictures(tmp_path).notes == (
        f"{tmp_path}: 2 .txt and 1 .gif left out. Convert them to .jpg or .png.",
    )


def test_folders_are_classes_that_take_turns(tmp_path: Path) -> None:
    touch(tmp_path, "dog/a.png", "dog/b.png", "dog/c.png", "cat/d.png", "cat/deep/e.png", "empty/x.txt")
    found = read_folder_of_pictures(tmp_path)
    assert names(found.rows) == ["d.png", "a.png", "e.png", "b.png", "c.png"]
    assert found.classes == (0, 1, 0, 1, 1)
    assert found.names == ("cat", "dog")


def test_one_folder_is_no_class(tmp_path: Path) -> None:
    touch(tmp_path, "images/a.png", "images/b.png")
    assert read_folder_of_pictures(tmp_path).classes is None


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (("train/cat/a.png", "val/cat/b.png"), "holds parts of a data set: train and val"),
        (("a.gif", "b.heic", "c.gif"), "holds pictures that are not read: 2 .gif and 1 .heic"),
        (("a.ppm", "b.jfif", "c.nef"), "not read: 1 .ppm, 1 .jfif and 1 .nef"),
        (("images/a.png", "masks/a.png"), "holds pictures, and others of what is in them: images and masks"),
        (("a.png", "x/b.npz"), "holds pictures and arrays (x/b.npz)"),
    ],
)
def test_folders_that_are_refused(tmp_path: Path, files: tuple[str, ...], words: str) -> None:
    touch(tmp_path, *files)
    assert holds_pictures(tmp_path)
    with pytest.raises(DataError) as caught:
        read_folder_of_pictures(tmp_path)
    assert words in caught.value.message
    assert caught.value.hint


def test_a_list_of_paths(tmp_path: Path) -> None:
    touch(tmp_path, "a b.png", "c.png", "deep/d.png")
    listing = tmp_path / "list.txt"
    listing.write_text(f"a b.png\n\n./deep/d.png\n{tmp_path}/c.png\n")
    assert names(read_list_of_pictures(listing, 1).rows) == ["a b.png", "d.png", "c.png"]
    listing.write_text("a b.png 3\nc.png 1\n")
    found = read_list_of_pictures(listing, 1)
    assert (names(found.rows), found.classes) == (["a b.png", "c.png"], (3, 1))
    listing.write_text("c.png deep/d.png\n")
    assert names(read_list_of_pictures(listing, 2).rows) == ["c.png d.png"]
    listing.write_text("c.png deep/d.png 7\n")
    assert read_list_of_pictures(listing, 2).classes == (7,)


@pytest.mark.parametrize(
    ("text", "inputs", "words"),
    [
        ("", 1, "names no pictures"),
        ("gone.png\n", 1, "line 1: "),
        ("c.png\ngone.png\n", 1, "line 2: "),
        ("c.png\n", 2, "line 1 has 1 path"),
        ("c.png c.png c.png\n", 2, "line 1 has 3 paths"),
        ("deep\n", 1, "deep is a folder"),
        ("c.png 1\nc.png\n", 1, "some lines have a class"),
    ],
)
def test_lists_that_are_refused(tmp_path: Path, text: str, inputs: int, words: str) -> None:
    touch(tmp_path, "c.png", "deep/d.png")
    listing = tmp_path / "list.txt"
    listing.write_text(text)
    with pytest.raises(DataError) as caught:
        read_list_of_pictures(listing, inputs)
    assert words in caught.value.message
    assert caught.value.hint


def test_a_list_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_bytes(b"\xff\xfe\x00a")
    with pytest.raises(DataError, match="is no text in UTF-8: byte 0"):
        read_list_of_pictures(tmp_path / "list.txt", 1)


def test_a_data_file_of_ultralytics(tmp_path: Path) -> None:
    touch(
        tmp_path, "coco/images/val/1.jpg", "coco/images/train/2.jpg", "coco/images/train/3.jpg", "coco/labels/val/1.txt"
    )
    data = tmp_path / "coco.yaml"
    data.write_text("path: coco\ntrain: images/train\nval: images/val\nnames:\n  0: cat\n")
    found = read_data_yaml(data)
    assert names(found.rows) == ["1.jpg"]
    assert found.label == f"{data} (val)"
    data.write_text("path: coco\ntrain: [images/train, images/val]\n")
    assert names(read_data_yaml(data).rows) == ["2.jpg", "3.jpg", "1.jpg"]
    (tmp_path / "coco" / "list.txt").write_text("./images/val/1.jpg\n")
    data.write_text("path: coco\nval: list.txt\n")
    assert names(read_data_yaml(data).rows) == ["1.jpg"]


@pytest.mark.parametrize(
    ("text", "words"),
    [("names: [a]\n", "names no pictures"), ("val: gone\n", "does not exist"), ("val: none\n", "holds no pictures")],
)
def test_data_files_that_are_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "d.yaml").write_text(text)
    with pytest.raises(DataError, match=words):
        read_data_yaml(tmp_path / "d.yaml")


def test_a_link_back_gives_no_picture_twice(tmp_path: Path) -> None:
    touch(tmp_path, "a.png", "b.png")
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "up").symlink_to(tmp_path.parent)
    assert names(read_folder_of_pictures(tmp_path).rows) == ["a.png", "b.png"]


def test_a_folder_that_is_called_like_a_picture_is_none(tmp_path: Path) -> None:
    touch(tmp_path, "a.png", "b.png")
    (tmp_path / "c.png").mkdir()
    assert names(read_folder_of_pictures(tmp_path).rows) == ["a.png", "b.png"]


def test_a_folder_below_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "a.png", "sub/b.png")
    scan = os.scandir

    def closed(place: object) -> object:
        if str(place).endswith("sub"):
            raise PermissionError(13, "Permission denied", str(place))
        return scan(place)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(DataError, match=r"sub cannot be read \(Permission denied\)"):
        read_folder_of_pictures(tmp_path)
