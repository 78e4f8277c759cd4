"""`onnxq data`: show the samples of a model, and warn of suspicious ones.

Tests: `tests/cli/test_cli_data.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onnxq.cli.options import Force, Format, Model, OutputFormat, takes_options, use_custom_ops
from onnxq.pipeline.options import READING, QuantizeOptions

if TYPE_CHECKING:
    from rich.console import RenderableType

    from onnxq.data.examine import Examination
    from onnxq.data.input_summary import InputSummary
    from onnxq.data.samples import Samples
    from onnxq.progress import Progress

MOST_LABELS = 8
LOOK = "look"  # the one kind of work of this command
Page = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write the same as an HTML page, with a sheet of the pictures."),
]


@takes_options("data", *READING, "samples", "custom_ops")
def data(
    model: Model,
    options: QuantizeOptions = QuantizeOptions(),
    html: Page = None,
    force: Force = False,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Show what a model is going to see.

    Warns of data that look wrong for the model. Only the first layers and a few whole runs are computed.
    """
    from onnxq.cli.terminal import TerminalObserver, show, warn
    from onnxq.errors import DataError

    use_custom_ops(options.custom_ops)
    with TerminalObserver() as observer:
        from onnxq.ir import load
        from onnxq.report.data_page import check_page_path, data_page
        from onnxq.report.write import write_text

        if not options.data:
            load(model)  # it may be the data that are given in its place
            raise DataError("no data is given", "Add --data.")
        if html is not None:
            check_page_path(html, force=force)
        given, seen = _look(model, options, observer)
        labels = given.label_names()  # which runs a function of the user, whose prints are no product
    from onnxq.report import SCHEMA, to_json

    if html is not None:
        write_text(html, data_page(model.name, given, seen))
    if output_format is Format.JSON:
        sys.stdout.write(to_json({"schema": SCHEMA, "model": str(model), **as_dict(given, seen, labels[0])}))
        return
    show(*tables(given, seen, labels))
    warn(seen.warnings)


def _look(model: Path, options: QuantizeOptions, observer: Progress) -> tuple[Samples, Examination]:
    """Open the data of a model, and look at them."""
    from onnxq.data.examine import examine, some_of
    from onnxq.ir import infer_types, load
    from onnxq.progress import Work, following, working
    from onnxq.stages.files import open_data

    with following(observer):
        observer.step("load")
        read = load(model)
        infer_types(read)
        given = open_data(read, options.data, None, options.samples, options.reading, passes=1)
        assert given is not None
        given = given if options.samples is not None else some_of(given)
        observer.step("examine")
        observer.expect([Work("examine", LOOK, 1.0)])
        with working(LOOK) as advance:

            def tell(done: int, total: int | None) -> None:
                advance(done, total)
                observer.progress(done, total)

            return given, examine(read, given, progress=tell)


def as_dict(samples: Samples, seen: Examination, labels: Sequence[str]) -> dict[str, Any]:
    """Return what there is to say, for programs."""
    return {
        "data": samples.description,
        "samples": seen.samples,
        "inputs": [asdict(one) for one in seen.inputs],
        "preparations": [asdict(one) for one in samples.preparations],
        "labels": list(labels),
        "notes": list(samples.notes),
        "warnings": [asdict(one) for one in seen.warnings],
    }


def tables(samples: Samples, seen: Examination, labelled: tuple[Sequence[str], str]) -> list[RenderableType]:
    """Return the screen: samples, inputs, channels, preprocessing and labels."""
    from onnxq.cli.tables import columns, input_table
    from onnxq.text import counted, printable, truncate

    shown: list[RenderableType] = [printable(f"{samples.description}, {counted(seen.samples, 'row')} in all"), ""]
    shown.append(input_table(seen.inputs))
    channels = [row for one in seen.inputs for row in _channels(one)]
    if channels:
        shown += ["", columns(("channel of", "", "least", "greatest", "mean", "deviation"), channels, (2, 3, 4, 5))]
    if samples.preparations:
        rows = [(one.input, one.words, one.origin or "the model's input") for one in samples.preparations]
        shown += ["", columns(("input", "preprocessing", "said by"), rows)]
    labels, problem = labelled
    if labels:
        shown += ["", f"  labels: {printable(', '.join(truncate(labels, MOST_LABELS)))}"]
    if problem:
        shown += ["", f"  no labels: {printable(problem)}"]
    return shown


def _channels(one: InputSummary) -> list[tuple[str, ...]]:
    from onnxq.data.input_summary import short

    return [
        (one.name, str(index), short(found.least), short(found.greatest), short(found.mean), short(found.std))
        for index, found in enumerate(one.channels)
    ]
