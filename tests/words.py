"""Sentences and words of the docs, docstrings, comments and messages, held against the style guide in CONTRIBUTING.md.

python tests/words.py FILE...      # prints what the guide objects to, in pages and modules
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

MOST_WORDS = 25
MOST_COLUMNS = 120  # of a line of prose in a page
# Pronouns without a noun, private words and metaphors: the guide names what to write in their place.
BANNED = re.compile(
    r"\b(whoever|nobody|somebody|anew|beside|besides|one's own|of one's|as it came|as they came|let go of|"
    r"own accord|wavers?|bargains?|spelled out|spelt out|evened out|evens? out|made up for|makes? up for|"
    r"seldom|towers? above|cheapest of all|the house|what is what|told what|say so|by and by)\b",
    re.IGNORECASE,
)
OPENING = re.compile(r"(Where|What|Of|Behind) ")
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def sentences(text: str) -> list[str]:
    """Split prose into sentences; code and links count as one word each."""
    text = re.sub(r"``?[^`]+``?", "CODE", text)
    text = re.sub(r"CODE(,? (and |or )?CODE)+", "CODE", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r'"[^"]+"', "QUOTE", text)
    text = re.sub(r"<[^>\s]+>|\*\*", "", text).replace(" · ", ". * ")
    text = re.sub(r"\b(e\.g|i\.e|vs|cf|etc|al)\.", r"\1", text)
    return [
        part
        for part in re.split(
            r"(?<=[.!?])[)\"']?\s+(?=[A-Z\"'(\d*]|CODE|onnx|stderr|stdout|pre-commit)", " ".join(text.split())
        )
        if part
    ]


def length(sentence: str) -> int:
    """Count words: what holds a letter or a digit."""
    return sum(1 for word in sentence.split() if re.search(r"\w", word))


def objections(text: str) -> Iterator[str]:
    """Say what the guide objects to in prose."""
    for sentence in sentences(text):
        if length(sentence) > MOST_WORDS:
            yield f"{length(sentence)} words: {sentence}"
        if OPENING.match(sentence):
            yield f"opens with {sentence.split()[0]}: {sentence}"
        for word in BANNED.findall(sentence):
            yield f"{word!r}: {sentence}"


def prose_of_page(page: str) -> Iterator[str]:
    """Take a page apart: paragraphs, list items, cells of tables; headings and code are left out."""
    text = FENCE.sub("", page)
    for block in re.split(r"\n\s*\n", text):
        item: list[str] = []
        for line in block.splitlines():
            if line.startswith(("#", "    ")) or re.fullmatch(r"[|\s:-]+", line):
                continue
            if line.startswith("|"):
                yield from re.split(r"(?<!\\)\|", line)[1:-1]
                continue
            if re.match(r"\s*([*-]|\d+\.) ", line):
                yield " ".join(item)
                item = [re.sub(r"^\s*([*-]|\d+\.) ", "", line)]
            else:
                item.append(line)
        yield " ".join(item)


def objections_to_page(page: str) -> list[str]:
    """Say what the guide objects to in a page of Markdown."""
    found = [sentence for block in prose_of_page(page) for sentence in objections(block)]
    lines = [line for line in FENCE.sub("", page).splitlines() if line[:1] not in {"|", "!"}]
    long = [line for line in lines if len(line) > MOST_COLUMNS and " " in re.sub(r"`[^`]+`", "CODE", line).strip(" *")]
    return found + [f"longer than {MOST_COLUMNS} columns: {line}" for line in long]


def prose_of_module(source: str, nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Take a module's words: docstrings by paragraph, blocks of comments, and strings that hold a sentence."""
    seen = set()
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                seen.add(id(node.body[0].value))  # type: ignore[attr-defined]
                for block in re.split(r"\n\s*\n", text):
                    if not re.search(r"^ {4}|\||^>>>|^Tests: ", block, re.MULTILINE):
                        yield from re.split(r"\n\s*(?:[*-]|\d+\.) ", block)
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            seen |= {id(part) for part in node.values}  # told as one
            yield "".join(v.value if isinstance(v, ast.Constant) else "CODE" for v in node.values)  # type: ignore[misc]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in seen:
            yield node.value if "\n" not in node.value else ""
    yield from comments(source)


def comments(source: str) -> Iterator[str]:
    """Join the comments of neighbouring lines; one behind code stands alone."""
    block: list[str] = []
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        alone = token.line.lstrip().startswith("#")
        if not (alone and token.start[0] == last + 1):
            yield " ".join(block)
            block = []
        block.append(re.sub(r"^#:? ?|\b(noqa|type: ignore).*", "", token.string))
        last = token.start[0] if alone else -1
    yield " ".join(block)


def objections_to_module(source: str) -> list[str]:
    """Say what the guide objects to in the docstrings, comments and messages of a module."""
    nodes = list(ast.walk(ast.parse(source)))
    found = [sentence for block in prose_of_module(source, nodes) for sentence in objections(block)]
    for node in nodes:
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if function and (ast.get_docstring(node) or "").startswith("Give "):
            found.append(f"a docstring opens with Give: {node.name}")
    return found


def main(paths: list[str]) -> None:
    """Print what the guide objects to in files."""
    total = 0
    for path in map(Path, paths):
        text = path.read_text("utf-8")
        found = objections_to_page(text) if path.suffix == ".md" else objections_to_module(text)
        total += len(found)
        for sentence in found:
            print(f"{path}: {sentence}")
    print(total, "objections")


if __name__ == "__main__":
    main(sys.argv[1:])
