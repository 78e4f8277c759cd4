"""Records of all that is known about one node.

Tests: `tests/explanation/test_explain.py`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from onnxq.hazards import Hazard
from onnxq.report import Activation, NodeReport, record_dict
from onnxq.rounding.saturation_cures import SaturationCure
from onnxq.verification.records import Contribution, LayerComparison


@dataclass(frozen=True)
class Wire:
    """One input or output of a node.

    Attributes:
        tensor: Its name; None where an optional input is left out.
        kind: Element type and shape, such as `float32[n, 3]`.
        origin: For what no node makes or reads: `constant`, `input of the graph`, `output of the graph`; else empty.
        nodes: The node that makes an input, or those that read an output, with what they become.

    """

    tensor: str | None
    kind: str
    origin: str
    nodes: tuple[NodeReport, ...]


@dataclass(frozen=True)
class Attempt:
    """A scheme that was tried for a node.

    Attributes:
        scheme: Its name.
        accepted: Whether the node can have it.
        sentence: What the node would become, or why it cannot.

    """

    scheme: str
    accepted: bool
    sentence: str


@dataclass(frozen=True)
class Times:
    """Kernel times of a node from the tables, in microseconds; `auto` weighs them along the graph.

    Attributes:
        in_float: The node in float.
        in_integers: The node in 8 bit.
        conversion_in: Bringing its first input into 8 bit, paid where the maker of that is float.
        conversion_out: Bringing its output back to float, paid where a reader is float.
        guessed: Whether dimensions that the model leaves open were guessed.

    """

    in_float: float
    in_integers: float
    conversion_in: float
    conversion_out: float
    guessed: bool


@dataclass(frozen=True)
class Explanation:
    """All that is known about one node.

    Attributes:
        node: Its name, operator, what it becomes, and why.
        rule: The rule of the recipe that decided about it.
        asked: The scheme which that rule asks for.
        attempts: What was tried, in order.
        times: Kernel times, where they had a say.
        inputs: What it reads.
        outputs: What it gives.
        contribution: What it adds to the error of the model's outputs, where that was measured.
        activations: What was measured of the activations that it holds in codes; empty without data.
        layers: The errors of its outputs; empty without data.
        hazards: What versions of onnxruntime make of what it becomes.
        saturation: What keeps its products within 16 bits; None where nothing has to, or without data.

    """

    node: NodeReport
    rule: str
    asked: str
    attempts: tuple[Attempt, ...]
    times: Times | None
    inputs: tuple[Wire, ...]
    outputs: tuple[Wire, ...]
    contribution: Contribution | None = None
    activations: tuple[Activation, ...] = ()
    layers: tuple[LayerComparison, ...] = ()
    hazards: tuple[Hazard, ...] = ()
    saturation: SaturationCure | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: numbers that are not finite are null."""
        return {
            **asdict(self.node),
            "rule": self.rule,
            "asked": self.asked,
            "attempts": [asdict(attempt) for attempt in self.attempts],
            "times": None if self.times is None else asdict(self.times),
            "inputs": [asdict(wire) for wire in self.inputs],
            "outputs": [asdict(wire) for wire in self.outputs],
            "contribution": None if self.contribution is None else record_dict(self.contribution),
            "activations": [record_dict(activation) for activation in self.activations],
            "layers": [record_dict(layer) for layer in self.layers],
            "hazards": [hazard.as_dict() for hazard in self.hazards],
            "saturation": None if self.saturation is None else asdict(self.saturation),
        }
