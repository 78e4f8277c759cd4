"""What `onnxq quantize` does to files: reads those of the model only, writes what it says whole or not at all."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import build, floats, node

from onnxq.cli import main
from onnxq.errors import OutputError
from onnxq.ir import load, save
from onnxq.ir.storage import atomic_write, residency
from onnxq.pipeline import quantize as pipeline
from onnxq.runtime import segmented

SAMPLES = Path(__file__).parents[1] / "sample_models"
ONNXQ = [sys.executable, "-m", "onnxq"]


def start(*arguments: object, limit: int | None = None) -> subprocess.Popen[str]:
    """Start the command line, no file of it larger than `limit` bytes; Python would leave truncated bytecode."""

    def limited() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    command = [*ONNXQ, *map(str, arguments)]
    env = os.environ if limit is None else os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env, preexec_fn=limited)


@pytest.fixture(params=["in memory", "in segments"])
def size(request, monkeypatch):
    """Let the model be small, or large."""
    if request.param == "in segments":
        monkeypatch.setattr(residency, "LARGE", 0)
        monkeypatch.setattr(segmented, "BESIDE", 256)
        monkeypatch.setattr("onnxq.ir.storage.scratch_file.SPOOLED", 256)
        monkeypatch.setattr("onnxq.rounding.weights.SPOOLED", 256)
    return request.param


def model() -> onnx.ModelProto:
    nodes = [node("MatMul", "x w", "a"), node("Relu", "a", "r"), node("MatMul", "r v", "y")]
    return build(nodes, {"x": ["N", 64]}, weights={"w": floats(64, 64), "v": floats(64, 64, seed=1)})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A model with its weights in `weights.bin`, in a folder of its own."""
    folder = tmp_path / "source"
    folder.mkdir()
    path = folder / "m.onnx"
    onnx.save(model(), path, save_as_external_data=True, location="weights.bin", size_threshold=1024)
    return path


def names(folder: Path) -> set[str]:
    return set(os.listdir(folder))


# -- what is read ---------------------------------------------------------------------------------------------------


def point(path: Path, **entries: object) -> None:
    """Let the weights of a model point elsewhere."""
    proto = onnx.load(path, load_external_data=False)
    for tensor in proto.graph.initializer:
        known = {entry.key: entry.value for entry in tensor.external_data}
        del tensor.external_data[:]
        for key, value in {**known, **entries}.items():
            tensor.external_data.add(key=key, value=str(value))
    path.write_bytes(proto.SerializeToString())


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ({"location": "../secret"}, "points outside the model's folder"),
        ({"location": "sub/../../secret"}, "points outside the model's folder"),
        ({"location": "{secret}"}, "points outside the model's folder"),
        ({"location": "link"}, "points outside the model's folder"),
        ({"location": "hard"}, "is a hard link and may belong elsewhere"),
        ({"location": "missing"}, "which cannot be read (No such file or directory)"),
        ({"location": "."}, "which is no regular file"),
        ({"location": "pipe"}, "which is no regular file"),
        ({"offset": 1 << 40}, "which has 32768"),
        ({"offset": 20000}, "which has 32768"),
        ({"offset": -8}, "needs bytes -8"),
        ({"length": 1 << 40}, "needs bytes"),
        ({"length": 12}, "needs bytes"),
        ({"offset": "x"}, "offset that is no number"),
    ],
    ids=str,
)
def test_weights_that_are_not_the_models_own_are_refused(source, tmp_path, capsys, size, entries, sentence):
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(32768))
    (source.parent / "link").symlink_to(secret)
    os.link(secret, source.parent / "hard")
    os.mkfifo(source.parent / "pipe")
    point(source, **{key: str(value).format(secret=secret) for key, value in entries.items()})
    out = tmp_path / "out.onnx"
    assert main(["quantize", str(source), "-o", str(out)]) == 2
    said = capsys.readouterr().err
    assert sentence in " ".join(said.split())
    assert "hint:" in said
    assert "Traceback" not in said
    assert not out.exists()


@pytest.mark.parametrize("where", ["embedded", "external"])
def test_a_claim_of_a_terabyte_takes_no_memory(source, tmp_path, capsys, where):
    proto = onnx.load(source, load_external_data=where == "embedded")
    proto.graph.initializer[0].dims[0] = 1 << 40
    source.write_bytes(proto.SerializeToString())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert main(["quantize", str(source), "-o", str(tmp_path / "out.onnx")]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


# -- what is written ------------------------------------------------------------------------------------------------


def test_nothing_is_written_beside_the_source(source, tmp_path, size):
    """A folder's time changes with whatever appears or goes in it, however short."""
    before = {path: path.stat().st_mtime_ns for path in (source.parent, *source.parent.iterdir())}
    (tmp_path / "elsewhere").mkdir()
    source.parent.chmod(0o555)
    try:
        data = [{"x": floats(4, 64, seed=seed)} for seed in range(4)]
        for recipe in ("dynamic-int8", "static-int8", "weight-int8"):
            pipeline.quantize(source, recipe, output=tmp_path / "elsewhere" / f"{recipe}.onnx", samples=data)
    finally:
        source.parent.chmod(0o755)
    assert {path: path.stat().st_mtime_ns for path in (source.parent, *source.parent.iterdir())} == before
    assert names(tmp_path / "elsewhere") == {"dynamic-int8.onnx", "static-int8.onnx", "weight-int8.onnx"}


def test_running_again_appends_nothing(source, tmp_path, size):
    sizes = []
    for _ in range(3):
        report = pipeline.quantize(source, output=tmp_path / "o.onnx", external_data=True, force=True)
        sizes.append([file.stat().st_size for file in report.files])
    assert sizes == [sizes[0]] * 3
    assert sizes[0][1] == 2 * 64 * 64  # no byte that belongs to no weight
    onnx.checker.check_model(str(tmp_path / "o.onnx"), full_check=True)


def test_odd_names(source, tmp_path, capsys, size):
    folder = tmp_path / "mit Leerzeichen ÄÖ 模型"
    shutil.move(source.parent, folder)
    out = folder / "größer %s {x}.onnx"
    assert main(["quantize", str(folder / "m.onnx"), "-o", str(out), "--external-data"]) == 0
    assert names(folder) == {"m.onnx", "weights.bin", out.name, f"{out.name}.data"}
    onnx.checker.check_model(str(out))


def test_the_files_of_the_source_are_never_replaced(source, tmp_path, capsys):
    for out, force in (("m.onnx", True), ("weights.bin", True), ("weights.bin", False)):
        content = (source.parent / out).read_bytes()
        options = ["--force"] if force else []
        assert main(["quantize", str(source), "-o", str(source.parent / out), *options]) == 2
        assert (source.parent / out).read_bytes() == content
    (source.parent / "o.onnx.data").write_bytes(b"precious")
    assert main(["quantize", str(source), "-o", str(source.parent / "o.onnx"), "--external-data"]) == 2
    assert "o.onnx.data exists already" in " ".join(capsys.readouterr().err.split()).replace(" .data", ".data")
    assert (source.parent / "o.onnx.data").read_bytes() == b"precious"
    other = source.with_name("weights")
    (source.parent / "weights.bin").rename(source.parent / "weights.data")
    point(source, location="weights.data")
    with pytest.raises(OutputError, match="holds the weights of"):
        save(load(source), other, force=True, external_data=True)


@pytest.mark.parametrize("limit", [4 << 10, 100 << 10], ids=["model", "scratch"])
def test_a_full_disk_leaves_nothing(tmp_path, limit):
    wide = floats(256, 256)
    path, out = tmp_path / "m.onnx", tmp_path / "out"
    out.mkdir()
    proto = build([node("MatMul", "x w", "y")], {"x": ["N", 256]}, weights={"w": wide})
    path.write_bytes(proto.SerializeToString())
    process = start("quantize", path, "-o", out / "o.onnx", limit=limit)
    _, said = process.communicate(timeout=120)
    if limit < wide.size:
        assert process.returncode == 2, said
        assert "cannot be written (File too large)" in " ".join(said.split())
    assert names(out) <= {"o.onnx"}
    assert (out / "o.onnx").exists() == (process.returncode == 0)


def test_a_full_disk_under_a_large_model_is_a_sentence(source, tmp_path, capsys, monkeypatch):
    for module in (residency, None):
        if module:
            monkeypatch.setattr(module, "LARGE", 0)
        monkeypatch.setattr("onnxq.ir.storage.scratch_file.SPOOLED", 256)
        monkeypatch.setattr("onnxq.rounding.weights.SPOOLED", 256)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python would leave truncated files
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        code = main(["quantize", str(source), "-o", str(tmp_path / "o.onnx")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 2
    assert "cannot take a scratch file (File too large)" in " ".join(capsys.readouterr().err.split())
    assert names(tmp_path) == {"source"}


# -- several at once, and killed ones -------------------------------------------------------------------------------


def together(commands: Sequence[Sequence[object]]) -> None:
    running = [start(*command) for command in commands]
    for process in running:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said


@pytest.mark.slow
def test_eight_runs_at_once_write_the_same(source, tmp_path):
    outputs = [tmp_path / f"{n}.onnx" for n in range(4)]
    commands = [("quantize", source, "-o", out, "--external-data") for out in outputs]
    together([*commands, *(("quantize", source, "-f", "-o", tmp_path / "same.onnx") for _ in range(4))])
    data = {out.with_name(f"{out.name}.data").read_bytes() for out in outputs}
    assert len(data) == 1
    pipeline.quantize(source, output=tmp_path / "alone.onnx")
    assert (tmp_path / "same.onnx").read_bytes() == (tmp_path / "alone.onnx").read_bytes()
    assert not [name for name in names(tmp_path) if name.endswith(".tmp")]


@pytest.mark.slow
@pytest.mark.parametrize("old", [False, True])
def test_a_killed_run_leaves_the_old_output_or_none(source, tmp_path, old):
    out, before = tmp_path / "o.onnx", b"an older output"
    started = time.monotonic()
    together([("quantize", source, "-o", tmp_path / "whole.onnx")])
    takes, whole = time.monotonic() - started, (tmp_path / "whole.onnx").read_bytes()
    dice = random.Random(5)
    for _ in range(12):
        out.unlink(missing_ok=True)
        if old:
            out.write_bytes(before)
        process = start("quantize", source, "-f", "-o", out)
        time.sleep(takes * dice.uniform(0.3, 1.1))
        process.kill()
        process.communicate()
        if out.exists():
            assert out.read_bytes() in ((before, whole) if old else (whole,))
        assert old <= out.exists()
        assert {name for name in names(tmp_path) if name.endswith(".onnx")} <= {"o.onnx", "whole.onnx"}
    together([("quantize", source, "-f", "-o", out)])
    assert out.read_bytes() == whole
    assert names(tmp_path) == {"source", "o.onnx", "whole.onnx"}


def test_what_a_killed_run_left_is_cleaned_up_by_the_next(source, tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = tmp_path / f".o.onnx.{dead.pid}.tmp"
    alive = tmp_path / f".o.onnx.{os.getppid()}.tmp"
    others = [tmp_path / name for name in (f".p.onnx.{dead.pid}.tmp", ".o.onnx.x.tmp", ".oxonnx.1.tmp")]
    for path in (left, alive, *others):
        path.write_bytes(b"half a model")
    pipeline.quantize(source, output=tmp_path / "o.onnx")
    assert not left.exists()
    assert all(path.exists() for path in (alive, *others))


def test_a_file_in_use_is_not_cleaned_up(tmp_path):
    """Process numbers mean nothing between containers that share a folder; locks do."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    used = tmp_path / f".o.onnx.{dead.pid}.tmp"
    with used.open("wb") as file:
        atomic_write.lock(file)
        atomic_write.clean_up(tmp_path / "o.onnx")
        assert used.exists()
    atomic_write.clean_up(tmp_path / "o.onnx")
    assert not used.exists()


def test_outputs_of_large_models_hold_what_was_verified(source, tmp_path, size):
    report = pipeline.quantize(source, "dynamic-int8", output=tmp_path / "o.onnx")
    proto = onnx.load(tmp_path / "o.onnx")
    codes = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer if t.data_type == 3}
    assert sorted(array.shape for array in codes.values()) == [(64, 64), (64, 64)]
    assert all(np.abs(array).max() == 127 for array in codes.values())
    assert report.comparison is not None
    assert report.comparison.worst_sqnr > 30
