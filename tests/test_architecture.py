"""The house rules that a machine can check."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import onnxq

PACKAGE = Path(__file__).parents[1] / "onnxq"
TESTS = PACKAGE.parent / "tests"
DOCS = (PACKAGE.parent / "docs" / "architecture.md").read_text("utf-8")
# A package imports only from those before it.
ORDER = [
    *("version", "warning", "errors", "text", "missing", "leftovers", "progress"),
    *("ir", "targets", "ops", "runtime", "evaluator", "data", "simplify", "optimize", "planning", "calibration"),
    *("rescaling", "rounding", "lowering", "verification", "hazards", "report", "stages", "search", "pipeline"),
    *("explanation", "publish", "project", "distributed", "api", "cli"),
]
ROOT_MODULES = {"__init__", "__main__", "version", "errors", "text", "missing", "leftovers", "progress", "warning"}
MOST_FILES = 26  # of a package without its sub-packages
KEEPERS = {"onnxq.stages.finish"}  # of equal constants of a result that fits into memory once more
MOST_LINES = 0.2  # share of all lines
FILES = sorted(PACKAGE.rglob("*.py"))
PACKAGES = sorted({path.parent for path in FILES})


@cache
def tree(path: Path) -> ast.Module:
    """The syntax of a module, which several rules read."""
    return ast.parse(path.read_text())


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements below one, those of functions in it, too; no expression holds one."""
    for block in ("body", "handlers", "orelse", "finalbody", "cases"):
        for each in getattr(node, block, ()):
            yield each
            yield from statements(each)


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in FILES}


def place(module: str) -> int | None:
    """Place of an `onnxq.x…` module in the order; None for the package itself."""
    parts = module.split(".")
    return ORDER.index(parts[1]) if len(parts) > 1 and parts[1] in ORDER else None


@cache
def imports(path: Path) -> set[str]:
    """Modules of onnxq that a file imports, anywhere in it and for types only, too."""
    found = set()
    for node in statements(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
    return {name for name in found if name in MODULES} - {name_of(path)}


def test_a_package_imports_only_from_those_before_it() -> None:
    for path in FILES:
        own = place(name_of(path))
        if own is not None:
            later = [name for name in imports(path) if (other := place(name)) is not None and other > own]
            assert not later, f"{path.relative_to(PACKAGE)} imports {later}"


def test_no_module_imports_itself_through_others() -> None:
    graph = {name: imports(path) for name, path in MODULES.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_two_test_modules_have_one_name() -> None:
    """Pytest imports them by their names alone, and collects only the first of two."""
    names = Counter(path.name for path in TESTS.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_every_package_has_its_place() -> None:
    floor = {path.stem if path.suffix else path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    assert floor - {"__init__", "__main__", "py"} == set(ORDER)
    assert {path.stem for path in PACKAGE.glob("*.py")} == ROOT_MODULES


def test_no_package_outgrows_the_others() -> None:
    lines = Counter[str]()
    for path in FILES:
        lines[path.relative_to(PACKAGE).parts[0]] += path.read_text().count("\n")
    assert max(lines.values()) <= MOST_LINES * lines.total(), lines.most_common(1)
    assert not [folder for folder in PACKAGES if len(list(folder.glob("*.py"))) > MOST_FILES]


@pytest.mark.parametrize("folder", [folder for folder in PACKAGES if folder != PACKAGE], ids=lambda path: path.name)
def test_a_package_says_what_belongs_in_it_and_what_does_not(folder: Path) -> None:
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    assert len(re.findall(r"[.](?:\s|$)", text)) >= 2, folder


def test_a_module_has_a_test_of_its_name_or_names_its_test() -> None:
    def is_tested(path: Path) -> bool:
        mirrored = TESTS / path.relative_to(PACKAGE).parts[0] / f"test_{path.stem}.py"
        named = re.findall(r"^Tests: `(\S+)`\.$", ast.get_docstring(tree(path)) or "", re.MULTILINE)
        return mirrored.exists() or bool(named and (TESTS.parent / named[0]).exists())

    modules = [path for path in FILES if path.stem not in ("__init__", "__main__") and path.parent != PACKAGE]
    assert [str(path) for path in modules if not is_tested(path)] == []


def test_the_order_of_the_docs_is_this_one() -> None:
    found = re.search(r"^`(version → .*? → cli)`", DOCS, re.MULTILINE | re.DOTALL)
    assert found
    assert found[1].replace("\n", " ").split(" → ") == ORDER


def test_the_docs_describe_every_package() -> None:
    described = set(re.findall(r"^\| `(\w+)/` \|", DOCS, re.MULTILINE))
    assert described == {name for name in ORDER if (PACKAGE / name).is_dir()}


def test_paths_in_the_docs_exist() -> None:
    paths = re.findall(r"`((?:\w+/)+(?:[\w-]+\.(?:py|toml))?)`", DOCS)
    assert len(paths) > 40
    assert not [
        path
        for path in paths
        if not any((root / path).exists() for root in (PACKAGE, PACKAGE.parent)) and "MODULE" not in path
    ]


def test_the_steps_of_the_docs_are_those_of_the_pipeline() -> None:
    """The chain stands in the docs and in the docstring; `tests/pipeline/test_step_order.py` holds the code to it."""
    chain = re.search(r"^```\n(load → .*?)\n```", DOCS, re.MULTILINE)
    assert chain
    docstring = ast.get_docstring(ast.parse((PACKAGE / "pipeline" / "quantize.py").read_text())) or ""
    assert chain[1] in " ".join(docstring.split())


def test_a_function_fits_a_screen() -> None:
    """Of a public function, which documents each argument and has an example, the docstring is not counted."""
    too_long = []
    for path in FILES:
        for node in statements(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if onnxq._LAZY.get(node.name, "").startswith(name_of(path).rpartition(".")[0]):
                    length -= len((ast.get_docstring(node, clean=False) or "").splitlines())
                if length > 60:
                    too_long.append(f"{path}:{node.lineno} {node.name} has {length} lines")
    assert too_long == []


def test_one_module_asks_whether_a_model_is_large() -> None:
    """A model has a residency, a preparation its strategy; no module compares bytes with the limit itself."""
    askers = {name for name, path in MODULES.items() if re.search(r"\bLARGE\b|\bis_large\b", path.read_text())}
    assert askers == {"onnxq.ir.storage.residency"}
    choosers = {name for name, path in MODULES.items() if "choose_residency" in path.read_text()}
    assert choosers - askers == {"onnxq.ir.model", "onnxq.verification.compare"}  # the one of a file before it is read


def test_the_way_of_a_model_through_the_pipeline_is_chosen_in_one_place() -> None:
    for name, path in MODULES.items():
        if name.startswith(("onnxq.stages.", "onnxq.search.", "onnxq.lowering.", "onnxq.pipeline.")):
            asks = re.search(r"^from .* import .*\bforeign_node\b|\.residency\b", path.read_text(), re.MULTILINE)
            assert not asks or name == "onnxq.stages.strategy" or name in KEEPERS, name


def test_nothing_outside_the_product_is_named() -> None:
    for path in FILES:
        text = path.read_text()
        assert "/shared" not in text, path
        assert "TODO" not in text, path


def test_a_simplification_is_a_function_of_its_module_s_name() -> None:
    for path in (PACKAGE / "simplify").rglob("*.py"):
        passes = [
            node.name
            for node in tree(path).body
            if isinstance(node, ast.FunctionDef) and re.search(r"\b(register|pattern)_pass\b", ast.dump(node))
        ]
        assert passes in ([], [path.stem]), path


def test_one_class_has_one_name() -> None:
    """Kernels are named after operators, and commands after functions of the API; classes mean one thing everywhere."""
    names: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                names.setdefault(node.name, []).append(module)
    assert {name: where for name, where in names.items() if len(where) > 1} == {}
