"""The report says how the codes of weights were chosen."""

from __future__ import annotations

import numpy as np

from onnxq.calibration.im2col import Unfolding
from onnxq.calibration.second_moments import LayerMoments
from onnxq.rounding.gptq import Method, RoundedWeight
from onnxq.rounding.jobs import RoundingJob
from onnxq.rounding.summary import RoundingSummary, chosen_weight, summary


def job(block: int | None) -> RoundingJob:
    """A weight of 3 rows and 8 columns with H of such blocks."""
    moments = None if block is None else LayerMoments(Unfolding(8), block)
    return RoundingJob(np.zeros((3, 8)), moments, readers=("a", "b"))


def rounded(method: Method, gain: float = 0.0) -> RoundedWeight:
    """An outcome."""
    return RoundedWeight(np.zeros((3, 8), np.int8), np.ones(3, np.float32), method, gain)


def test_what_is_known_of_h() -> None:
    kinds = [chosen_weight(job(block), rounded("output error", 2.5)) for block in (8, 4, 1, None)]
    assert kinds[0] == RoundingSummary(("a", "b"), 8, "output error", 2.5, "full", 8, 8)
    assert [(kind.moments, kind.block) for kind in kinds[1:]] == [("block-diagonal", 4), ("diagonal", 1), ("none", 0)]


def test_the_sentence() -> None:
    made = [chosen_weight(job(8), rounded("output error", gain)) for gain in (1.0, 2.0, 9.0)]
    made.append(chosen_weight(job(4), rounded("output error", 3.0)))
    made += [chosen_weight(job(8), rounded("nearest")), chosen_weight(job(8), rounded("assumed inputs"))]
    assert summary(made) == (
        "rounded 4 weights by output error, +3.0 dB in the median; "
        "rounded 1 weight by output error on assumed inputs; rounded 1 to nearest; "
        "knew only block-diagonal second moments for 1",
    )
    assert summary(made[:1]) == ("rounded 1 weight by output error, +1.0 dB in the median",)
    assert summary([chosen_weight(job(8), rounded("nearest"))]) == ()
