"""How many processors a process may use: those that it is bound to, and those whose time its container gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxq.targets import host

quota_of_this_process = host.processor_quota  # which other tests replace


@pytest.fixture
def limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 64 processors whose limits for the container are in a folder."""
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    monkeypatch.setattr(host, "_limit", None)
    monkeypatch.setattr(host, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(host, "OLD_QUOTA", (tmp_path / "quota", tmp_path / "period"))
    monkeypatch.setattr(host, "processor_quota", quota_of_this_process.__wrapped__)
    return tmp_path


@pytest.mark.parametrize(
    ("said", "processors"),
    [
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("50000 100000", 1),
        ("max 100000", 64),
        ("", 64),
        ("9900000 100000", 64),
    ],
)
def test_a_container_has_the_processors_whose_time_it_gets(limits: Path, said: str, processors: int) -> None:
    (limits / "cpu.max").write_text(said)
    assert host.available_processors() == processors


@pytest.mark.parametrize(("quota", "processors"), [("400000\n", 4), ("-1\n", 64)])
def test_so_it_is_with_the_first_version_of_control_groups(limits: Path, quota: str, processors: int) -> None:
    (limits / "quota").write_text(quota)
    (limits / "period").write_text("100000\n")
    assert host.available_processors() == processors


def test_a_limit_above_all_processors_is_theirs(limits: Path) -> None:
    assert host.processor_limit() == 0
    host.limit_processors(100_000)
    assert host.processor_limit() == host.available_processors() == 64
    host.limit_processors(3)
    assert host.processor_limit() == 3


def test_without_control_groups_all_count(limits: Path) -> None:
    assert host.available_processors() == 64
    with host.one_processor():
        assert host.available_processors() == 1
