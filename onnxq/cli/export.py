"""`onnxq export`: the files that a model hub or another runtime loads, each for its processors.

Tests: `tests/cli/test_cli_export.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from onnxq.cli.completion import conventions
from onnxq.cli.options import Force, Format, Model, OutputFormat, takes_options, use_custom_ops
from onnxq.pipeline.options import READING, QuantizeOptions

Ecosystem = Annotated[
    str,
    typer.Option(
        "--for",
        metavar="WHERE",
        help="Whose file names to use: hub (Hugging Face), transformers.js or sherpa (sherpa-onnx).",
        show_default=False,
        autocompletion=conventions,
    ),
]
Folder = Annotated[
    Path, typer.Option("--output", "-o", metavar="FOLDER", help="The folder to write to.", show_default=False)
]


@takes_options("data", *READING, "samples", "metric", "custom_ops")
def export(
    model: Model,
    convention: Ecosystem,
    output: Folder,
    options: QuantizeOptions = QuantizeOptions(),
    output_format: OutputFormat = Format.TEXT,
    force: Force = False,
) -> None:
    """Write a file for each family of processors, as hubs want it.

    Each file is quantized for its target and compared with the float model. A table for the model card comes with them.
    """
    from onnxq.cli.terminal import TerminalObserver, note, show
    from onnxq.publish.export import export as export_files
    from onnxq.publish.model_card import table
    from onnxq.report import SCHEMA, to_json
    from onnxq.text import printable

    use_custom_ops(options.custom_ops)
    with TerminalObserver(str(output)) as observer:
        result = export_files(
            model,
            convention,
            output,
            data=options.data,
            reading=options.reading,
            sample_limit=options.samples,
            metric=options.metric,
            force=force,
            observer=observer,
        )
    if output_format is Format.JSON:
        files = [file.as_dict() for file in result.files]
        skipped = [{"name": name, "reason": reason} for name, reason in result.skipped]
        record = {"schema": SCHEMA, "folder": str(result.folder), "files": files, "skipped": skipped}
        sys.stdout.write(to_json(record))
        return
    from onnxq.cli.tables import columns

    head, rows = table(result.files)
    show(printable(f"{model} → {result.folder}"), "", columns(head, rows, right=(2, 3)))
    for name, reason in result.skipped:
        note(f"{name} is not written: {reason}")
    note(f"{result.card}: the table for the model card")
