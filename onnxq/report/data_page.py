"""The samples of a model as one HTML file: figures, warnings, preprocessing and pictures.

Tests: `tests/report/test_data_page.py`.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from onnxq.data.examine import Examination
from onnxq.data.input_summary import short
from onnxq.data.samples import Samples
from onnxq.errors import OutputError
from onnxq.ir import check_output
from onnxq.report.page_parts import page_part, render
from onnxq.report.picture_sheet import picture_sheet, sheet_style
from onnxq.text import printable


def check_page_path(path: Path, *, force: bool) -> None:
    """Refuse a page that could not be written, before any work is done.

    Raises:
        OutputError: It is not called .html, Jinja2 is not installed, or as `onnxq.ir.check_output`.

    """
    if path.suffix != ".html":
        raise OutputError(f"{path} is to be an HTML page", "Name it .html.")
    if find_spec("jinja2") is None:
        raise OutputError("an HTML page needs Jinja2, not installed here", "Run `pip install 'onnxq[report]'`.")
    check_output(path, force=force, option="--html")


def data_page(model: str, samples: Samples, seen: Examination) -> str:
    """Write what is known of samples as one HTML file, which loads nothing from elsewhere.

    Args:
        model: Name of the model.
        samples: The samples.
        seen: From `examine`.

    """
    from markupsafe import Markup

    return render(
        "data.html.j2",
        {"name": printable, "short": short},
        model=model,
        data=samples.description,
        seen=seen,
        notes=samples.notes,
        preparations=samples.preparations,
        labels=samples.label_names()[0],
        pictures=picture_sheet(seen.pictures),
        style=Markup(page_part("page.css") + sheet_style()),
    )
