"""Ranges of logits cover what calibration samples may not show: rare events."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import build, floats, node, typed

from onnxq import quantize
from onnxq.calibration.activation_qparams import cover_reach
from onnxq.planning.logit_reach import LOGIT, NO_REACH, SHARE, Reach, least_reach
from onnxq.runtime.session import open_session, run_session

WEIGHTS = {"w": floats(8, 8, 1, 1), "v": floats(8, 8, 1, 1, seed=1), "c": np.array([2.0], np.float32)}
HEAD = [node("Conv", "x w", "a"), node("Conv", "a v", "l"), node("Transpose", "l", "t", perm=[0, 2, 3, 1])]


@pytest.mark.parametrize(
    ("rest", "logit", "feature"),
    [
        ([node("Sigmoid", "t", "y")], Reach(logit=LOGIT), Reach(share=SHARE)),
        ([node("Sigmoid", "t", "s"), node("Mul", "s c", "y")], Reach(logit=LOGIT), Reach(share=SHARE)),
        ([node("Softmax", "t", "y")], NO_REACH, NO_REACH),
        ([node("Sigmoid", "l", "s"), node("Mul", "s x", "g"), node("Conv", "g w", "y")], NO_REACH, NO_REACH),
        ([node("Relu", "t", "y")], NO_REACH, NO_REACH),
    ],
)
def test_logits_of_outputs_reach_far(rest: list, logit: Reach, feature: Reach) -> None:
    model = typed(build([*HEAD, *rest], {"x": [1, 8, 4, 4]}, ["y"], WEIGHTS))
    values = model.graph.values
    assert (least_reach(values["l"]), least_reach(values["a"]), least_reach(values["x"])) == (logit, feature, NO_REACH)


@pytest.mark.parametrize(
    ("low", "high", "seen", "reach", "expected"),
    [
        (-20.0, 0.0, (-20.0, -3.0), Reach(logit=4.0), (-20.0, 4.0)),
        (-9.0, 0.0, (-9.0, -3.0), Reach(logit=4.0), (-9.0, 3.0)),  # no more than a third is added
        (-20.0, 1.0, (-20.0, 3.0), Reach(logit=4.0), (-20.0, 4.0)),
        (-2.0, 9.0, (-3.0, 12.0), Reach(logit=4.0), (-4.0, 9.0)),
        (-8.0, 8.0, (-8.0, 8.0), Reach(logit=4.0), (-8.0, 8.0)),
        (-6.0, 0.0, (-6.0, 0.0), Reach(share=0.25), (-6.0, 1.5)),
        (-6.0, 2.0, (-6.0, 2.0), Reach(share=0.25), (-6.0, 2.0)),
        (0.0, 0.0, (0.0, 0.0), Reach(logit=4.0), (0.0, 0.0)),
        (-1.0, 5.0, (-2.0, 9.0), NO_REACH, (-1.0, 5.0)),
    ],
)
def test_a_range_is_widened_by_a_third_at_most(low, high, seen, reach, expected) -> None:
    assert cover_reach(low, high, seen, reach) == pytest.approx(expected)


def test_a_detector_sees_what_no_calibration_sample_shows(tmp_path: Path) -> None:
    """Noise never has the pattern that the filter looks for: all logits of the samples are below zero."""
    generator = np.random.default_rng(0)
    pattern = np.sign(floats(1, 3, 3, 3))
    path = tmp_path / "detector.onnx"
    nodes = [node("Conv", "x w b", "l"), node("Sigmoid", "l", "y")]
    weights = {"w": pattern, "b": np.array([-18.0], np.float32)}
    path.write_bytes(build(nodes, {"x": [1, 3, 16, 16]}, ["y"], weights).SerializeToString())
    samples = [{"x": generator.uniform(-1, 1, (1, 3, 16, 16)).astype(np.float32)} for _ in range(12)]
    quantize(path, "static-int8", output=tmp_path / "q.onnx", samples=samples)
    rare = {"x": samples[0]["x"].copy()}
    rare["x"][:, :, 4:7, 4:7] = 0.99 * pattern
    scores, quantized = (run_session(open_session(one), ["y"], rare)[0] for one in (path, tmp_path / "q.onnx"))
    assert scores.max() > 0.99
    assert quantized.max() > 0.9
