"""The documentation is part of the product: what it says has to be so."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
from words import objections_to_page

import onnxq
from onnxq.cli import main
from onnxq.cli.app import COMMANDS, command
from onnxq.errors import ExitCode
from onnxq.planning.recipe import load_recipe, parse_recipe, recipe_names
from onnxq.project.entry import Thresholds
from onnxq.project.file import KEYS, parse_project
from onnxq.project.rules import CheckRule

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
DOCS = ROOT / "docs"
REFERENCE = {page.stem: page.read_text("utf-8") for page in (DOCS / "reference").glob("*.md")}
CLI, RECIPES, PROJECT, JSON = (REFERENCE[name] for name in ("cli", "recipes", "onnxq-toml", "json"))
PRE_COMMIT = (DOCS / "how-to" / "pre-commit.md").read_text("utf-8")
PAGES = sorted(
    (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "sample_models" / "README.md", *DOCS.rglob("*.md"))
)
ROUGH_PAGES = {"testing.md", "architecture.md", "evaluator.md", "operators.md"}  # not rewritten yet
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall(README)


def parameters(name: str) -> list[Any]:
    return [p for p in command().commands[name].params if p.name != "help"]


def section(text: str, title: str) -> str:
    """The part of a page under a heading that starts with `title`."""
    found = re.search(rf"^## {re.escape(title)}.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[0]


@pytest.mark.parametrize("name", [function.__name__ for function in COMMANDS])
def test_every_command_and_option_is_described(name: str) -> None:
    described = CLI.partition("\n## ")[0] + section(CLI, f"`onnxq {name}")  # what all commands have stands in front
    for parameter in parameters(name):
        for option in parameter.opts:
            if option.startswith("--"):
                assert re.search(rf"`{option}\b", described), option
            elif option.startswith("-"):
                assert f"`{option}" in CLI, option  # its meaning is the same everywhere
            else:
                assert parameter.metavar in described, option


def test_the_reference_names_no_option_that_does_not_exist() -> None:
    found = [p for function in COMMANDS for p in parameters(function.__name__)]
    known = {option for p in found for option in (*p.opts, *p.secondary_opts)}
    of_all = {option for p in command().params for option in p.opts}
    for text in (README, *REFERENCE.values()):
        prose = BLOCK.sub("", text)
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", prose)) <= known | {"--help", *of_all}


def test_the_readme_opens_with_two_commands() -> None:
    first, second, shown = (content for _, content in BLOCKS[:3])
    assert len(first.splitlines()) == len(second.splitlines()) == 1
    assert first.startswith(
        "python3 -m venv .venv && .venv/bin/pip install -q . && .venv/bin/onnxq quantize sample_models/"
    )
    assert second.endswith(".venv/bin/python -m pytest -n 2\n")
    assert "× smaller" in shown
    assert README.index("```") < 500


def test_ci_runs_the_second_command_to_the_letter() -> None:
    script = ROOT / ".ci" / "run"
    assert BLOCKS[1][1] in script.read_text()
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_the_first_command_works_and_prints_what_the_readme_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(BLOCKS[0][1].rpartition("&& ")[2])
    assert words[0] == ".venv/bin/onnxq"
    monkeypatch.chdir(ROOT)
    assert main([*words[1:], "--output", str(tmp_path / "q.onnx")]) == 0
    printed = capsys.readouterr().out.replace(str(tmp_path / "q.onnx"), "sample_models/digits_cnn.int8.onnx")
    assert shape(printed) == shape(BLOCKS[2][1])


TRANSCRIPTS = [
    content for page in PAGES for _, content in BLOCK.findall(page.read_text("utf-8")) if content.startswith("$ onnxq ")
]


@pytest.fixture(scope="module")
def quick_start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the first command of the README has run."""
    folder = tmp_path_factory.mktemp("readme")
    shutil.copytree(ROOT / "sample_models", folder / "sample_models", ignore=shutil.ignore_patterns("*.int8.onnx"))
    source, data = (folder / "sample_models" / name for name in ("digits_cnn.onnx", "digits_calibration.npz"))
    onnxq.quantize(source, data=[data])
    return folder


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda text: " ".join(text.split()[2:4]))
def test_what_a_page_shows_is_what_a_command_prints(
    quick_start: Path, transcript: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line, _, shown = transcript.partition("\n")
    monkeypatch.chdir(quick_start)
    assert main(shlex.split(line)[2:]) == 0
    # A processor without VNNI adds lines; the order of layers hangs on the last digits.
    assert set(shape(shown)) <= set(shape(capsys.readouterr().out))


def test_the_tutorial_shows_all_common_commands() -> None:
    assert {"inspect", "quantize", "verify", "explain"} <= {text.split()[2] for text in TRANSCRIPTS}


def shape(table: str) -> list[str]:
    """The lines of a table without the figures and the mark of this processor, which depend on the machine."""
    plain = re.sub(r"[\d.]+× (?:faster|slower)|as fast(?= |$)", "#", table.replace("this processor", ""))
    lines = [" ".join(re.sub(r"\d[\d.]*(e[+-]\d+)?", "#", line).split()) for line in plain.splitlines()]
    return [line for line in lines if line]


def test_every_command_line_in_the_docs_is_one() -> None:
    texts = [page.read_text("utf-8") for page in PAGES]
    blocks = [content for text in texts for language, content in BLOCK.findall(text) if not language]
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("onnxq ")]
    assert len(lines) >= 6
    for line in lines:
        name, *arguments = shlex.split(line, comments=True)[1:]
        command().commands[name].make_context(name, arguments)  # raises for what it does not know


def test_recipes_are_listed() -> None:
    for name in recipe_names():
        assert f"| `{name}` |" in section(RECIPES, "Recipes")
    for toml in (content for language, content in BLOCK.findall(section(RECIPES, "Recipes")) if language == "toml"):
        assert parse_recipe(toml, "recipes.md").rules
    assert load_recipe("auto").description


PROJECT_FILES = [
    content for page in PAGES for _, content in BLOCK.findall(page.read_text("utf-8")) if "[[models]]" in content
]


@pytest.mark.parametrize("content", PROJECT_FILES)
def test_project_files_of_the_docs_are_right(content: str) -> None:
    assert parse_project(tomllib.loads(content), Path("onnxq.toml")).entries[0].options.data


def test_every_key_and_rule_of_a_project_is_described() -> None:
    described = section(PROJECT, "The project file")
    assert not [key for key in KEYS if f"`{key}`" not in described]
    assert not [f.name for f in fields(Thresholds) if f"`{f.name.replace('_', '-')}`" not in described]
    rules = set(re.findall(r"^\| `([a-z-]+)` \|", section(CLI, "`onnxq check"), re.MULTILINE))
    assert rules == set(get_args(CheckRule))


def test_the_hooks_of_the_docs_exist() -> None:
    ids = set(re.findall(r"^- id: (\S+)", (ROOT / ".pre-commit-hooks.yaml").read_text(), re.MULTILINE))
    assert set(re.findall(r"- id: (\S+)", PRE_COMMIT)) == ids
    assert f"rev: v{onnxq.__version__}" in PRE_COMMIT


def test_exit_codes_are_listed() -> None:
    for code in ExitCode:
        assert f"| {code.value} |" in section(CLI, "Exit codes")


def test_the_json_of_the_docs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ROOT / "sample_models" / "digits_cnn.onnx"
    described = section(JSON, "JSON")
    made: list[dict[str, Any]] = []
    for arguments in (
        ["quantize", str(model), "-o", str(tmp_path / "q.onnx")],
        ["verify", str(tmp_path / "q.onnx")],
        ["verify", str(tmp_path / "q.onnx"), "--against", str(model), "--no-layers"],
        ["check", str(tmp_path / "q.onnx")],
        ["inspect", str(model)],
        ["explain", str(model), "Conv_0", "-d", str(model.with_name("digits_calibration.npz")), "--samples", "2"],
    ):
        assert main([*arguments, "--format", "json"]) == 0
        made.append(json.loads(capsys.readouterr().out))
    report = made[0]
    keys = {key for result in made for key in result}
    keys |= set(report["comparison"]) | set(report["comparison"]["latency"]) | set(report["comparison"]["outputs"][0])
    keys |= set(report["nodes"][0]) | set(report["output"]) | set(report["source"])
    explained = made[-1]["nodes"][0]
    keys |= set(explained) | set(explained["times"]) | set(explained["inputs"][0]) | set(explained["attempts"][0])
    assert not [key for key in keys if f"`{key}`" not in described]


def test_the_python_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    page = (DOCS / "how-to" / "python.md").read_text("utf-8")
    (code,) = (content for language, content in BLOCK.findall(page) if language == "python")
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").write_bytes((ROOT / "sample_models" / "digits_cnn.onnx").read_bytes())
    images = np.load(ROOT / "sample_models" / "digits_calibration.npz")["image"][:8]
    np.savez("images.npz", image=images)
    exec(compile(code, "python.md", "exec"), {})
    assert Path("small.onnx").exists()


def test_public_names_exist_and_cost_nothing_until_used() -> None:
    assert all(hasattr(onnxq, name) for name in onnxq.__all__)
    assert set(onnxq._LAZY) <= set(onnxq.__all__)
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]+`", REFERENCE["python"]))))
    assert set(onnxq.__all__) <= words
    for page in PAGES:
        named = re.findall(r"`onnxq\.(\w+)`", page.read_text("utf-8"))
        assert {name for name in named if name not in {"toml", "ops", "evaluator"}} <= set(onnxq.__all__), page
    code = "import sys, onnxq; sys.exit('numpy' in sys.modules or 'onnx' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^):]+)\)", page.read_text("utf-8")):
        path, _, fragment = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), target
        assert not fragment or fragment in anchors(there), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_exist(page: Path) -> None:
    """A path in backticks is one of the repository, or below `onnxq/`."""
    tops = {path.name for folder in (ROOT, ROOT / "onnxq") for path in folder.iterdir() if path.is_dir()}
    named = re.findall(r"`([\w.-]+(?:/[\w.-]+)*/?[\w.-]*\.(?:py|toml|md)|(?:[\w-]+/)+)`", page.read_text("utf-8"))
    named += re.findall(r"^python (\S+\.py)", page.read_text("utf-8"), re.MULTILINE)
    for path in (path for path in named if path.split("/")[0] in tops and not re.search(r"[A-Z]{4}", path)):
        assert any((folder / path).exists() for folder in (ROOT, ROOT / "onnxq")), path
    files = {path.name for folder in ("onnxq", "tests", "sample_models") for path in (ROOT / folder).rglob("*.py")}
    assert set(re.findall(r"`(\w+\.py)`", page.read_text("utf-8"))) <= files


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_are_plain(page: Path) -> None:
    """No sentence has more than 25 words, and no private word is used: `python tests/words.py PAGE`."""
    if page.parent.name != "decisions" and page.name not in ROUGH_PAGES and page.parent.name != "sample_models":
        found = objections_to_page(page.read_text("utf-8"))
        assert not found, "\n".join(found)


def test_every_page_is_linked() -> None:
    linked = {
        (page.parent / target.partition("#")[0]).resolve()
        for page in PAGES
        for target in re.findall(r"\]\(([^):]+)\)", page.read_text("utf-8"))
    }
    assert not [page for page in DOCS.rglob("*.md") if page not in linked and page.parent.name != "decisions"]


def test_decisions_are_numbered_one_by_one() -> None:
    pages = sorted((ROOT / "docs" / "decisions").iterdir())
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for number, page in enumerate(pages, start=1):
        assert page.read_text("utf-8").startswith(f"# {number}. ")


def test_every_file_of_the_package_is_installed() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["onnxq"]
    package = ROOT / "onnxq"
    data = {p.relative_to(package) for p in package.rglob("*") if p.is_file() and p.suffix not in {".py", ".pyc"}}
    assert data == {p.relative_to(package) for pattern in patterns for p in package.glob(pattern)}
    assert not [p for p in package.rglob("*.py") if not (p.parent / "__init__.py").exists() and p.parent != package]


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == onnxq.__version__
    assert project["scripts"] == {"onnxq": "onnxq.cli:main"}
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert "## [" in (ROOT / "CHANGELOG.md").read_text()


def test_no_page_names_what_a_stranger_does_not_have() -> None:
    for page in (*PAGES, ROOT / "CHANGELOG.md"):
        assert "shared/" not in page.read_text("utf-8")


SITE = ROOT / "docs" / "site" / "mkdocs.yml"


def test_the_api_page_describes_every_public_name_once() -> None:
    listed = re.findall(
        r"^::: onnxq\.(\w+)$", (ROOT / "docs" / "reference" / "api.md").read_text("utf-8"), re.MULTILINE
    )
    assert sorted(listed) == sorted(set(onnxq.__all__) - {"STEPS", "__version__"})


def test_the_site_has_every_page_but_the_decisions() -> None:
    text = SITE.read_text("utf-8")
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    listed = re.findall(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", text, re.MULTILINE)
    assert sorted(listed) == sorted(page for page in pages if not page.startswith(("decisions/", "packaging/")))


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", SITE, "-d", tmp_path / "site"]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    assert "onnxq.quantize" in (tmp_path / "site" / "reference" / "api.html").read_text("utf-8")
