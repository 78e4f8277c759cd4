"""The part of a page that shows pictures as the model sees them.

Tests: `tests/report/test_data_page.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onnxq.data.pictures.sheet import Thumbnail
from onnxq.report.page_parts import page_part, render
from onnxq.text import printable

if TYPE_CHECKING:
    from markupsafe import Markup


def picture_sheet(pictures: Sequence[Thumbnail]) -> Markup:
    """Write the pictures as HTML, by input; empty if there are none."""
    from markupsafe import Markup

    inputs = list(dict.fromkeys(one.input for one in pictures))
    sheets = [(name, [one for one in pictures if one.input == name]) for name in inputs]
    return Markup(render("sheet.html.j2", {"name": printable}, sheets=sheets))


def sheet_style() -> str:
    """Return the style of the sheet."""
    return page_part("sheet.css")
