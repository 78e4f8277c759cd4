"""Recognise pointers of Git LFS that stand for files until they are fetched.

Tests: `tests/project/test_project_check.py`.
"""

from __future__ import annotations

from typing import TypeVar

from onnxq.errors import OnnxqError

POINTER = b"version https://git-lfs"  # what those lines begin with
E = TypeVar("E", bound=OnnxqError)


def pointer_error(start: bytes | memoryview, label: str, kind: type[E], what: str) -> E | None:
    """Return the error for a file that is only a pointer; None for one that is there.

    Args:
        start: At least the first `len(POINTER)` bytes of the file.
        label: Names it.
        kind: The error to make.
        what: What it ought to be: `model` or `data`.

    """
    if start[: len(POINTER)] != POINTER:
        return None
    return kind(f"{label} is a Git LFS pointer, not the {what} itself", "Run `git lfs pull`.")
