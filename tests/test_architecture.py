"""The house rules that a machine can check."""

import ast
import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "onnxq"
DOCS = (PACKAGE.parent / "docs" / "architecture.md").read_text("utf-8")
ORDER = [
    "errors",
    "words",
    "observer",
    "ir",
    "targets",
    "ops",
    "evaluator",
    "quant",
    "wellformed",
    "simplify",
    "difference",
    "engines",
    "outputs",
    "comparison",
    "selection",
    "resolution",
    "judge",
    "metric",
    "followed",
    "verify",
    "channel_factors",
    "layerwise",
    "saturation",
    "families",
    "hazards",
    "fusion",
    "report",
    "steps",
    "timed",
    "anew",
    "range_trial",
    "trials",
    "masking",
    "correction",
    "evening",
    "sensitivity",
    "moves",
    "search",
    "shrink",
    "budget",
    "large",
    "unrun",
    "pipeline",
    "inspect",
    "explanation",
    "explain",
    "project",
    "cli",
]
FILES = sorted(PACKAGE.rglob("*.py"))


def room(module: str) -> int | None:
    """Place of an `onnxq.x…` module in the order; None for the package itself."""
    parts = module.split(".")
    return ORDER.index(parts[1]) if len(parts) > 1 and parts[1] in ORDER else None


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return [name for name in found if name.startswith("onnxq.")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_those_before_it(path: Path) -> None:
    relative = path.relative_to(PACKAGE.parent).with_suffix("")
    own = room(".".join(relative.parts))
    if own is None:
        return
    later = [name for name in imports(path) if (other := room(name)) is not None and other > own]
    assert not later, f"{relative} imports {later}"


def test_the_order_of_the_docs_is_this_one() -> None:
    found = re.search(r"^`(errors → .*? → cli)`", DOCS, re.MULTILINE | re.DOTALL)
    assert found
    assert found[1].replace("\n", " ").split(" → ") == ORDER


def test_the_picture_of_the_house_has_every_room() -> None:
    """Every room of the ground floor, every file of `ir/` and `quant/`, and nothing that is not there."""
    picture = DOCS.partition("onnxq/\n")[2].partition("```")[0]
    floor = {p.name + "/" * p.is_dir() for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    drawn = set(re.findall(r"(?<![\w/.])(?:\w+/(?=\s)|\w+\.py\b)", picture))
    assert not floor - {"__init__.py", "__main__.py"} - drawn
    files = re.findall(r"(?<![\w/])[\w*]+\.py\b", picture)
    known = {path.name for path in FILES}
    assert not [name for name in files if not any(fnmatchcase(other, name) for other in known)]
    for folder in ("ir", "quant"):
        section = re.search(rf"^  {folder}/.*?(?=^  \w)", picture, re.MULTILINE | re.DOTALL)
        assert section
        inside = re.findall(r"[\w*]+\.py\b", section[0])
        missing = [
            path.name
            for path in (PACKAGE / folder).glob("*.py")
            if path.name != "__init__.py" and not any(fnmatchcase(path.name, name) for name in inside)
        ]
        assert not missing, folder


def test_the_steps_are_where_their_table_says() -> None:
    places = [
        place for row in re.findall(r"^\|.*\| (.*) \|$", DOCS, re.MULTILINE) for place in re.findall("`(.+?)`", row)
    ]
    assert len(places) > 10
    assert not [place for place in places if not (PACKAGE / place).exists()]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_function_fits_a_screen(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= 60, f"{path.name}:{node.lineno} {node.name} has {length} lines"


def test_nothing_outside_the_product_is_named() -> None:
    for path in FILES:
        text = path.read_text()
        assert "/shared" not in text, path
        assert "TODO" not in text, path
