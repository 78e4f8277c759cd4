"""The parts of HTML pages in the folder `page`: templates, styles and scripts.

Jinja2 comes with the extra `report`, and is imported when a page is asked for.

Tests: `tests/report/test_report_html.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any


def page_part(name: str) -> str:
    """Return the text of a part."""
    return (files("onnxq.report") / "page" / name).read_text("utf-8")


def render(template: str, filters: Mapping[str, Callable[..., str]], **values: Any) -> str:
    """Fill a template, with values escaped for HTML.

    Args:
        template: Name of the part.
        filters: Functions that the template calls by name.
        values: Its variables; one that is missing is an error.

    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= filters
    return environment.from_string(page_part(template)).render(**values)
