"""`onnxq inspect`: what is in a model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from onnxq.cli.options import Format, OutputFormat

AnyModel = Annotated[Path, typer.Argument(metavar="MODEL", help="Any model, float or quantized.", show_default=False)]


def inspect(model: AnyModel, output_format: OutputFormat = Format.TEXT) -> None:
    """Count operators and weight bytes by dtype, and say how much is quantized."""
    from onnxq.cli.terminal import show
    from onnxq.inspect import inspect as look
    from onnxq.report import SCHEMA, to_json

    facts = look(model)
    if output_format is Format.JSON:
        sys.stdout.write(to_json({"schema": SCHEMA, **facts.as_dict()}))
        return
    from onnxq.cli.tables import inspection_tables

    show(*inspection_tables(facts))
