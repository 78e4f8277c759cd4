"""What is named goes at the end of the process, and everything else stays."""

from pathlib import Path

from onnxq.ir.storage.temporary import named_temporary, remove_temporary, temporary_folder


def test_a_folder_goes_with_its_files(tmp_path: Path) -> None:
    with temporary_folder("a-", suffix=".tmp", parent=tmp_path) as folder:
        assert folder.parent == tmp_path
        assert (folder.name[:2], folder.suffix) == ("a-", ".tmp")
        (folder / "file").touch()
    assert not list(tmp_path.iterdir())


def test_only_what_is_named_now_is_removed(tmp_path: Path) -> None:
    kept, over, gone = (tmp_path / name for name in ("kept", "over", "gone"))
    for path in (kept, over, gone):
        path.touch()
    with named_temporary(over):
        pass
    with named_temporary(gone, tmp_path / "absent"), temporary_folder(parent=tmp_path) as folder:
        (folder / "file").touch()
        remove_temporary()
        assert sorted(tmp_path.iterdir()) == [kept, over]
    remove_temporary()
    assert sorted(tmp_path.iterdir()) == [kept, over]
