"""Input and result of carrying out a plan: the types that all strategies of the pipeline share.

Tests: `tests/pipeline/test_step_order.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onnxq.calibration.stats import Stats
from onnxq.data.samples import Samples
from onnxq.ir import Model
from onnxq.progress import Progress
from onnxq.report import Report
from onnxq.search.budget import Budget

NO_BUDGET = Budget()


@dataclass(frozen=True)
class Request:
    """Input of a run, apart from the model and its plan.

    Attributes:
        observer: Told about each step.
        samples: To calibrate and to judge on; None without data.
        stats: Statistics of an earlier calibration, or their file, in place of a calibration run.
        budget: What the result may lose and take.
        scratch: A folder with room for files without a name.
        detailed: Whether histograms of activations and errors of layers are for the report.

    """

    observer: Progress
    samples: Samples | None = None
    stats: str | Path | Stats | None = None
    budget: Budget = NO_BUDGET
    scratch: Path = Path()
    detailed: bool = False


@dataclass(frozen=True)
class Quantized:
    """A quantized model that ran, its bytes unless it is large, and what there is to say about it."""

    model: Model
    report: Report
    encoded: bytes | None = None
