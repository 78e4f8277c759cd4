"""The result of running a model in two engines.

Tests: `tests/verification/test_engines.py`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OutputAgreement:
    """How far an output is apart in two runs of the same model, over all samples.

    Attributes:
        name: Name of the output.
        dtype: NumPy name of its elements.
        elements: How many were compared.
        differing: How many are not the same to the bit.
        max_abs: Largest absolute difference; infinite where only one run gives a finite number.
        relative: The largest over the samples of largest difference by largest magnitude.

    """

    name: str
    dtype: str
    elements: int
    differing: int
    max_abs: float
    relative: float


@dataclass(frozen=True)
class Disagreement:
    """A node that gives something else in onnxruntime than in the evaluator, on the same inputs.

    Attributes:
        node: Label of the node.
        op_type: Its operator, with the domain where it is not ai.onnx.
        tensor: The output concerned.
        sample: Number of the sample.
        sentence: What differs, and by how much.

    """

    node: str
    op_type: str
    tensor: str
    sample: int
    sentence: str


@dataclass(frozen=True)
class Parting:
    """The first tensor, in graph order, where two whole runs are further apart than the tolerance.

    Attributes:
        node: Label of the node that makes it.
        op_type: Its operator.
        tensor: Its name.
        sample: Number of the sample.
        max_abs: Largest absolute difference.
        differing: Share of elements that differ.
        is_step: Whether the node rounds, compares or picks, so that small differences become whole steps, or makes them
            of the last bits of what it reads, as where a sum cancels.

    """

    node: str
    op_type: str
    tensor: str
    sample: int
    max_abs: float
    differing: float
    is_step: bool


@dataclass(frozen=True)
class EngineCheck:
    """The result of `check_engines`.

    Attributes:
        samples: Number of samples.
        outputs: onnxruntime without optimisations against the evaluator.
        optimised: onnxruntime with all optimisations against onnxruntime with none.
        nodes: Number of nodes that were checked one by one.
        ties: Codes that one engine rounded up and the other down, on the same inputs.
        flipped: Codes that differ when each engine runs the whole model by itself.
        codes: How many codes were compared.
        culprits: Nodes that disagree on the same inputs, in graph order.
        parting: Where the whole runs part, if they do. What is behind may come together again.
        within: Whether all outputs are within the tolerance.
        notes: What could not be checked, a sentence each.

    """

    samples: int
    outputs: tuple[OutputAgreement, ...]
    optimised: tuple[OutputAgreement, ...]
    nodes: int
    ties: int
    flipped: int
    codes: int
    culprits: tuple[Disagreement, ...]
    parting: Parting | None
    within: bool
    notes: tuple[str, ...]

    @property
    def objection(self) -> str:
        """The sentence that says which node is at fault; empty where both engines agree."""
        if self.culprits:
            first = self.culprits[0]
            more = f"; {len(self.culprits) - 1} more nodes disagree" if len(self.culprits) > 1 else ""
            return f"{first.sentence}, sample {first.sample}{more}"
        if self.parting is not None and not (self.within or self.flipped or self.parting.is_step):
            at = self.parting
            return (
                f"onnxruntime and the reference evaluator differ first at tensor '{at.tensor}' after {at.op_type} "
                f"node {at.node}, by up to {at.max_abs:.3g}, sample {at.sample}. No single node disagrees: small "
                "differences add up"
            )
        return ""
