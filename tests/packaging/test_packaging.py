"""What brings onnxq to other machines: the action, the conda recipe, the image, the wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ACTION = ROOT / ".github" / "actions" / "onnxq"
RECIPE = ROOT / "docs" / "packaging" / "conda" / "recipe.yaml"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with one model that is not built yet, and a program `onnxq` for the action to find."""
    shutil.copy(ROOT / "sample_models" / "digits_cnn.onnx", tmp_path)
    (tmp_path / "onnxq.toml").write_text('[[models]]\nfloat = "digits_cnn.onnx"\n')
    program = tmp_path / "bin" / "onnxq"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m onnxq "$@"\n')
    program.chmod(0o755)
    return tmp_path


def run(project: Path, commands: str) -> tuple[int, str, str]:
    """Run the action's script; return the exit code, what it printed, and the summary."""
    summary = project / "summary.md"
    environment = {
        **os.environ,
        "PATH": f"{project / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "GITHUB_STEP_SUMMARY": str(summary),
        "COMMANDS": commands,
    }
    done = subprocess.run(["bash", ACTION / "run.sh"], cwd=project, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, summary.read_text() if summary.exists() else ""


def test_the_action_puts_every_command_into_the_summary_and_fails_with_the_worst(project: Path) -> None:
    code, printed, summary = run(project, "check\n\ninspect digits_cnn.onnx\nplan nowhere.onnx\n")
    assert code == 2
    assert "### onnxq check: failed" in summary
    assert "### onnxq inspect digits_cnn.onnx: passed" in summary
    assert "### onnxq plan nowhere.onnx: could not run (exit code 2)" in summary
    assert "digits_cnn.int8.onnx" in summary
    assert "Conv" in printed


def test_the_action_passes_where_all_is_well_and_runs_nothing_for_no_command(project: Path) -> None:
    assert run(project, "--version\n")[0] == 0
    assert run(project, "")[0] == 0


def test_words_of_a_command_are_not_read_by_the_shell(project: Path) -> None:
    run(project, "plan $(touch made).onnx; touch made\n")
    assert not (project / "made").exists()


def test_the_action_runs_the_script_beside_it_and_takes_inputs_by_the_environment() -> None:
    text = (ACTION / "action.yml").read_text("utf-8")
    assert "$GITHUB_ACTION_PATH/run.sh" in text
    runs = re.findall(r"^ *run: (.*)$", text, re.MULTILINE)
    assert runs
    assert not any("${{" in line for line in runs)  # an input could hold code


def test_the_conda_recipe_needs_what_the_project_needs() -> None:
    recipe = RECIPE.read_text("utf-8")
    needed = re.search(r"^  run:\n((?:    - .*\n)+)", recipe, re.MULTILINE)
    assert needed is not None
    listed = [line.strip("- ").replace(" ", "") for line in needed[1].splitlines()]
    assert listed == [f"python{PROJECT['requires-python']}", *PROJECT["dependencies"]]
    assert f'version: "{PROJECT["version"]}"' in recipe
    assert "onnxq = onnxq.cli:main" in recipe


def test_rattler_build_renders_the_conda_recipe() -> None:
    rattler_build = pytest.importorskip("rattler_build")
    recipe = rattler_build.Stage0Recipe.from_file(RECIPE)
    (rendered,) = recipe.render(rattler_build.VariantConfig())
    assert rendered.recipe.package.name == PROJECT["name"]
    assert str(rendered.recipe.package.version) == PROJECT["version"]


def test_the_image_installs_extras_that_exist() -> None:
    text = (ROOT / "docs" / "packaging" / "Dockerfile").read_text("utf-8")
    extras = re.search(r"\.whl\)\[([\w,]+)\]", text)
    assert extras is not None
    assert set(extras[1].split(",")) <= PROJECT["optional-dependencies"].keys()


def test_the_image_is_made_of_what_a_wheel_needs_and_of_nothing_else() -> None:
    ignored = (ROOT / "docs" / "packaging" / "Dockerfile.dockerignore").read_text("utf-8").split()
    assert ignored[0] == "*"
    kept = {name.removeprefix("!") for name in ignored[1:]}
    assert kept == {"LICENSE", "README.md", "pyproject.toml", "onnxq"}
    assert all((ROOT / name).exists() for name in kept)
    assert PROJECT["readme"] in kept
    assert set(PROJECT["license-files"]) <= kept


@pytest.mark.slow
def test_wheel_and_source_install_and_work(tmp_path: Path) -> None:
    pytest.importorskip("build")
    source = tmp_path / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "bench"))
    subprocess.run([sys.executable, "-m", "build", "-o", tmp_path / "dist", source], check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    (archive,) = (tmp_path / "dist").glob("*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"onnxq/py.typed", "onnxq/targets/cpu.toml", "onnxq/planning/recipes/auto.toml"} <= set(names)
    assert not [name for name in names if name.startswith("tests/")]
    with tarfile.open(archive) as packed:
        assert any(name.endswith("/LICENSE") for name in packed.getnames())
        assert not [name for name in packed.getnames() if "/tests/" in name]
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    for built in (wheel, archive):
        subprocess.run([python, "-m", "pip", "install", "-q", "--force-reinstall", "--no-deps", built], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", archive], check=True)
    model = ROOT / "sample_models" / "digits_cnn.onnx"
    command = [tmp_path / "venv" / "bin" / "onnxq", "quantize", model, "-o", tmp_path / "q.onnx", "--fast"]
    subprocess.run(command, check=True, cwd=tmp_path)
