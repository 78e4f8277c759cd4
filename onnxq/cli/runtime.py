"""What onnxruntime makes of a quantized model, for `verify` and `inspect`.

Tests: `tests/cli/test_cli_runtime.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from onnxq.cli.tables import columns
from onnxq.errors import ModelError, OnnxqError
from onnxq.hazards import Finding, find_hazards, least_onnxruntime
from onnxq.ir import Model, infer_types
from onnxq.ir.segment import is_large
from onnxq.targets.host import host_saturates
from onnxq.text import printable
from onnxq.verification.int8_saturation import LayerSaturation, read_saturation
from onnxq.verification.ort_graph import Fusion, read_fusion

MOST_UNFUSED = 12


@dataclass(frozen=True)
class Runtime:
    """The result of loading a model on this machine.

    Attributes:
        fusion: The kernels.
        saturating: Layers whose products could saturate on a processor without VNNI.
        saturates: Whether this processor is one.
        hazards: What versions of onnxruntime make of the model that its file does not say.
        least: By architecture, the first onnxruntime from which on the model loads, runs and gives right results.

    """

    fusion: Fusion
    saturating: tuple[LayerSaturation, ...]
    saturates: bool
    hazards: tuple[Finding, ...] = ()
    least: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        fusion = {
            "kernels": self.fusion.kernels,
            "nodes": [asdict(group) for group in self.fusion.groups],
            "skipped": self.fusion.skipped,
        }
        layers = [asdict(layer) for layer in self.saturating]
        return {
            "fusion": fusion,
            "saturation": {"this_processor": self.saturates, "layers": layers},
            "hazards": [finding.as_dict() for finding in self.hazards],
            "min_onnxruntime": self.least,
        }


def look(path: Path, model: Model) -> Runtime:
    """Look at what onnxruntime makes of a model; one that it refuses has that for its reason."""
    try:
        fusion = read_fusion(path)
    except ModelError as error:
        fusion = Fusion({}, (), error.message)
    with suppress(OnnxqError):  # shapes that stay unknown leave hazards that depend on them possible
        infer_types(model)
    hazards = find_hazards(model)
    saturating = () if is_large(model) else read_saturation(model)
    return Runtime(fusion, saturating, host_saturates(), hazards, least_onnxruntime(model, hazards))


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


def _hazard_lines(hazards: tuple[Finding, ...]) -> Iterator[RenderableType]:
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
