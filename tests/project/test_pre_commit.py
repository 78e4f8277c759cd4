"""The hooks under the real pre-commit: an environment made from this working tree, real commits and real pushes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxq.version import __version__

ROOT = Path(__file__).parents[2]
PACKAGED = ("onnxq", "pyproject.toml", "README.md", "LICENSE", ".pre-commit-hooks.yaml")
PRE_COMMIT = [sys.executable, "-m", "pre_commit"]
QUANTIZED = Path("models/cnn.int8.onnx")
NO_NETWORK = ("Temporary failure in name resolution", "No matching distribution", "Could not fetch URL")

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="pre-commit needs git")


def run(*command: str, env: dict[str, str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=env, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )


def succeed(*command: str, env: dict[str, str], cwd: Path | None = None) -> str:
    done = run(*command, env=env, cwd=cwd)
    assert done.returncode == 0, done.stdout
    return done.stdout


def clean_environment(home: Path) -> dict[str, str]:
    """An environment in which nothing of this checkout or of the user's settings shows."""
    home.mkdir()
    (home / ".gitconfig").write_text("[user]\nname = T\nemail = t@example.com\n[init]\ndefaultBranch = main\n")
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") and k not in ("PYTHONPATH", "SKIP")}
    return env | {
        "PRE_COMMIT_HOME": str(home / "cache"),
        "GIT_CONFIG_GLOBAL": str(home / ".gitconfig"),
        "GIT_CONFIG_NOSYSTEM": "1",
    }


@pytest.fixture(scope="session")
def hooks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A git repository of what the package is built from, and its tag."""
    base = tmp_path_factory.mktemp("hooks")
    env, tree = clean_environment(base / "home"), base / "onnxq"
    tree.mkdir()
    for name in PACKAGED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tree / name)
    succeed("git", "init", "-q", env=env, cwd=tree)
    succeed("git", "add", "-A", env=env, cwd=tree)
    succeed("git", "commit", "-q", "-m", "The working tree", env=env, cwd=tree)
    succeed("git", "tag", f"v{__version__}", env=env, cwd=tree)
    return tree, f"v{__version__}"


def configure(folder: Path, hooks: tuple[Path, str]) -> None:
    """Write what the docs show, with a plain clone in place of the address."""
    shown = re.search(r"```yaml\n(.*?)```", (ROOT / "docs" / "how-to" / "pre-commit.md").read_text("utf-8"), re.DOTALL)
    assert shown
    lines = textwrap.dedent(shown[1].rstrip(" ")).replace("https://git.example.com/onnxq", f"file://{hooks[0]}")
    assert f"rev: {hooks[1]}\n" in lines
    assert "file://" in lines
    (folder / ".pre-commit-config.yaml").write_text(lines)


def install(base: Path, hooks: tuple[Path, str], extra: dict[str, str]) -> dict[str, str]:
    """Let pre-commit make its environment; gives the variables to call it with."""
    env = clean_environment(base / "home")
    (base / "empty").mkdir()
    configure(base / "empty", hooks)
    succeed("git", "init", "-q", env=env, cwd=base / "empty")
    done = run(*PRE_COMMIT, "install-hooks", env=env | extra, cwd=base / "empty")
    if done.returncode and any(words in done.stdout for words in NO_NETWORK):
        pytest.skip("pre-commit cannot reach a package index")
    assert done.returncode == 0, done.stdout
    return env


@pytest.fixture(scope="session")
def borrowing(hooks: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """pre-commit's environment with onnxq as it was installed there, and the other packages from ours, to save time."""
    base = tmp_path_factory.mktemp("borrowing")
    env = install(base, hooks, {"PIP_NO_DEPS": "1"})
    (packages,) = (base / "home" / "cache").glob("repo*/py_env-*/lib/python*/site-packages")
    ours = {sysconfig.get_path(kind) for kind in ("purelib", "platlib")}
    (packages / "borrowed.pth").write_text("\n".join(sorted(ours)) + "\n")  # they come behind its own
    where = "import onnxq; print(onnxq.__file__)"
    assert succeed(str(packages.parents[2] / "bin" / "python"), "-c", where, env=env, cwd=base).startswith(
        str(packages)
    )
    return env


class Repository:
    """A repository of models with the hooks installed, and one to push to."""

    def __init__(self, folder: Path, hooks: tuple[Path, str], env: dict[str, str]) -> None:
        self.env = env
        self.folder = folder
        configure(folder, hooks)
        succeed("git", "init", "-q", env=env, cwd=folder)
        succeed("git", "init", "-q", "--bare", str(folder.parent / "remote"), env=env)
        succeed("git", "remote", "add", "origin", str(folder.parent / "remote"), env=env, cwd=folder)
        succeed(*PRE_COMMIT, "install", env=env, cwd=folder)

    def commit(self) -> subprocess.CompletedProcess[str]:
        succeed("git", "add", "-A", env=self.env, cwd=self.folder)
        return run("git", "commit", "-m", "A change", env=self.env, cwd=self.folder)

    def push(self) -> subprocess.CompletedProcess[str]:
        return run("git", "push", "-q", "origin", "HEAD:main", env=self.env, cwd=self.folder)


@pytest.fixture
def repository(repo: Path, hooks: tuple[Path, str], borrowing: dict[str, str]) -> Repository:
    return Repository(repo, hooks, borrowing)


def stale() -> None:
    model = onnx.load("models/cnn.onnx")
    model.doc_string = "exported again"
    onnx.save(model, "models/cnn.onnx")


def corrupted() -> None:
    QUANTIZED.write_bytes(QUANTIZED.read_bytes()[:-20_000])  # inside the graph, not between two entries of metadata


def zero_scale() -> None:
    model = onnx.load(QUANTIZED)
    names = {node.input[1] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    scale = next(tensor for tensor in model.graph.initializer if tensor.name in names)
    scale.CopyFrom(numpy_helper.from_array(np.zeros_like(numpy_helper.to_array(scale)), scale.name))
    onnx.save(model, QUANTIZED)


def below_threshold() -> None:
    images = np.load("data/calibration.npz")["image"]
    np.savez("data/test.npz", image=np.full_like(images[:4], 1000))  # far beyond what was calibrated
    with Path("onnxq.toml").open("a") as file:
        file.write('verify-data = ["data/test.npz"]\n')


def test_a_good_commit_and_a_good_push_pass(repository: Repository) -> None:
    committed = repository.commit()
    assert committed.returncode == 0, committed.stdout
    assert "onnxq check" in committed.stdout
    assert "Passed" in committed.stdout
    pushed = repository.push()
    assert pushed.returncode == 0, pushed.stdout
    assert "onnxq verify" in pushed.stdout
    assert "Passed" in pushed.stdout
    (repository.folder / "notes.md").write_text("no model")
    assert "Skipped" in repository.commit().stdout


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (stale, "models/cnn.int8.onnx: is out of date: models/cnn.onnx has changed since it was built (stale-float)\n"),
        (corrupted, "models/cnn.int8.onnx: is not a readable ONNX model: "),
        (zero_scale, "models/cnn.int8.onnx: QuantizeLinear "),
    ],
)
def test_a_bad_model_is_not_committed(repository: Repository, spoil: Callable[[], None], line: str) -> None:
    spoil()
    done = repository.commit()
    assert done.returncode == 1, done.stdout
    assert f"\n{line}" in done.stdout
    assert "exit code: 1" in done.stdout
    assert run("git", "rev-parse", "--verify", "HEAD", env=repository.env, cwd=repository.folder).returncode != 0


def test_a_model_below_its_threshold_is_not_pushed(repository: Repository) -> None:
    below_threshold()
    committed = repository.commit()
    assert committed.returncode == 0, committed.stdout
    pushed = repository.push()
    assert pushed.returncode == 1, pushed.stdout
    assert "models/cnn.int8.onnx  failed" in pushed.stdout
    assert "below the 20 dB asked for" in pushed.stdout
    remote = repository.folder.parent / "remote"
    assert run("git", "rev-parse", "--verify", "main", env=repository.env, cwd=remote).returncode != 0


@pytest.mark.slow
def test_the_environment_that_pre_commit_makes_by_itself(
    repo: Path, hooks: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    repository = Repository(repo, hooks, install(tmp_path_factory.mktemp("whole"), hooks, {}))
    for done in (repository.commit(), repository.push()):
        assert done.returncode == 0, done.stdout
        assert "Passed" in done.stdout
    corrupted()
    done = repository.commit()
    assert done.returncode == 1
    assert "models/cnn.int8.onnx: is not a readable ONNX model" in done.stdout
