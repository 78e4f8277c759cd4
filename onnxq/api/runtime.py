"""Kernels, saturation and hazards of a quantized model in onnxruntime, for `verify` and `inspect`.

Tests: `tests/cli/test_cli_runtime.py`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from onnxq.errors import ModelError, OnnxqError
from onnxq.hazards import FoundHazard, find_hazards, least_onnxruntime
from onnxq.ir import Model, ModelInput, infer_types
from onnxq.targets.host import host_saturates
from onnxq.verification.int8_saturation import LayerSaturation, read_saturation
from onnxq.verification.ort_graph import Fusion, read_fusion


@dataclass(frozen=True)
class Runtime:
    """Facts about a model that is loaded here.

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
    hazards: tuple[FoundHazard, ...] = ()
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


def look(source: ModelInput, model: Model) -> Runtime:
    """Look at what onnxruntime makes of a model; one that it refuses has that for its reason.

    Args:
        source: The model as the caller has it.
        model: The same, loaded; its types are inferred.

    """
    try:
        fusion = read_fusion(source)
    except ModelError as error:
        fusion = Fusion({}, (), error.message)
    with suppress(OnnxqError):  # shapes that stay unknown leave hazards that depend on them possible
        infer_types(model)
    hazards = find_hazards(model)
    saturating = read_saturation(model) if model.residency.copies else ()
    return Runtime(fusion, saturating, host_saturates(), hazards, least_onnxruntime(model, hazards))
