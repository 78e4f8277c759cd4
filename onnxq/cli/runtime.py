"""Tables of the kernels that onnxruntime chooses for a quantized model.

Tests: `tests/cli/test_cli_runtime.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from onnxq.api.runtime import Runtime
from onnxq.cli.tables import columns
from onnxq.hazards import FoundHazard
from onnxq.text import printable

MOST_UNFUSED = 12


def runtime_tables(runtime: Runtime) -> Iterator[RenderableType]:
    """Lay out kernels, nodes that are paid for nothing, and layers that saturate on this processor."""
    fusion = runtime.fusion
    if fusion.skipped is not None:
        yield Text("  " + printable(f"kernels are not known: {fusion.skipped}"), style="yellow")
    elif fusion.groups:
        rows = [(name, str(count)) for name, count in fusion.kernels.items()]
        yield columns(("in onnxruntime", "nodes"), rows, right=(1,))
        unfused = fusion.unfused
        if unfused:
            yield ""
            yield Text("  quantized for nothing", style="yellow")
            shown = [(group.node, group.operator, group.sentence) for group in unfused[:MOST_UNFUSED]]
            if len(unfused) > MOST_UNFUSED:
                shown.append((f"and {len(unfused) - MOST_UNFUSED} more", "", ""))
            yield columns(("node", "operator", "in onnxruntime"), shown)
    if runtime.saturates and runtime.saturating:
        count = len(runtime.saturating)
        yield ""
        yield Text(
            f"  products in {count} layer{'s' if count > 1 else ''} could saturate on this processor, which has no "
            f"VNNI: {printable(_names([layer.node for layer in runtime.saturating]))}. Quantize with --reduce-range.",
            style="yellow",
        )
    yield from _hazard_lines(runtime.hazards)


def _hazard_lines(hazards: tuple[FoundHazard, ...]) -> Iterator[RenderableType]:
    """Lay out hazards: those here stand out from those of other versions and processors."""
    for finding in hazards:
        row = finding.hazard
        where = f"{row.scope}, as here" if finding.here else row.scope
        sentence = f"{where}: {row.sentence} ({_names(finding.nodes)}). {row.remedy}"
        yield ""
        yield Text(f"  {printable(sentence)}", style="yellow" if finding.here else "dim")


def _names(nodes: Sequence[str], most: int = 5) -> str:
    names = ", ".join(nodes[:most])
    return names if len(nodes) <= most else f"{names} and {len(nodes) - most} more"
