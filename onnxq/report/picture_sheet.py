"""The part of a page that shows pictures as the model sees them.

Tests: `tests/report/test_data_page.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from onnxq.data.pictures.sheet import Thumbnail
from onnxq.text import printable

if TYPE_CHECKING:
    from markupsafe import Markup


def picture_sheet(pictures: Sequence[Thumbnail]) -> Markup:
    """Write the pictures as HTML, by input; empty if there are none."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["name"] = printable
    template = environment.from_string((files("onnxq.report") / "page" / "sheet.html.j2").read_text("utf-8"))
    inputs = list(dict.fromkeys(one.input for one in pictures))
    return Markup(template.render(sheets=[(name, [one for one in pictures if one.input == name]) for name in inputs]))


def sheet_style() -> str:
    """Return the style of the sheet."""
    return (files("onnxq.report") / "page" / "sheet.css").read_text("utf-8")
