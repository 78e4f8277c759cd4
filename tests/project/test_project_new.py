import errno
import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import build, floats, node

from onnxq.errors import ProjectError
from onnxq.project.file import load_project
from onnxq.project.new_project import NewProject, Proposal, propose, write_project


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Two products that take 4 and 8 numbers."""
    for name, size in (("four", 4), ("eight", 8)):
        weights = {"w": floats(size, 3)}
        onnx.save(build([node("MatMul", "x w", "y")], {"x": ["n", size]}, weights=weights), tmp_path / f"{name}.onnx")
    return tmp_path


def save(path: Path, size: int, count: int = 3) -> None:
    path.parent.mkdir(exist_ok=True)
    np.savez(path, x=np.zeros((count, size), np.float32))


def found(root: Path) -> dict[str, Proposal]:
    return {one.model: one for one in propose(root).models}


def test_data_that_a_model_takes_are_listed(models: Path) -> None:
    save(models / "data" / "calibration.npz", 4)
    save(models / "eight_calib.npz", 8, 300)
    save(models / "eight_test.npz", 8)
    project = found(models)
    assert project["four.onnx"].data == ("data/calibration.npz",)
    assert project["eight.onnx"] == Proposal("eight.onnx", ("eight_calib.npz",), ("eight_test.npz",), 200)
    assert "samples = 200\n" in project["eight.onnx"].to_toml()


def test_data_that_do_not_fit_are_left_out_with_the_reason(models: Path) -> None:
    save(models / "four_calib.npz", 5)
    project = found(models)
    assert project["four.onnx"].data == ()
    ((name, why),) = project["four.onnx"].refused
    assert name == "four_calib.npz"
    assert "5" in why
    assert "# no data found that fit" in project["four.onnx"].to_toml()


def test_data_of_another_name_serve_the_only_model(models: Path) -> None:
    (models / "eight.onnx").unlink()
    save(models / "street.npz", 4)
    assert found(models)["four.onnx"].data == ("street.npz",)
    shutil.copy(models / "four.onnx", models / "five.onnx")
    assert found(models)["four.onnx"].data == ()


def test_bytes_serve_only_where_there_are_no_floats(models: Path) -> None:
    np.savez(models / "bytes.npz", x=np.zeros((3, 4), np.uint8))
    assert found(models)["four.onnx"].data == ()
    (models / "eight.onnx").unlink()
    assert found(models)["four.onnx"].data == ("bytes.npz",)
    save(models / "street.npz", 4)
    assert found(models)["four.onnx"].data == ("street.npz",)


def test_what_is_no_float_model_is_left_out(models: Path) -> None:
    (models / "eight.onnx").write_text("nothing")
    model = onnx.load(models / "four.onnx")
    onnx.helper.set_model_props(model, {"onnxq_version": "0.1.0"})
    onnx.save(model, models / "done.onnx")
    left_out = dict(propose(models).left_out)
    assert left_out["done.onnx"] == "is quantized already"
    assert left_out["eight.onnx"].startswith("is not a readable ONNX model")
    (models / "four.onnx").unlink()
    with pytest.raises(ProjectError, match=r"there is no float model below .*: done\.onnx is quantized already"):
        propose(models)


def test_a_model_whose_types_cannot_be_told_is_left_out(models: Path) -> None:
    model = onnx.load(models / "four.onnx")
    model.graph.node[0].op_type, model.graph.node[0].domain = "Fancy", "com.acme"
    onnx.save(model, models / "four.onnx")
    project = propose(models)
    assert [one.model for one in project.models] == ["eight.onnx"]
    ((name, why),) = project.left_out
    assert name == "four.onnx"
    assert why.startswith("its types and shapes cannot be told: ")


def test_the_file_is_read_as_it_was_meant(tmp_path: Path) -> None:
    name = 'mödels/a "b"\\c.onnx'
    project = NewProject((Proposal(name, ("dätä/x y.npz",), ("v.npz",), 200), Proposal("b.onnx")))
    path = tmp_path / "onnxq.toml"
    write_project(project, path)
    first, second = load_project(path).entries
    assert first.source == tmp_path / name
    assert (first.options.data, first.verify_data, first.options.samples) == (("dätä/x y.npz",), ("v.npz",), 200)
    assert second.options.data == ()
    with pytest.raises(ProjectError, match="exists already"):
        write_project(project, path)


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match="gone is no folder"):
        propose(tmp_path / "gone")
    with pytest.raises(ProjectError, match="there is no float model below"):
        propose(tmp_path)


def test_a_whole_disk_is_refused() -> None:
    with pytest.raises(ProjectError, match="/ is the whole disk"):
        propose(Path("/"))


def test_a_full_disk_leaves_no_file(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(project: NewProject) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(NewProject, "to_toml", full)
    with pytest.raises(ProjectError, match="No space left") as refusal:
        write_project(propose(models), models / "onnxq.toml")
    assert "room" in refusal.value.hint
    assert not (models / "onnxq.toml").exists()


@pytest.mark.skipif(os.name != "posix", reason="names of files are Unicode elsewhere")
def test_names_that_are_no_utf_8_are_left_out(models: Path) -> None:
    """A project file is UTF-8: half of one was left behind."""
    save(models / "eight.npz", 8)
    odd = [os.fsencode(models) + name for name in (b"/eight\xe9.npz", b"/four\xe9.onnx")]
    try:
        for name, place in zip(("eight.npz", "four.onnx"), odd, strict=True):
            os.replace(os.fsencode(models / name), place)
    except OSError:
        pytest.skip("the file system takes UTF-8 alone")
    project = propose(models)
    assert [one.model for one in project.models] == ["eight.onnx"]
    assert [why for _, why in (*project.left_out, *project.models[0].refused)] == ["has a name that is no UTF-8"] * 2
    write_project(project, models / "onnxq.toml")
    assert "eight.onnx" in (models / "onnxq.toml").read_text("utf-8")
