"""A report to a file."""

from __future__ import annotations

import os
from pathlib import Path

from onnxq.errors import OutputError
from onnxq.report.html import check_extra
from onnxq.report.model import Report

FACES = {".json": Report.to_json, ".md": Report.to_markdown, ".html": Report.to_html}


def check_report_path(path: Path, *, force: bool) -> None:
    """Refuse a report file that could not be written, before any work is done.

    Raises:
        OutputError: Its suffix is none of .json, .md and .html, what draws HTML is not
            installed, it exists without `force`, or its folder is of no use.

    """
    if path.suffix not in FACES:
        raise OutputError(f"a report cannot be written as '{path.suffix or path.name}'", "Name it .json, .md or .html.")
    if path.suffix == ".html":
        check_extra()
    if path.is_dir():
        raise OutputError(f"{path} is a folder", "Give the name of the report file.")
    if path.exists() and not path.is_file():
        raise OutputError(f"{path} is no regular file", "Give the name of the report file.")
    if path.exists() and not force:
        raise OutputError(f"{path} exists already", "Use --force to replace it, or choose another name.")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise OutputError(f"the folder {path.parent} does not exist or cannot be written to", "Choose another place.")


def write_report(report: Report, path: Path, *, force: bool = False) -> None:
    """Write a report as JSON, Markdown or HTML, by the suffix of `path`, whole or not at all.

    Raises:
        OutputError: As `check_report_path`, or the disk is full.

    """
    check_report_path(path, force=force)
    content = FACES[path.suffix](report)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(content, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise OutputError(f"{path} cannot be written ({error.strerror})", "Choose another place.") from error
    finally:
        temporary.unlink(missing_ok=True)
