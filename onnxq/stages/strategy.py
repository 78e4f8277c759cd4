"""Choose once how a model goes through the pipeline, when it is prepared.

Packages that run models (`runtime`, `evaluator`, `calibration`) ask a model for its residency, for they also serve
`verify` and `compare`, which have no pipeline.

Tests: `tests/stages/test_strategy.py`.
"""

from __future__ import annotations

from enum import Enum

from onnxq.ir import Model
from onnxq.runtime.custom_ops import foreign_node


class Strategy(Enum):
    """A way through the pipeline.

    Attributes:
        IN_MEMORY: Every step; variants are judged on samples.
        STREAMED: Weights stay in their files. Variants run in segments, and layers keep their form.
        NOT_RUN: It is planned and rewritten, and never run: onnxruntime lacks one of its operators here.

    """

    IN_MEMORY = "in memory"
    STREAMED = "streamed"
    NOT_RUN = "not run"

    @property
    def runs(self) -> bool:
        """Whether the model can be run, so that a change of it can be compared."""
        return self is not Strategy.NOT_RUN

    @property
    def tries_variants(self) -> bool:
        """Whether there are time and memory for several variants of the model."""
        return self is Strategy.IN_MEMORY


def choose_strategy(model: Model) -> Strategy:
    """Choose the way of a normalised float model through the pipeline.

    Args:
        model: The model. Domains of its operators and bytes of its weights decide.

    """
    if foreign_node(model) is not None:
        return Strategy.NOT_RUN
    return Strategy.IN_MEMORY if model.residency.copies else Strategy.STREAMED
