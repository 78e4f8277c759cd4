"""`calibrate --shard` and `merge`: the same file as from one run, and what does not belong together is refused."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest

from onnxq.api.calibrate import Shard, calibrate
from onnxq.calibration.shard_file import ShardStats, load_shard, merge_shards, save_shard
from onnxq.cli import main
from onnxq.distributed.shards import Calibration, open_calibration
from onnxq.errors import DataError
from onnxq.progress import Silent

SAMPLES = Path(__file__).parents[2] / "sample_models"
CALIBRATE = (
    "calibrate",
    "digits_attention.onnx",
    "-d",
    "digits_calibration.npz",
    "--recipe",
    "static-int8",
    "--samples",
    "40",
)


def onnxq(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the statistics of one run and of three shards."""
    root = tmp_path_factory.mktemp("shards")
    for name in ("digits_attention.onnx", "digits_calibration.npz"):
        shutil.copy(SAMPLES / name, root)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        assert onnxq(*CALIBRATE, "-o", "one.stats") == 0
        for number in range(1, 4):
            assert onnxq(*CALIBRATE, "--shard", f"{number}/3", "-o", f"part{number}.stats") == 0
    return root


@pytest.fixture
def here(measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "work"
    shutil.copytree(measured, root)
    monkeypatch.chdir(root)
    return root


def test_the_file_is_that_of_one_run_in_any_order(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = sorted(here.glob("part*.stats"))
    for seed in range(3):
        random.Random(seed).shuffle(parts)
        assert onnxq("merge", *parts, "-o", f"all{seed}.stats") == 0
        assert Path(f"all{seed}.stats").read_bytes() == Path("one.stats").read_bytes()
    assert capsys.readouterr().err.count("measured on 40 samples") == 3


def test_quantize_writes_the_same_bytes(here: Path) -> None:
    assert onnxq("merge", *sorted(here.glob("part*")), "-o", "all.stats") == 0
    for name in ("all", "one"):
        assert (
            onnxq("quantize", "digits_attention.onnx", "--stats", f"{name}.stats", "--fast", "-o", f"{name}.onnx") == 0
        )
    assert Path("all.onnx").read_bytes() == Path("one.onnx").read_bytes()


def test_what_is_missing_or_there_twice_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert onnxq("merge", "part1.stats", "-o", "all.stats") == 2
    assert "shards 2 and 3 of 3 are missing" in capsys.readouterr().err
    shutil.copy("part2.stats", "copy.stats")
    assert onnxq("merge", "part2.stats", "part1.stats", "copy.stats", "-o", "all.stats") == 2
    assert "part2.stats and copy.stats are both shard 2 of 3" in capsys.readouterr().err
    assert onnxq("quantize", "digits_attention.onnx", "--stats", "part2.stats") == 2
    assert "part2.stats holds one shard of the statistics" in capsys.readouterr().err
    assert onnxq("merge", "one.stats", "-o", "all.stats") == 2
    assert "one.stats holds no shard" in capsys.readouterr().err
    assert not Path("all.stats").exists()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("onnxq", "0.0.9", "another version of onnxq: "),
        ("onnxruntime", "1.0", "another version of onnxruntime: "),
        ("model", "f" * 64, "another model"),
        ("recipe", "f" * 64, "another recipe or target"),
        ("reading", {"preprocess": ["mean=0.5"]}, "another way to read the data: "),
        ("data", ["other.npz"], 'another data: ["digits_calibration.npz"] and ["other.npz"]'),
        ("samples", 41, "another number of samples: 40 and 41"),
    ],
)
def test_shards_of_something_else_are_refused(here: Path, key: str, value: object, said: str) -> None:
    shard = load_shard(Path("part2.stats"))
    other: Mapping[str, Any] = {**shard.origin, key: value}
    save_shard(Path("other.stats"), ShardStats(other, 2, shard.sums))
    with pytest.raises(DataError) as caught:
        merge_shards([Path("part1.stats"), Path("other.stats")])
    assert f"part1.stats and other.stats were measured with {said}" in caught.value.message


def test_no_shard_at_all_is_refused() -> None:
    with pytest.raises(DataError, match="no shard is named"):
        merge_shards([])


def test_a_saved_shard_comes_back(here: Path) -> None:
    save_shard(Path("again.stats"), load_shard(Path("part3.stats")))
    assert Path("again.stats").read_bytes() == Path("part3.stats").read_bytes()
    Path("again.stats").write_bytes(Path("part3.stats").read_bytes()[:-200])
    assert onnxq("merge", "again.stats", "-o", "all.stats") == 2


@pytest.mark.parametrize("given", ["3", "0/4", "5/4", "a/b", "1/0"])
def test_what_is_no_shard_is_refused(here: Path, given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert onnxq(*CALIBRATE, "--shard", given, "-o", "x.stats") == 2
    assert f"--shard {given} is no part of a whole" in capsys.readouterr().err


def test_more_shards_than_blocks_are_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert onnxq(*CALIBRATE, "--shard", "3/17", "-o", "x.stats") == 2
    assert "40 samples make at most 16 shards, not 17" in capsys.readouterr().err
    assert not Path("x.stats").exists()


def test_onnxruntime_may_be_installed_under_another_name(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)  # as with onnxruntime-gpu
    opened = open_calibration(Calibration(Path(CALIBRATE[1]), (CALIBRATE[3],), recipe=CALIBRATE[5]), Silent())
    assert opened.origin(1)["onnxruntime"] == ort.__version__


@pytest.mark.parametrize(("number", "count"), [(0, 2), (3, 2), (1, 0)])
def test_a_shard_that_there_is_not_is_refused(here: Path, number: int, count: int) -> None:
    shard = Shard(number, count)
    with pytest.raises(DataError, match=f"no shard {number} of {count}"):
        calibrate(CALIBRATE[1], "x.stats", data=CALIBRATE[3], recipe=CALIBRATE[5], shard=shard)
    assert not Path("x.stats").exists()


def test_samples_of_a_function_are_counted_and_cut(here: Path) -> None:
    Path("given.py").write_text(
        "import numpy as np\n"
        "def samples():\n"
        "    array = np.load('digits_calibration.npz')['image']\n"
        "    return ({'image': array[i:i+1]} for i in range(40))\n"
    )
    command = [*CALIBRATE[:3], "given:samples", *CALIBRATE[4:6]]
    for number in (1, 2):
        assert onnxq(*command, "--shard", f"{number}/2", "-o", f"half{number}.stats") == 0
    assert onnxq("merge", "half2.stats", "half1.stats", "-o", "all.stats") == 0
    assert Path("all.stats").read_bytes() == Path("one.stats").read_bytes()
