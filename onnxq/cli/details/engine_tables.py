"""Results of one model in two engines, for a terminal.

Tests: `tests/cli/test_cli_looking.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from onnxq.cli.tables import INDENT, MOST_OUTPUTS, columns
from onnxq.text import printable
from onnxq.verification.engines import EngineCheck, OutputAgreement

MOST_CULPRITS = 12


def engine_tables(check: EngineCheck) -> Iterator[RenderableType]:
    """Lay out how far the runs are apart, and which nodes disagree."""
    pairs = list(zip(check.outputs, check.optimised, strict=True))
    rows = [(ours.name, _apart(ours), _apart(fast)) for ours, fast in pairs[:MOST_OUTPUTS]]
    if len(pairs) > MOST_OUTPUTS:
        rows.append((f"and {len(pairs) - MOST_OUTPUTS} more", "", ""))
    yield Text("apart from onnxruntime without optimisations, at most:")
    yield columns(("output", "the reference evaluator", "onnxruntime with optimisations"), rows)
    agreeing = check.nodes - len(check.culprits)
    codes = f"; of {check.codes:,} codes {check.ties:,} are rounded the other way" if check.codes else ""
    yield _line(f"{agreeing} of {check.nodes} nodes give the same in both engines on the same inputs{codes}")
    if check.flipped and check.parting is not None:
        where = f"first behind {check.parting.op_type} node {check.parting.node}"
        reason = "the numbers they are made from differ in the last bits"
        yield _line(f"in whole runs {check.flipped:,} codes differ, {where}: {reason}")
    for culprit in check.culprits[:MOST_CULPRITS]:
        yield _line(f"{culprit.sentence}, sample {culprit.sample}", "red")
    if len(check.culprits) > MOST_CULPRITS:
        yield _line(f"and {len(check.culprits) - MOST_CULPRITS} more")
    for sentence in check.notes:
        yield _line(sentence, "yellow")


def _line(sentence: str, style: str = "") -> RenderableType:
    return Padding(Text(printable(sentence), style=style), (0, 0, 0, INDENT))


def _apart(output: OutputAgreement) -> str:
    if not output.elements:
        return "not compared"
    if not output.differing:
        return "equal"
    return f"{output.max_abs:.3g} ({output.relative:.1e} of the largest)"
