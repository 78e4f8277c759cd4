"""Hints in the words of a project file: keys where those of the command line name options.

Tests: `tests/project/test_project_words.py`.
"""

from __future__ import annotations

import re

from onnxq.pipeline.options import declarations

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def in_project_file(text: str) -> str:
    """Write a sentence for those who have a project file.

    Args:
        text: A hint; options without a key stay as they are.

    Examples:
        >>> in_project_file("Choose another place with --output, or leave nodes float with --exclude.")
        "Choose another place with 'quantized', or leave nodes float with 'exclude'."

    """
    keys = {one.flag: one.toml for one in declarations().values() if one.toml}
    keys["--output"] = "quantized"
    return OPTION.sub(lambda found: f"'{keys[found[0]].rpartition('.')[2]}'" if found[0] in keys else found[0], text)
