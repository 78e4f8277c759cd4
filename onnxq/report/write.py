"""A report to a file.

Tests: `tests/report/test_report_html.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from onnxq.errors import OutputError
from onnxq.ir import check_output
from onnxq.ir.storage.temporary import temporary_file
from onnxq.report.html import check_extra
from onnxq.report.model import Report

FACES = {".json": Report.to_json, ".md": Report.to_markdown, ".html": Report.to_html}


def check_report_path(path: Path, *, force: bool, reads: Iterable[object] = ()) -> None:
    """Refuse a report file that could not be written, before any work is done.

    Args:
        path: The file.
        force: Whether it may be replaced.
        reads: What the run reads; those that are files may not be replaced.

    Raises:
        OutputError: Its suffix is none of .json, .md and .html, what draws HTML is not
            installed, or as `onnxq.ir.check_output`.

    """
    if path.is_dir():
        raise OutputError(f"{path} is a folder", "Give the name of the report to write, such as report.html.")
    if path.suffix not in FACES:
        raise OutputError(f"a report cannot be written as '{path.suffix or path.name}'", "Name it .json, .md or .html.")
    if path.suffix == ".html":
        check_extra()
    check_output(path, force=force, reads=reads, option="--report")


def write_report(report: Report, path: str | Path, *, force: bool = False) -> None:
    """Write a report as JSON, Markdown or HTML, by the suffix of `path`, whole or not at all.

    Args:
        report: What `quantize` or `plan` gave.
        path: The file to write: `.json`, `.md` or `.html`.
        force: Replace a file that exists.

    Raises:
        OutputError: The file exists already, cannot be written, or has another suffix.

    Examples:
        >>> import onnxq
        >>> onnxq.write_report(onnxq.plan("model.onnx", data="calibration.npz"), "report.json")

    """
    path = Path(path)
    check_report_path(path, force=force)
    write_text(path, FACES[path.suffix](report))


def write_text(path: Path, content: str) -> None:
    """Write a text file, whole or not at all.

    Raises:
        OutputError: The disk is full, or the folder is not writable.

    """
    try:
        with temporary_file(path) as temporary:
            # names of files need not be UTF-8
            temporary.write_text(content, encoding="utf-8", errors="backslashreplace")
            temporary.replace(path)
    except OSError as error:
        raise OutputError(f"{path} cannot be written ({error.strerror})", "Choose another place.") from error
