"""A model with its plan: input and output of every stage.

Tests: `tests/search/test_mask_limit_trial.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from onnxq.ir import Model
from onnxq.planning.planner import Plan
from onnxq.rounding.checkpoint import Checkpoint
from onnxq.stages.strategy import Strategy
from onnxq.warning import WarningLine


@dataclass(frozen=True)
class Prepared:
    """A float model that is ready to be quantized, and what will happen to it.

    Attributes:
        path: The file it was read from; `onnxq.ir.IN_MEMORY` where there is none.
        source: SHA-256 of the file it was read from, external data not included, as hexadecimal digits.
        source_bytes: Size of what it was read from, external data included.
        model: The normalised float model, simplified where the recipe allows it, types inferred.
        plan: A decision for every node.
        notes: What normalising and simplifying did, a sentence each.
        fast: Whether little is to be tried, and both models compared on few samples only.
        original: The normalised model before it was simplified, which the result is compared with; None where it was
            not.
        transforms: How many transforms of values the model has gone through: equal numbers mean that one changed
            nothing.
        strategy: How the model goes through the pipeline.
        checkpoint: A folder for the codes chosen so far, where an interrupted run is to be resumed; None keeps none.
        here: Whether the target is `native`, so that latency measured on this computer decides.
        warnings: Doubts about the options.
        caches: Scales of caches that hold codes, by the output of the model.
        external: The files of external data that it was read with.

    """

    path: Path
    source: str
    source_bytes: int
    model: Model
    plan: Plan
    notes: tuple[str, ...]
    fast: bool = False
    original: Model | None = None
    transforms: int = 0
    strategy: Strategy = Strategy.IN_MEMORY
    checkpoint: Path | None = None
    here: bool = False
    warnings: tuple[WarningLine, ...] = ()
    caches: Mapping[str, np.ndarray] = field(default_factory=dict)
    external: tuple[Path, ...] = ()

    @property
    def identity(self) -> str:
        """SHA-256 of all that it was read from: statistics of the same graph with other weights are not its own."""
        if not self.external:
            return self.source
        digest = hashlib.sha256(self.source.encode())
        for path in self.external:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def open_checkpoint(self, samples: Iterable[Mapping[str, Any]]) -> Checkpoint | None:
        """Return what an earlier run has chosen on these samples; None where nothing is to be kept."""
        if self.checkpoint is None:
            return None
        return Checkpoint(self.checkpoint, (self.source, self.plan.recipe.to_toml()), samples)
