"""Pages, docstrings, comments and messages keep to the style guide in CONTRIBUTING.md, as far as a machine can tell."""

from pathlib import Path

import pytest
from words import objections_to_module, objections_to_page

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")))
ROUGH_PAGES = {
    *("testing.md", "architecture.md"),
    *("evaluator.md", "operators.md"),
}
PLAIN_PACKAGES = ["evaluator", "ir", "targets"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_are_plain(page: Path) -> None:
    """No sentence has more than 25 words, and no private word is used."""
    if page.name in ROUGH_PAGES or page.parent.name == "decisions":
        pytest.skip("not rewritten yet")
    found = objections_to_page(page.read_text("utf-8"))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", PLAIN_PACKAGES)
def test_modules_are_plain(package: str) -> None:
    """The same for docstrings, comments and messages."""
    files = sorted((ROOT / "onnxq" / package).rglob("*.py"))
    found = [f"{path}: {words}" for path in files for words in objections_to_module(path.read_text("utf-8"))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "objection"),
    [
        (f"Here {'are ' * 23}26 words.", "26 words"),
        ("A file. What it holds is long.", "opens with What"),
        ("It goes beside the model.", "'beside'"),
        ("| a | Nobody reads it. |", "'Nobody'"),
        ("* One item.\n* Of another.", "opens with Of"),
    ],
)
def test_objections_are_found(text: str, objection: str) -> None:
    assert [found for found in objections_to_page(text) if found.startswith(objection)]


def test_code_and_short_sentences_pass() -> None:
    assert not objections_to_page(
        f"A `{'word ' * 9}` [is one word](there.md). So is this.\n\n```\nbeside nobody\n```\n"
    )


def test_docstrings_comments_and_messages_are_read() -> None:
    source = 'def f():\n    """Give it."""\n    # whoever\n    # reads\n    raise X(f"nobody {a} does")\n'
    assert len(objections_to_module(source)) == 3
