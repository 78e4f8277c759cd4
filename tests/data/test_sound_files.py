"""Folders and lists of recordings."""

from __future__ import annotations

from pathlib import Path

import pytest
from sound_support import recordings, save_wav, tone

from onnxq.data.sound.files import holds_sounds, names_sounds, read_folder_of_sounds, read_list_of_sounds
from onnxq.errors import DataError


def test_a_folder_is_listed_in_natural_order(tmp_path: Path) -> None:
    recordings(tmp_path / "deep", 1)
    for name in ("10.wav", "9.WAV", "a.mp3", "notes.md"):
        save_wav(tmp_path / name, tone(0.01))
    found = read_folder_of_sounds(tmp_path)
    assert [path.name for path in found.files] == ["9.WAV", "10.wav", "0.wav"]
    assert found.classes is None
    assert found.notes == (f"{tmp_path}: 1 .mp3 and 1 .md left out. Convert them to .wav or .flac.",)


def test_folders_are_classes_that_take_turns(tmp_path: Path) -> None:
    recordings(tmp_path / "no", 2)
    recordings(tmp_path / "yes", 3)
    found = read_folder_of_sounds(tmp_path)
    assert found.names == ("no", "yes")
    assert found.classes == (0, 1, 0, 1, 1)
    recordings(tmp_path / "train", 1)
    with pytest.raises(DataError, match="holds parts of a data set: train"):
        read_folder_of_sounds(tmp_path)


def test_links_back_and_folders_called_like_recordings_are_none(tmp_path: Path) -> None:
    recordings(tmp_path, 2)
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "up").symlink_to(tmp_path.parent)
    (tmp_path / "c.wav").mkdir()
    assert [path.name for path in read_folder_of_sounds(tmp_path).files] == ["0.wav", "1.wav"]


def test_a_folder_of_other_recordings(tmp_path: Path) -> None:
    (tmp_path / "a.mp3").touch()
    assert holds_sounds(tmp_path)
    with pytest.raises(DataError, match=r"holds recordings that are not read: 1 \.mp3"):
        read_folder_of_sounds(tmp_path)


def test_a_list_of_paths(tmp_path: Path) -> None:
    recordings(tmp_path / "wavs", 2)
    path = tmp_path / "list.txt"
    path.write_text("wavs/0.wav 3\n\nwavs/1.wav 5\n")
    assert names_sounds(path)
    found = read_list_of_sounds(path)
    assert [file.name for file in found.files] == ["0.wav", "1.wav"]
    assert found.classes == (3, 5)
    path.write_text("wavs/0.wav\nwavs/none.wav\n")
    with pytest.raises(DataError, match=r"line 2: .*none\.wav does not exist"):
        read_list_of_sounds(path)
    path.write_text("wavs/0.wav\nwavs/1.wav 1\n")
    with pytest.raises(DataError, match="only some lines have a class"):
        read_list_of_sounds(path)
    path.write_text("\n")
    with pytest.raises(DataError, match="names no recordings"):
        read_list_of_sounds(path)
