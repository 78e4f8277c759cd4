"""A run says that it goes on, and its tasks notice when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxq.distributed import lease
from onnxq.distributed.lease import Lease, Watch
from onnxq.errors import OutputError


def test_tasks_end_with_the_run(tmp_path: Path) -> None:
    with Lease(tmp_path) as held:
        watch = Watch(held.path)
        assert not watch.is_over()
    assert watch.is_over()
    assert not list(tmp_path.iterdir())


def test_a_run_that_was_killed_is_over_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(lease.time, "monotonic", lambda: now[0])
    path = tmp_path / "lease"
    path.write_text("1 0\n")
    watch = Watch(path)
    assert not watch.is_over()
    now[0] = 119
    assert not watch.is_over()
    path.write_text("1 1\n")
    now[0] = 200
    assert not watch.is_over()
    now[0] = 321
    assert watch.is_over()


def test_the_file_changes_while_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT", 0.01)
    with Lease(tmp_path) as held:
        first = held.path.read_text()
        for _ in range(300):
            lease.time.sleep(0.01)
            if held.path.read_text() not in (first, ""):
                break
        assert held.path.read_text() != first


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="nothing cannot be written"), Lease(tmp_path / "nothing"):
        pass
