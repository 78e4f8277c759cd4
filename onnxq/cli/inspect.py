"""`onnxq inspect`: show the contents of a model.

Tests: `tests/cli/test_cli_looking.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onnxq.cli.options import Format, OutputFormat

if TYPE_CHECKING:
    from onnxq.api.runtime import Runtime

AnyModel = Annotated[Path, typer.Argument(metavar="MODEL", help="Any model, float or quantized.", show_default=False)]


def inspect(model: AnyModel, output_format: OutputFormat = Format.TEXT) -> None:
    """Show operators, weight types, and how much is quantized.

    For a quantized model, also name the kernels that onnxruntime makes of it.
    """
    from onnxq.cli.terminal import show
    from onnxq.explanation.inspect import inspect as examine
    from onnxq.report import SCHEMA, to_json

    facts = examine(model)
    runtime = _runtime(model) if facts.quantized or facts.conversions else None
    if output_format is Format.JSON:
        nothing = {"fusion": None, "saturation": None, "hazards": None, "min_onnxruntime": None}
        more = nothing if runtime is None else runtime.as_dict()
        sys.stdout.write(to_json({"schema": SCHEMA, **facts.as_dict(), **more}))
        return
    from onnxq.cli.tables import inspection_tables

    show(*inspection_tables(facts))
    if runtime is not None:
        from onnxq.cli.runtime import runtime_tables

        show("", *runtime_tables(runtime))


def _runtime(path: Path) -> Runtime:
    from onnxq.api.runtime import look
    from onnxq.ir import load

    return look(path, load(path))
