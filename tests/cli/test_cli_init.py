from pathlib import Path

import pytest

from onnxq.project.file import load_project


def test_a_first_project_file_and_what_comes_next(cli, folder: Path) -> None:
    code, out, err = cli("init")
    assert (code, err) == (0, "wrote onnxq.toml: 1 model\n")
    assert [line.split() for line in out.splitlines()] == [
        ["model", "calibrates", "with", "verifies", "on"],
        ["digits_cnn.onnx", "digits_calibration.npz"],
        [],
        ["next:"],
        ["onnxq", "quantize"],
    ]
    (entry,) = load_project().entries
    assert (entry.source, entry.options.data) == (Path("digits_cnn.onnx"), ("digits_calibration.npz",))
    assert cli("check").code == 1  # it is not built yet


def test_a_dry_run_writes_nothing(cli, folder: Path) -> None:
    code, out, err = cli("init", "--dry-run")
    assert (code, err) == (0, "")
    assert not Path("onnxq.toml").exists()
    Path("onnxq.toml").write_text(out)
    assert len(load_project().entries) == 1
    assert cli("init", "--dry-run").out == out  # also beside a project file


@pytest.mark.parametrize("name", ["onnxq.toml", "pyproject.toml"])
def test_a_project_file_is_never_replaced(cli, folder: Path, name: str) -> None:
    Path(name).write_text("[[tool.onnxq.models]]\n")
    code, out, err = cli("init")
    assert (code, out) == (2, "")
    assert (
        err.splitlines()[0]
        == {
            "onnxq.toml": "error: onnxq.toml exists already",
            "pyproject.toml": "error: pyproject.toml has a table [tool.onnxq] already",
        }[name]
    )
    assert "hint: Add models to it by hand" in err
    assert Path(name).read_text() == "[[tool.onnxq.models]]\n"


def test_another_folder(cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("onnxq.toml").write_text('[[models]]\nfloat = "digits_cnn.onnx"\n')
    Path("sub").mkdir()
    Path("digits_cnn.onnx").rename("sub/digits_cnn.onnx")
    code, out, err = cli("init", "sub")
    assert code == 0
    assert out.endswith("next:\n  cd sub && onnxq quantize\n")
    assert err == "onnxq.toml is a project file, too: below sub, the new one counts\nwrote sub/onnxq.toml: 1 model\n"
    Path("sub").rename("my sub")
    Path("my sub/onnxq.toml").unlink()
    assert cli("init", "my sub").out.endswith("next:\n  cd 'my sub' && onnxq quantize\n")
    code, out, err = cli("init", "gone")
    assert (code, out, err) == (2, "", "error: gone is no folder\nhint: Give the folder that holds the models.\n")


def test_what_is_left_out_is_named(cli, folder: Path) -> None:
    Path("broken.onnx").write_text("x")
    Path("digits_calibration.npz").write_text("x")
    code, _, err = cli("init", "--dry-run")
    assert code == 0
    first, second = err.splitlines()
    assert first.startswith("left out broken.onnx: it is not a readable ONNX model")
    assert second.startswith("digits_cnn.onnx does not take digits_calibration.npz: ")
